"""The tables: which files are measured, and what is measured of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import onnxruntime

from bertfuse.graph_rewrite import fuse

from .families import FAMILIES
from .files import AFTER, ATTENTIONS, EXPORTERS, Recipe, feed, make

SHAPES = ((1, 1), (2, 7), (3, 33))
COLUMNS = tuple((exporter, attention) for exporter in EXPORTERS for attention in ATTENTIONS)
_IDS, _MASK, _TYPES, _PLACES = "input_ids", "attention_mask", "token_type_ids", "position_ids"
INPUTS = {
    "ids": (_IDS,),
    "ids, mask": (_IDS, _MASK),
    "ids, mask, token types": (_IDS, _MASK, _TYPES),
    "ids, mask, positions": (_IDS, _MASK, _PLACES),
    "ids, mask, token types, positions": (_IDS, _MASK, _TYPES, _PLACES),
    "int32 ids and mask": (f"{_IDS}:int32", f"{_MASK}:int32"),
    "bool mask": (_IDS, f"{_MASK}:bool"),
    "float32 mask": (_IDS, f"{_MASK}:float32"),
}
_NO_TYPES = ("roberta", "distilbert", "mpnet")


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    table: str
    row: str
    column: str
    recipe: Recipe
    quick: bool = False  # measured by every test run

    def __str__(self) -> str:
        return f"{self.table} | {self.row} | {self.column}"


@dataclass
class Measured:
    """What fusing a file came to. `failed` is why there is no result at all.

    `error` is the largest difference of any output from the file before fusing, over SHAPES.
    """

    fused: dict[str, int] = field(default_factory=dict)
    expected: dict[str, int] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)
    error: float = 0.0
    failed: str = ""

    def as_json(self) -> dict:
        return {key: value for key, value in asdict(self).items() if value not in ({}, [], "")}


def cells() -> list[Cell]:
    """Every cell, table by table."""
    return [cell for cell in (*_models(), *_opsets(), *_inputs(), *_changed()) if cell.recipe.possible]


def _across(table: str, row: str, recipe: Recipe, quick: tuple[tuple[str, str], ...] = ()) -> Iterator[Cell]:
    for exporter, attention in COLUMNS:
        one = replace(recipe, exporter=exporter, attention=attention)
        yield Cell(table, row, f"{exporter}, {attention}", one, (exporter, attention) in quick)


_CHEAP, _USUAL = ("torchscript", "eager"), ("dynamo", "sdpa")


def _models() -> Iterator[Cell]:
    for family in FAMILIES.values():
        for task in family.tasks:
            quick = (_CHEAP, _USUAL) if task == family.tasks[0] else (_CHEAP,) if task == "fill-mask" else ()
            yield from _across("Models", f"{family.name}: {task}", Recipe(family.name, task), quick)


def _opsets() -> Iterator[Cell]:
    for dtype in ("fp32", "fp16"):
        for opset in range(14, 24):
            for static in (False, True):
                recipe = Recipe("bert", opset=opset, dtype=dtype, static=static)
                row = f"opset {opset}, {'static' if static else 'dynamic'}, {dtype}"
                quick = {(14, True): (_CHEAP,), (23, False): (_USUAL,)}.get((opset, static), ())
                yield from _across("Opsets, shapes and types (bert)", row, recipe, quick)


def _inputs() -> Iterator[Cell]:
    for family in ("bert", *_NO_TYPES):
        for label, inputs in INPUTS.items():
            if (_TYPES in inputs and family in _NO_TYPES) or (_PLACES in inputs and family == "distilbert"):
                continue
            quick = (_CHEAP,) if family == "bert" else ()
            yield from _across("Inputs", f"{family}: {label}", Recipe(family, inputs=inputs), quick)


def _changed() -> Iterator[Cell]:
    for family in ("bert", "roberta", "distilbert", "albert"):
        for after in AFTER:
            for static in (False, True):
                row = f"{family}, {'static' if static else 'dynamic'}: {after}"
                quick = (_CHEAP,) if family == "bert" else ()
                yield from _across("Files changed after export", row, Recipe(family, static=static, after=after), quick)


def measure(cell: Cell, folder: Path) -> Measured:
    """Make the cell's file in `folder`, fuse it, run both."""
    try:
        exported, changed = make(cell.recipe, folder)
    except Exception as error:  # of torch, of an optimizer: what cannot be made cannot be fused
        return Measured(failed=f"no file: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    try:
        return _fused(cell, exported, changed)
    except Exception as error:  # a crash is a cell that failed, not the end of the table
        return Measured(failed=f"fusion: {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _fused(cell: Cell, exported: Path, changed: Path) -> Measured:
    result = fuse(changed)
    expected, promised = dict(result.expected), []
    for op, count in FAMILIES[cell.recipe.family].promise(cell.recipe.task).items():
        others = expected.get("FusedAttentionVariant", 0) if op == "FusedAttention" else 0
        if count > others + expected.get(op, 0):
            promised.append(f"{op}: the graph shows {expected.get(op, 0)} of {count - others} that the model has")
            expected[op] = count - others
    misses = sorted({f"{miss.op}: {miss.reason}" + (f" ({miss.hint})" if miss.hint else "") for miss in result.misses})
    misses += promised
    # A file that ONNX Runtime saved and cannot load again is no fault of fusion's: the fused one is then run as it is.
    loads = exported == changed or _loads(changed)
    before, after = _session(str(exported)), _session(result.model.SerializeToString(), optimize=loads)
    error, runs = 0.0, 0
    for shape in SHAPES:
        inputs = feed(before, *shape)
        try:
            wanted = before.run(None, inputs)
        except Exception:  # a size that the exporter has fixed unasked
            continue
        runs += 1
        for a, b in zip(wanted, after.run(None, inputs), strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise AssertionError(f"an output is {a.dtype} {a.shape}, fused {b.dtype} {b.shape}")
            if FAMILIES[cell.recipe.family].windowed:
                a, b = (array[inputs["attention_mask"] != 0] for array in (a, b))
            gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
            error = max(error, float(gap.max(initial=0.0)) if np.isfinite(gap).all() else float("inf"))
    if not runs:
        raise AssertionError("the exported file runs at no size")
    return Measured(dict(result.fused), expected, misses, float(f"{error:.1e}"))


def _session(model: str | bytes, optimize: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _loads(path: Path) -> bool:
    try:
        _session(str(path))
    except Exception:  # ONNX Runtime's exceptions have no base class of their own
        return False
    return True
