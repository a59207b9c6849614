"""Tuning files made into a table that the library has built in."""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest

from bertfuse.analysis.measured_table import main, measured_table
from bertfuse.analysis.tuning import HEADER
from bertfuse.errors import BertfuseError

GPU = "NVIDIA L4, 8.9, 58 multiprocessors"


def _file(path: Path, *rows: str) -> Path:
    path.write_text(
        "\n".join([HEADER, "# device\tproblem\ttactic", *(f"{GPU}\t{row}\t1.00\t1.10" for row in rows)]) + "\n"
    )
    return path


def _rows(text: str) -> list[str]:
    assert text.startswith(HEADER + "\n")
    return [line.removeprefix(GPU + "\t") for line in text.splitlines() if not line.startswith(("#", HEADER))]


def test_rows_serve_down_to_the_next_that_was_measured(tmp_path: Path) -> None:
    first = _file(
        tmp_path / "a.tsv",
        "FusedGemm float16 512x768x768 gelu_tanh\tB",
        "FusedGemm float16 128x768x768 gelu_tanh\tA",
        "FusedGemm float16 256x768x768 gelu_tanh\tA",
        "FusedGemm float16 256x768x768\tC",
        "FusedAttention float16 1x128x12x64\tD",
        "FusedGemm tf32 128x768x768\tE",
    )
    second = _file(tmp_path / "b.tsv", "FusedGemm bfloat16 512x768x768 gelu_tanh\tF", "FusedGemm float32 7x8x9\tG")
    assert _rows(measured_table([first])) == [
        "FusedGemm float16 1-256x768x768\tC",
        "FusedGemm float16 1-256x768x768 gelu_tanh\tA",
        "FusedGemm float16 257-512x768x768 gelu_tanh\tB",
    ]
    assert "FusedGemm float16 257-512x768x768 gelu_tanh\tF" in _rows(measured_table([first, second]))
    assert "FusedGemm float32 1-7x8x9\tG" in _rows(measured_table([first, second]))


def test_a_table_of_a_table_is_the_same(tmp_path: Path) -> None:
    seed = secrets.randbits(31)
    chance = random.Random(seed)
    sizes = {chance.randrange(1, 5000) for _ in range(40)}
    rows = [f"FusedGemmGelu float16 {m}x{n}x768\t{chance.choice('ABC')}" for m in sizes for n in (384, 768)]
    table = measured_table([_file(tmp_path / "a.tsv", *rows)])
    (tmp_path / "b.tsv").write_text(table)
    assert measured_table([tmp_path / "b.tsv"]) == table, f"seed {seed}"
    covered = {n: 0 for n in (384, 768)}
    for row in _rows(table):
        rows_of, n, _ = row.split("\t")[0].split()[2].split("x")
        first, last = rows_of.split("-") if "-" in rows_of else (rows_of, rows_of)
        assert int(first) == covered[int(n)] + 1, f"seed {seed}"
        covered[int(n)] = int(last)
    assert set(covered.values()) == {max(sizes)}


def test_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.tsv").write_text("something else\n")
    with pytest.raises(BertfuseError, match="no file has a row of a product"):
        measured_table([_file(tmp_path / "a.tsv", "FusedAttention float16 1x128x12x64\tD")])
    with pytest.raises(SystemExit) as end:
        main([str(tmp_path / "other.tsv"), "-o", str(tmp_path / "out.tsv")])
    assert end.value.code == 2 and not (tmp_path / "out.tsv").exists()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_shipped_tables_are_of_the_format() -> None:
    """What a row names is tested against the library's tactics in tests/plugins/test_measured_gemms.cc."""
    folder = Path(__file__).parents[2] / "plugins/ops/measured"
    tables = sorted(folder.glob("*.tsv"))
    assert tables
    for table in tables:
        header, *lines = table.read_text().splitlines()
        assert header.startswith("bertfuse tuning 1, library ")
        assert all(line.startswith("#") or line.count("\t") >= 2 for line in lines)
