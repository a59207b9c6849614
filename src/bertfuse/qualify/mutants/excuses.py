"""Why a fused model may differ from the original after all: documented differences, and originals that say nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from itertools import count

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from bertfuse.graph_rewrite import OPS
from bertfuse.graph_rewrite.dialect.reference import MASKED_SCORE
from bertfuse.graph_rewrite.proof.key_range import KeyRange
from bertfuse.graph_rewrite.spec import DOMAIN

from .inputs import Feed
from .sessions import inner, run, session

# How many times what moves when the original's weights move by a rounding of their type a fused model may differ: a
# graph that amplifies a rounding says nothing of the fusion. Half precision rounds every intermediate result, in the
# original as in the fused model, and needs no sixteenfold margin: both were 0.03 to 0.05 from the float64 result where
# weights moved by a rounding made 0.02.
_MARGIN = {"float16": 4.0, "bfloat16": 4.0}
_MARGIN_OF_SINGLES = 16.0
_ROUNDINGS = {
    onnx.TensorProto.FLOAT: 2.0**-23,
    onnx.TensorProto.DOUBLE: 2.0**-23,
    onnx.TensorProto.FLOAT16: 2.0**-11,
    onnx.TensorProto.BFLOAT16: 2.0**-8,
}


def fails_optimised(model: onnx.ModelProto, feed: Feed) -> bool:
    """Whether the model fails on inputs with which it runs where ONNX Runtime does not optimise it.

    Of a Concat with an empty input it does not compare the other dimensions; what the result has too much of is
    whatever was in that memory. An index from there is out of range in one run and not in another. (Values that differ
    are no excuse: ONNX Runtime's own fusions may be what is wrong, in the same place as ours.)
    """
    try:
        runner = session(model, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    except Exception:
        return True
    return run(runner, feed) is None


def differs_from_declared_sizes(model: onnx.ModelProto, feed: Feed) -> bool:
    """Whether axes of inputs that have one name are fed of two sizes; of [B, S] without names, too."""
    sizes: dict[str, int] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        nameless = len(dims) == 2 and not any(d.dim_param or d.HasField("dim_value") for d in dims)
        fed = feed[value.name].shape if value.name in feed else ()
        for axis, (dim, size) in enumerate(zip(dims, fed, strict=False)):
            name = f" {axis}" if nameless else dim.dim_param
            if name and sizes.setdefault(name, size) != size:
                return True
    return False


def lost_of_scores(model: onnx.ModelProto, fused_model: onnx.ModelProto, feed: Feed) -> np.ndarray:
    """[B]: by how much a row's scores are rounded, of which the mask is more than 1 and lifts keys.

    The original adds them to so large a number; beside 1e9 nothing of them is left. The fused model keeps them.
    """
    known = {node.name for node in model.graph.node}
    reduces = [n for n in fused_model.graph.node if n.op_type in ("ReduceMax", "ReduceMin") and n.name not in known]
    divisors = {node.input[1] for node in model.graph.node if node.op_type == "Div"}
    factors = [1.0, 1.0]
    for tensor in model.graph.initializer if reduces else ():
        if np.prod(tensor.dims) == 1 and (value := numpy_helper.to_array(tensor)).dtype.kind == "f" and value.any():
            number = abs(float(value.reshape(())))
            factors.append(1 / number if tensor.name in divisors else number)
    largest = math.prod(sorted(factors)[-2:])  # of the mask, and of the scores with it
    lost = np.zeros(1)
    for mask in (inner(fused_model, {node.input[0] for node in reduces}, feed) or {}).values():
        if mask.size and lost.size in (1, len(mask)):
            mask = mask.reshape(len(mask), -1).astype(np.float64)
            numbers, lifts = np.abs(mask).max(axis=1), (mask.max(axis=1) > 1) | (mask.min(axis=1) < 0)
            lost = np.maximum(lost, np.where(lifts, numbers * largest * _ROUNDINGS[onnx.TensorProto.FLOAT], 0.0))
    return lost


def by_row(expected: np.ndarray, lost: np.ndarray) -> np.ndarray | float:
    """What an output may differ by where weights are wrong by `lost` [B]."""
    if expected.ndim == 0 or len(expected) != len(lost) or expected.dtype.kind != "f":
        return 0.0
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
    return (_MARGIN_OF_SINGLES * scale * lost).reshape(-1, *[1] * (expected.ndim - 1))


def rows_without_keys(model: onnx.ModelProto, fused_model: onnx.ModelProto, feed: Feed) -> np.ndarray | None:
    """[B] of bool: rows in which what some fused attention is given for a mask hides every key. None without one.

    With a window these are the rows in which some token, of padding mostly, has none that it sees.
    """
    index = OPS["FusedAttention"].input_index("mask")
    masks = {
        node.input[index]
        for node in fused_model.graph.node
        if node.domain == DOMAIN and node.op_type == "FusedAttention" and len(node.input) > index and node.input[index]
    }
    # Attention behind AddQKVBias is spelled out, its mask a condition of a Where that the model did not have.
    known = {name for node in model.graph.node for name in node.output}
    least = {t.name for t in fused_model.graph.initializer if not t.dims and numpy_helper.to_array(t) == MASKED_SCORE}
    for node in fused_model.graph.node:
        if node.op_type == "Where" and node.input[2] in least and node.output[0] not in known:
            masks.add(node.input[0])
    windows = _windows(fused_model)
    behind = _without_keys_in_windows(fused_model, windows, feed) if windows else None
    found = inner(fused_model, masks, feed) if masks else None
    if found is None or len({len(mask) for mask in found.values()}) != 1:
        return behind
    hidden = np.any([~(mask != 0).any(axis=tuple(range(1, mask.ndim))) for mask in found.values()], axis=0)
    return hidden if behind is None or len(behind) != len(hidden) else hidden | behind


def _windows(fused_model: onnx.ModelProto) -> list[tuple[str, KeyRange]]:
    """The masks that attention variants take, each with the keys that a token sees there."""
    index = OPS["FusedAttentionVariant"].input_index("mask")
    found = []
    for node in fused_model.graph.node:
        if node.op_type == "FusedAttentionVariant" and len(node.input) > index and node.input[index]:
            sides = {a.name: None if a.i < 0 else a.i for a in node.attribute}
            found.append((node.input[index], KeyRange(sides["window_left"], sides["window_right"])))
    return found


def _without_keys_in_windows(fused_model, windows: list[tuple[str, KeyRange]], feed: Feed) -> np.ndarray | None:
    masks = inner(fused_model, {name for name, _ in windows}, feed)
    if masks is None or len({len(mask) for mask in masks.values()}) != 1:
        return None
    seen = [(masks[name] != 0)[:, None, :] & keys.seen(masks[name].shape[1])[None] for name, keys in windows]
    return np.any([~s.any(axis=2).all(axis=1) for s in seen], axis=0)


def wrapped_products(model: onnx.ModelProto, feed: Feed) -> np.ndarray:
    """[B] of bool: rows in which integers times each other, `mask[q] * mask[k]`, are beyond their type; [1] for all.

    Of those that come to 0, or to the other sign: 65536 times itself is 0 in int32. No other makes of a mask's numbers
    that show a key one that hides it.
    """
    nodes = [node for node in model.graph.node if node.op_type == "Mul" and len(node.input) == 2]
    constants = {tensor.name for tensor in model.graph.initializer}
    found = inner(model, {name for node in nodes for name in node.input} - constants, feed) or {}
    rows = np.zeros(1, bool)
    for node in nodes:
        a, b = (found.get(name, np.zeros(())) for name in node.input)
        if a.dtype.kind in "iu" and min(a.ndim, b.ndim) >= 2:
            wrapped = np.sign(a * b) != np.sign(a.astype(np.float64) * b.astype(np.float64))
            rows = either(rows, wrapped.any(axis=tuple(range(1, wrapped.ndim))))
    return rows


def either(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rows of one or the other; what is of another number of rows counts for all of them."""
    if len(a) == len(b):
        return a | b
    short, long = sorted((a, b), key=len)
    return long | short.any()


def without(arrays: list[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    """Without these rows of the batch; a row of an array may be several of the mask's (sequences cut in pieces)."""
    kept = []
    for a in arrays:
        fits = a.ndim > 0 and len(a) > 0 and len(rows) % len(a) == 0
        kept.append(a[~rows.reshape(len(a), -1).any(axis=1)] if fits else a)
    return kept


def moved_weights(model: onnx.ModelProto) -> Iterator[onnxruntime.InferenceSession]:
    """The model with every weight moved by about one rounding, each time another way, without end."""
    for seed in count():
        random = np.random.default_rng(seed)
        copy = deepcopy(model)
        for tensor in copy.graph.initializer:
            if tensor.data_type in _ROUNDINGS and np.prod(tensor.dims) >= 8:
                values = numpy_helper.to_array(tensor)
                factors = 1 + _ROUNDINGS[tensor.data_type] * random.choice([-2, -1, 1, 2], values.shape)
                tensor.CopyFrom(numpy_helper.from_array((values * factors).astype(values.dtype), tensor.name))
        yield session(copy)


def slack_of(moved, feed: Feed, expected: list[np.ndarray], rows: np.ndarray | None) -> list | None:
    """How far each output may be off, by how it moves with the weights.

    Infinitely where it is no longer the same kind of number, and in a row of which not one digit stays: what is left of
    h - h by rounding, brought to length 1, is anything, or NaN.
    """
    slack = [np.zeros(a.shape) for a in expected]
    for runner in moved:
        outputs = run(runner, feed)
        if outputs is None:
            return None
        outputs = outputs if rows is None else without(outputs, rows)
        for index, (a, b) in enumerate(zip(expected, outputs, strict=True)):
            if a.dtype.kind != "f":
                continue
            margin = _MARGIN.get(str(a.dtype), _MARGIN_OF_SINGLES)
            x, y = a.astype(np.float64), b.astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
                slack[index] = np.maximum(slack[index], margin * np.nan_to_num(gap, nan=np.inf, posinf=np.inf))
    return [_without_digits(a, more) for a, more in zip(expected, slack, strict=True)]


_ROW = 8  # numbers, at least: one or two that are nearly 0 say nothing of those beside them


def _without_digits(expected: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """The slack, infinite in each row (along the last axis) that may be off by as much as its largest number."""
    if expected.dtype.kind != "f" or expected.ndim == 0 or expected.shape[-1] < _ROW:
        return slack
    sizes = np.abs(expected.astype(np.float64)).max(axis=-1, keepdims=True, initial=0.0)
    most = slack.max(axis=-1, keepdims=True, initial=0.0)
    return np.where((most >= sizes) & (most > 0), np.inf, slack)
