"""How contenders take turns, and that nobody's float type is left unsaid."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertfuse.analysis import bench
from bertfuse.analysis.bench import BenchReport, plot
from bertfuse.cli.sessions import print_bench
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.measuring.contenders import Contender, fused_contenders, session_contender
from bertfuse.measuring.timing import Timing
from tests.tiny_models import exported, inputs


def test_a_contender_that_cannot_run_says_why_and_the_others_are_measured() -> None:
    def runs(feed: object) -> None:
        pass

    def fails(feed: dict[str, np.ndarray]) -> None:
        if len(feed["input_ids"]) > 1:
            raise RuntimeError("no memory\nfor that")

    made = [Contender("original ONNX", fails), Contender("fused", runs), Contender("gone", absent="was never there")]
    feeds = {(1, 4): inputs(1, 4), (2, 4): inputs(2, 4)}
    assert [contender.name for contender in bench._those_that_run(made, feeds)] == ["fused"]
    assert [contender.absent for contender in made] == ["fails at 2x4: no memory for that", "", "was never there"]
    with pytest.raises(BertfuseError, match="nothing runs: original ONNX: fails at 2x4"):
        bench._those_that_run([made[0]], feeds)


def test_contenders_of_different_types_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuse_file(exported(), tmp_path / "model.fused.onnx", dtype="fp16")
    original = session_contender("original ONNX", exported(), "cpu", None, "never", "")
    made = [original, *fused_contenders(tmp_path / "model.fused.onnx", "cpu", None)]
    assert [contender.details["dtype"] for contender in made] == ["fp32", "fp16", "fp16"]
    timings = [Timing(contender.name, 1, 8, 2.0, 1.0, 3.0, 0.5, 6) for contender in made]
    details = {contender.name: contender.details for contender in made}
    report = BenchReport("m", "cpu", {"cpu": "a", "cores": "1"}, timings, details=details)
    assert report.conditions == ["fp32 and fp16"]
    print_bench(report)
    table = " ".join(capsys.readouterr().out.split())
    for said in ("original ONNX, fp32", "fused, op bodies, fp16", "fused, library, fp16", "ONNX, fp32 and fp16"):
        assert said in table, table
    plot(report, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    same = BenchReport("m", "cpu", {}, timings[1:], details=details)
    assert same.conditions == ["fp16"] and same.label("fused, library") == "fused, library"


def test_a_speed_is_told_only_where_the_runs_do_not_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    """1.18 times as fast, by medians of which each lies in the other's middle half, is noise."""
    timings = [
        Timing("original ONNX", 1, 8, 2.0, 1.6, 2.4, 1.5, 6),
        Timing("alike", 1, 8, 1.7, 1.5, 2.1, 1.4, 6),
        Timing("quicker", 1, 8, 1.0, 0.9, 1.1, 0.8, 6),
    ]
    print_bench(BenchReport("m", "cpu", {"cpu": "a", "cores": "1"}, timings))
    shown = capsys.readouterr().out
    assert "no difference" in shown and "2.00x" in shown and "1.18x" not in shown


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ((0.5, 0.4, 0.6), "; leaving it out saves 75% of the time (0.5 instead of 2 ms)"),
        ((2.1, 1.5, 3.0), "; leaving it out makes no difference"),
        ((4.0, 3.5, 4.5), "; leaving it out costs 100% of the time (4 instead of 2 ms)"),
    ],
)
def test_what_padding_costs_is_said(removed: tuple[float, float, float], said: str) -> None:
    timings = [
        Timing("padded, op bodies", 2, 8, 2.0, 1.9, 2.1, 1.9, 6),
        Timing("padded, library", 2, 8, 3.0, 2.9, 3.1, 2.9, 6),
        Timing("padding removed, library", 2, 8, *removed, removed[1], 6),
    ]
    report = BenchReport("m", "cpu", {}, timings, options={"workloads": ["3,8: 16 places"]})
    assert report.padding_lines == [f"3,8: 16 places{said}"]
    assert BenchReport("m", "cpu", {}, timings[:2], options=report.options).padding_lines == ["3,8: 16 places"]
