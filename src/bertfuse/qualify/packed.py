"""Packed rows of problems: the tensors that tell which are real, and the same rows without packing.

The oracle never sees packed rows: `plain_calls` takes a problem apart into calls of the same op on real rows alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bertfuse.graph_rewrite.ops import PACKING_OPS

from .problem import ATTENTIONS, ROW_SCALES, Problem

Inputs = Mapping[str, np.ndarray | None]


def shrunk(problem: Problem) -> Problem:
    """The problem with its sequences cut to what is left of the tensors' capacity."""
    if problem.packed is None:
        return problem
    if problem.op == "RaggedPositions":
        sizes = {"B": 1, "S": sum(problem.packed), "M": max(problem.packed, default=0)}
        return replace(problem, sizes={**problem.sizes, **sizes})
    left, lengths = problem.capacity, []
    for length in problem.packed:
        lengths.append(min(length, left))
        left -= lengths[-1]
    return replace(problem, packed=tuple(lengths))


def lengths_of(problem: Problem, which: int) -> tuple[int, ...]:
    """The sequences' lengths in a set of inputs: those of the problem, and others of the same number for the second.

    What a call was captured or prepared with must not be what it answers for.
    """
    assert problem.packed is not None
    if not which or not problem.packed:
        return problem.packed
    rng = np.random.default_rng([problem.seed, which])
    if problem.op == "RaggedPositions":  # as many tokens, none longer
        return tuple(int(length) for length in rng.permutation(problem.packed))
    if "row_count" in problem.without:  # every row is real
        return problem.packed
    left, lengths, few = problem.capacity, [], len(problem.packed) < 3
    for length in rng.permutation(problem.packed):
        kinds = (int(length), 0, 1, int(rng.integers(0, left + 1)) if few else int(length) + 1)
        kind = int(rng.choice(4, p=[0.1, 0.1, 0.1, 0.7] if few else [0.5, 0.1, 0.1, 0.3]))
        lengths.append(min(left, kinds[kind]))
        left -= lengths[-1]
    return tuple(lengths)


def counts(problem: Problem, name: str, which: int, rng: np.random.Generator) -> np.ndarray:
    """One of the int32 tensors that tell of packed rows."""
    array = _counts(problem, name, lengths_of(problem, which), rng)
    if problem.broken and name != "max_seqlen":
        places = rng.random(array.shape) < rng.choice([0.05, 0.5, 1.0])
        # Of a scalar and of the last offset always: it is what all rows hang on.
        places.reshape(-1)[-1 if name == "cu_seqlens" else slice(0, 1)] = True
        wrong = np.array(
            [-1, -(1 << 31), (1 << 31) - 1, problem.capacity + 1, problem.capacity + 70, 1 << 20], np.int32
        )
        array = np.where(places, rng.choice(wrong, array.shape), array).astype(np.int32)
    return array


def _counts(problem: Problem, name: str, lengths: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    total = sum(lengths)
    if name == "row_count":
        return np.array(total, np.int32)
    if name == "cu_seqlens":
        return np.cumsum([0, *lengths]).astype(np.int32)
    if name == "max_seqlen":  # only its length is read
        return rng.integers(-(1 << 31), 1 << 31, problem.sizes["M"]).astype(np.int32)
    if name == "places":
        table_rows, rows = problem.sizes["C"], problem.capacity
        in_batch = problem.attribute("places_in") == "batch"
        places = rng.integers(0, max(1, rows if in_batch else table_rows), rows)
        places[total:] = rng.choice([-1, 1 << 30, -(1 << 31), table_rows], rows - total)
        return places.astype(np.int32).reshape(problem.sizes["B"], problem.sizes["S"])
    assert name == "token_index"
    if problem.op in ATTENTIONS:
        return _spread(problem, lengths, rng)
    places = problem.sizes["B"] * problem.sizes["S"]
    real = np.zeros(places, bool)
    real[rng.permutation(places)[:total]] = True
    index = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).astype(np.int32)
    if problem.op == "EmbedLayerNorm":  # which reads none of those behind the real rows
        index[total:] = rng.choice(np.array([-1, 1 << 30, places, -(1 << 31)], np.int32), places - total)
    return index.reshape(problem.sizes["B"], problem.sizes["S"])


def _spread(problem: Problem, lengths: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Places of sequences' tokens, with gaps between some, no more than there are rows to spare."""
    spare, places, at = problem.capacity - sum(lengths), [], 0
    for length in lengths:
        gaps = np.zeros(length, np.int64)
        if length > 1 and rng.random() < 0.5:
            wide = min(spare, int(rng.choice([1, 5, 200])))
            gaps[1:] = np.bincount(rng.integers(0, length - 1, wide), minlength=length - 1)
            spare -= wide
        places.append(at + np.arange(length) + np.cumsum(gaps))
        at += length + int(gaps.sum())
    index = np.concatenate([*places, rng.integers(-(1 << 31), 1 << 31, problem.capacity - sum(lengths))])
    return index.astype(np.int32).reshape(problem.sizes["B"], problem.sizes["S"])


def spoil(problem: Problem, found: dict[str, Any], which: int, rng: np.random.Generator) -> None:
    """Fill what no real row reads with what must not reach one: NaN, infinities, indices out of every table."""
    if problem.packed is None or problem.broken:
        return
    total = sum(lengths_of(problem, which))
    if problem.op == "EmbedLayerNorm":
        hidden = np.ones(found["ids"].size, bool)
        hidden[found["token_index"].reshape(-1)[:total]] = False
        for name in ("ids", "token_type_ids", "position_ids"):
            if found[name] is not None:
                top = np.iinfo(found[name].dtype).max
                garbage = rng.choice(np.array([top, -top, 1 << 30, -(1 << 30)]), int(hidden.sum()))
                found[name].reshape(-1)[hidden] = garbage.astype(found[name].dtype)
        return
    for name in ("x", "residual", "qkv"):
        if found.get(name) is not None and found[name].size:
            rows = _rows(found[name])
            values = np.array([np.nan, np.inf, -np.inf, 6e4], np.float32)
            rows[total:] = rng.choice(values, (len(rows) - total, 1)).astype(rows.dtype)
    for name, scales in ROW_SCALES.items():
        if found.get(name) is not None:
            _rows(found[name]).view(np.uint8)[total:] = 0x7F  # NaN, of integers 127
            found[scales].reshape(-1)[total:] = np.nan


def plain_calls(problem: Problem, inputs: Inputs) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray | None]]]:
    """Which packed rows, and inputs of the op without packing that give them: sequences of a length together.

    A row of -1 is none: a place between two tokens.
    """
    without = dict.fromkeys(problem.spec.packed_inputs)
    if problem.op in ATTENTIONS:
        offsets = np.asarray(inputs["cu_seqlens"])
        lengths = np.diff(offsets)
        qkv = _rows(inputs["qkv"])
        if inputs.get("token_index") is not None:
            yield from _plain_spread({**inputs, **without}, inputs["token_index"].reshape(-1), offsets, qkv)
            return
        for length in sorted({int(length) for length in lengths} - {0}):
            rows = offsets[:-1][lengths == length][:, None] + np.arange(length)
            places = {name: inputs[name][:length] for name in ("cos", "sin") if inputs.get(name) is not None}
            yield rows.reshape(-1), {**inputs, **without, "qkv": qkv[rows], **places}
        return
    count = inputs["row_count"]
    rows = np.arange(problem.capacity if count is None else int(count))
    given = {**inputs, **without}
    if problem.op == "FusedGemmRotary":  # a sequence, each row with its own row of the tables
        places = np.asarray(inputs["places"]).reshape(-1)[rows]
        if problem.attribute("places_in") == "batch":
            places = places % max(1, problem.sizes["C"])
        tables = {name: inputs[name][places] for name in ("cos", "sin")}
        yield rows, {**given, **tables, "x": _rows(inputs["x"])[rows][None]}
        return
    if problem.op == "EmbedLayerNorm":
        places = inputs["token_index"].reshape(-1)[rows]
        if given["position_table"] is not None and given["position_ids"] is None:
            given["position_ids"] = np.arange(inputs["ids"].size).reshape(inputs["ids"].shape) % problem.sizes["S"]
        for name in ("ids", "token_type_ids", "position_ids"):
            given[name] = None if given[name] is None else given[name].reshape(-1)[places][None]
    else:
        for name in ("x", "residual", *ROW_SCALES):
            if given.get(name) is not None:
                given[name] = _rows(given[name])[rows]
        for name in ROW_SCALES.values():
            if given.get(name) is not None:
                given[name] = given[name].reshape(-1)[rows]
    yield rows, given


def _plain_spread(
    given: dict[str, Any], index: np.ndarray, offsets: np.ndarray, qkv: np.ndarray
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray | None]]]:
    """Sequence by sequence as padded batches of one, whose masks hide the gaps."""
    for begin, end in itertools.pairwise(offsets.tolist()):
        if begin == end:
            continue
        own = index[begin:end] - index[begin]
        rows = np.full(own[-1] + 1, -1)
        rows[own] = np.arange(begin, end)
        there = (rows >= 0)[None]
        places = {name: given[name][: len(rows)] for name in ("cos", "sin") if given.get(name) is not None}
        padded = np.where(there[..., None], qkv[rows][None], np.zeros((), qkv.dtype))
        mask = None if there.all() else there.astype(np.int64)
        yield rows, {**given, "mask": mask, "qkv": padded, **places}


def real_rows(problem: Problem, output: np.ndarray, which: int) -> np.ndarray:
    """Of an output what the op promises: all of it, or of packed rows [rows, ...] the real ones."""
    if problem.packed is None or problem.op in PACKING_OPS:
        return output
    return _rows(output)[: sum(lengths_of(problem, which))]


def _rows(array: np.ndarray) -> np.ndarray:
    """[..., H] as [rows, H], of no elements, too."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
