"""No cell of docs/coverage.md gets worse. Here a part of them; the command of the package measures all."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.model_coverage import table
from tests.model_coverage.cells import Cell, Measured, cells, measure

CELLS = cells()
QUICK = [cell for cell in CELLS if cell.quick]


@cache
def committed() -> dict[str, Measured]:
    return table.load()


@pytest.mark.parametrize("cell", QUICK, ids=str)
def test_nothing_is_worse_than_in_the_table(cell: Cell) -> None:
    measured = measure(cell, Path(os.environ["BERTFUSE_TEST_MODELS"]) / "coverage")
    assert table.worse(cell, measured, committed().get(str(cell))) == [], measured


def test_the_page_shows_the_table() -> None:
    """Whoever changes one of the two by hand, or the list of cells, has to measure again."""
    assert list(committed()) == [str(cell) for cell in CELLS], "run python -m tests.model_coverage"
    assert table.PAGE.read_text(encoding="utf-8") == table.page(CELLS, committed())


def test_a_line_holds_files_with_the_same_counts() -> None:
    rows = {"bert: ids": GOOD, "bert: mask": replace(GOOD, error=2e-6), "bert: types": PART, "mpnet: ids": GOOD}
    rows |= {"esm: ids": GOOD, "opset 14, fp32": GOOD, "opset 15, fp32": GOOD, "opset 14, fp16": GOOD}
    lines = table.shared({row: {"dynamo": cell} for row, cell in rows.items()}, ["dynamo", "torchscript"])
    assert lines == [
        ("bert: ids; mask", ["2/2, 2e-06", "–"]),
        ("bert: types", ["**1/2**, 1e-06", "–"]),
        ("mpnet; esm: ids", ["2/2, 1e-06", "–"]),
        ("fp32: opset 14; opset 15", ["2/2, 1e-06", "–"]),
        ("fp16: opset 14", ["2/2, 1e-06", "–"]),
    ]


def test_every_table_and_column_is_watched() -> None:
    assert {cell.table for cell in QUICK} == {cell.table for cell in CELLS}
    families = {cell.recipe.family for cell in CELLS}
    assert {cell.recipe.family for cell in QUICK} == families


def test_each_file_is_measured_once() -> None:
    names = [str(cell) for cell in CELLS]
    assert len(set(names)) == len(names)


GOOD = Measured({"FusedAttention": 2}, {"FusedAttention": 2}, [], 1e-6)
PART = Measured({"FusedAttention": 1}, {"FusedAttention": 2}, ["FusedAttention: adds a bias"], 1e-6)

CHANGES: dict[str, tuple[Measured, Callable[[Measured], Measured], str]] = {
    "fewer fused": (GOOD, lambda m: replace(m, fused={"FusedAttention": 1}, misses=["x"]), "1 fused, 2 before"),
    "none fused": (GOOD, lambda m: replace(m, fused={}, misses=["x"]), "0 fused, 2 before"),
    "no reason": (PART, lambda m: replace(m, misses=[]), "1 ops are missing without a reason"),
    "larger error": (GOOD, lambda m: replace(m, error=0.1), "differs by 0.1"),
    "not a number": (GOOD, lambda m: replace(m, error=float("nan")), "differs by nan"),
    "infinite": (GOOD, lambda m: replace(m, error=float("inf")), "differs by inf"),
    "crash": (GOOD, lambda m: Measured(failed="fusion: IndexError: 3"), "IndexError"),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_worse_cell_is_found(name: str) -> None:
    before, change, message = CHANGES[name]
    assert table.worse(QUICK[0], before, before) == []
    (problem, *_) = table.worse(QUICK[0], change(before), before)
    assert message in problem


def test_a_cell_that_is_not_in_the_table_is_found() -> None:
    assert "is not in the table" in table.worse(QUICK[0], GOOD, None)[0]


def test_better_is_not_worse() -> None:
    assert table.worse(QUICK[0], GOOD, PART) == []
    assert table.worse(QUICK[0], GOOD, Measured(failed="no file: of old")) == []
    more = replace(GOOD, fused=GOOD.fused | {"NewOp": 3}, expected=GOOD.expected | {"NewOp": 3})
    assert table.worse(QUICK[0], more, GOOD) == []
