"""How contenders take turns, and that nobody's float type is left unsaid."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from tiny_models import exported, inputs

from bertfuse.analysis import bench
from bertfuse.analysis.bench import BenchReport, interleaved, plot
from bertfuse.analysis.contenders import Contender, fused_contenders, session_contender
from bertfuse.cli.sessions import print_bench
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("seconds", [0, 0.031, 2])
def test_turns_go_both_ways_after_a_warm_up_of_ones_own(
    seconds: float, on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    milliseconds = {"slow": 5.0, "quick": 0.25, "slower": 30.0}
    ran: list[str] = []

    def run(contender: Contender, feed: dict[str, np.ndarray]) -> float:
        ran.append(contender.name)
        return milliseconds[contender.name]

    monkeypatch.setattr(bench, "_run", run)
    monkeypatch.setattr(bench, "PAUSE", 0)
    timings = interleaved([Contender(name) for name in milliseconds], {}, 1, 8, seconds, on_gpu)
    assert [timing.contender for timing in timings] == list(milliseconds)
    runs = {timing.runs for timing in timings}
    assert len(runs) == 1 and min(runs) >= max(6, int(seconds * 1000 / 30) - 6)
    # The first three runs of each are for the guess; the last of a turn is the first of the next.
    blocks = [(name, len(list(group))) for name, group in groupby(ran[9:])]
    names = [name for name, _ in blocks]
    assert names[:5] == ["slow", "quick", "slower", "quick", "slow"] and names[-1] == "slow"
    assert names.count("quick") % 2 == 0
    counted = min(runs) // names.count("quick")
    assert dict(blocks[1:2])["quick"] == 80 + counted  # 20 ms
    assert blocks[0] == ("slow", 4 + counted)
    assert blocks[2] == ("slower", 2 * (2 + counted))


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
    timings = [bench.Timing(contender.name, 1, 8, 2.0, 1.0, 3.0, 0.5, 6) for contender in made]
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
        bench.Timing("original ONNX", 1, 8, 2.0, 1.6, 2.4, 1.5, 6),
        bench.Timing("alike", 1, 8, 1.7, 1.5, 2.1, 1.4, 6),
        bench.Timing("quicker", 1, 8, 1.0, 0.9, 1.1, 0.8, 6),
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
        bench.Timing("padded, op bodies", 2, 8, 2.0, 1.9, 2.1, 1.9, 6),
        bench.Timing("padded, library", 2, 8, 3.0, 2.9, 3.1, 2.9, 6),
        bench.Timing("padding removed, library", 2, 8, *removed, removed[1], 6),
    ]
    report = BenchReport("m", "cpu", {}, timings, options={"workloads": ["3,8: 16 places"]})
    assert report.padding_lines == [f"3,8: 16 places{said}"]
    assert BenchReport("m", "cpu", {}, timings[:2], options=report.options).padding_lines == ["3,8: 16 places"]
