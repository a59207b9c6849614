"""The data of a problem: two sets of inputs, made from its seed."""

from __future__ import annotations

import math
import zlib

import ml_dtypes
import numpy as np

from bertfuse.graph_rewrite.dialect.quantized import INT8, LARGEST, quantized_rows
from bertfuse.graph_rewrite.spec import TensorSpec

from . import packed
from .problem import Problem
from .quantized import ELEMENT, TYPES

FLOATS = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_ACTIVATIONS = ("x", "qkv", "residual")
_BELOW = {"ids": "V", "token_type_ids": "T", "position_ids": "P"}  # the axis symbol that an index stays below


def type_of(problem: Problem, tensor: TensorSpec) -> str:
    """As the op's description calls it."""
    kinds = {"I": problem.index, "C": "int32", "S": "float32", "Q": problem.writes or "int8", "W": problem.weights}
    return kinds.get(tensor.dtype) or problem.dtype


def dtype_of(problem: Problem, tensor: TensorSpec) -> np.dtype:
    name = type_of(problem, tensor)
    return TYPES.get(name) or FLOATS.get(name) or np.dtype(name)


def inputs(problem: Problem, which: int = 0) -> dict[str, np.ndarray | None]:
    """The op's inputs in its order, None for absent ones; `which` 0 and 1 are sets that share nothing."""
    found: dict[str, np.ndarray | None] = {}
    for tensor in problem.spec.inputs:
        if not problem.has(tensor):
            found[tensor.name] = None
            continue
        rng = np.random.Generator(np.random.SFC64([problem.seed, which, zlib.crc32(tensor.name.encode())]))
        if tensor.dtype == "C" and not tensor.of_quantized_form:
            found[tensor.name] = packed.counts(problem, tensor.name, which, rng)
            continue
        if tensor.of_quantized_form or (tensor.dtype == "W" and problem.weights):
            _of_quantized_form(problem, tensor, rng, found)
            continue
        make = _mask if tensor.name == "mask" else _indices if tensor.dtype == "I" else _floats
        found[tensor.name] = make(problem, tensor, rng)
    packed.spoil(problem, found, which, np.random.default_rng([problem.seed, which]))
    return found


def _floats(problem: Problem, tensor: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    shape = problem.shape(tensor)
    values = rng.standard_normal(shape, dtype=np.float32)
    if tensor.name == "weight":
        values *= 1 / math.sqrt(max(1, shape[-1]))  # a product has the scale of its input
    elif tensor.name in ("gamma", "q_gamma", "k_gamma", "product_gamma"):
        values = 1 + np.float32(0.2) * values
    elif tensor.name == "frequencies":  # of bases from 1 to 1e6, or their inverses
        base = 10.0 ** rng.uniform(0, 6)
        values = (base ** (rng.choice([-1, 1]) * np.arange(shape[0]) / max(1, shape[0]))).astype(np.float32)
    elif tensor.name in ("cos", "sin"):  # of one angle for each pair, growing with the place
        angles = np.outer(np.arange(shape[0]), 0.8 ** np.arange(shape[1])) * (1 + problem.seed % 7) / 9
        values = getattr(np, tensor.name)(angles)
    if tensor.name in _ACTIVATIONS and values.size:
        _disturb(problem.values, values, rng)
    return values.astype(dtype_of(problem, tensor))


def _of_quantized_form(
    problem: Problem, tensor: TensorSpec, rng: np.random.Generator, found: dict[str, np.ndarray | None]
) -> None:
    """Adds one tensor, made of those before it. Where numbers have a given scale, some lie beyond the ends."""
    name, shape = tensor.name, problem.shape(tensor)
    if name in ("x_smooth", "y_smooth", "residual_factor"):
        found[name] = np.exp(rng.uniform(-1, 1, shape)).astype(np.float32)
    elif name == "y_tensor_scale":
        found[name] = np.asarray(rng.uniform(0.3, 6) / LARGEST[ELEMENT[problem.writes]], np.float32)
    elif name == "y_zero_point":  # read beside one scale alone, of integers
        given = [tensor for tensor in problem.spec.inputs if tensor.name == "y_tensor_scale" and problem.has(tensor)]
        moved = problem.writes == "int8" and bool(given)
        zero = rng.integers(-128, 128) if moved and rng.random() < 0.7 else 0
        found[name] = np.asarray(zero, dtype_of(problem, tensor))
    elif name == "weight":
        numbers = rng.standard_normal(shape, np.float32) * np.float32(50 if problem.weights == "int8" else 100)
        found[name] = _saturated(numbers, problem.weights)
    elif name == "weight_scale":  # a product has about the scale of its input; one scale may be tiny or 0
        scales = rng.uniform(0.1, 1.1, shape) / 64 / math.sqrt(max(1, problem.sizes["K"]))
        if scales.size:
            scales[rng.integers(scales.size)] = rng.choice([0.0, 1e-41, 1e-3])
        found[name] = scales.astype(np.float32)
    elif name == "x_scale":
        x = np.abs(found["x"].astype(np.float32))
        largest = x.max(initial=0, where=np.isfinite(x)) / LARGEST[ELEMENT[problem.weights]]
        found[name] = np.asarray(max(largest, 1e-12) * rng.uniform(0.3, 1.2), np.float32)
    elif name == "x_zero":
        found[name] = np.asarray(rng.choice([0, 255, rng.integers(256)]), np.int32)
    elif name == "x_quantized":
        found[name], scales = quantized_rows(found["x"], TYPES[problem.weights])
        found["x_row_scale"] = np.where(np.isfinite(scales[..., 0]), scales[..., 0], np.nan).astype(np.float32)
        found["x"][...] = np.nan  # which is not read
    elif name == "residual_quantized":
        given = found["residual"]
        rows = rng.standard_normal(shape, np.float32) if given is None else given
        numbers, scales = quantized_rows(rows, dtype_of(problem, tensor))
        finite = np.isfinite(scales)
        found[name] = np.where(finite, numbers, np.zeros_like(numbers))
        found["residual_row_scale"] = np.where(finite, scales, 1)[..., 0].astype(np.float32)
        if given is not None:
            given[...] = np.nan  # which is not read
    elif name == "x_compensation":  # of rows that stand for what they did, some cut off at the ends
        zero = int(rng.integers(-128, 128))
        found["x_quantized"] = _saturated(found["x_quantized"].astype(np.float32) + zero, "int8")
        found[name] = (zero * found["weight"].sum(axis=-1, dtype=np.int64)).astype(np.int32)


def _saturated(numbers: np.ndarray, to: str) -> np.ndarray:
    largest = LARGEST[ELEMENT[to]]
    if ELEMENT[to] == INT8:
        numbers = np.rint(numbers)
    return np.clip(numbers, -largest - (to == "int8"), largest).astype(TYPES[to])


def _disturb(kind: str, values: np.ndarray, rng: np.random.Generator) -> None:
    if kind == "large":
        values *= np.float32(rng.choice([4, 10, 30]))
    elif kind == "small":
        values *= np.float32(2.0 ** -rng.integers(6, 13))
    elif kind == "offset":
        values += np.float32(rng.choice([-20, 3, 50]))
    elif kind == "rows":
        _make_odd(values.reshape(-1, values.shape[-1]), rng)
    elif kind == "zeros":
        values[rng.random(values.shape[0]) < 0.7] = 0
    elif kind in ("outliers", "infinite"):
        places = rng.integers(0, values.size, max(1, min(64, values.size // 1000)))
        signs = rng.choice(np.float32([-1, 1]), places.size)
        values.reshape(-1)[places] = signs * np.float32(np.inf if kind == "infinite" else 300)


def _make_odd(rows: np.ndarray, rng: np.random.Generator) -> None:
    """Some rows become 0, all alike, tiny, denormal or large, or get a number that is not finite."""
    for kind in rng.choice(["zero", "alike", "tiny", "denormal", "large", "nan", "inf"], 5):
        row = rows[rng.integers(len(rows))]
        if kind in ("nan", "inf"):
            row[rng.integers(len(row))] = np.nan if kind == "nan" else -np.inf
        elif kind == "alike":  # all integers of it are -127 or 127, and mostly of one sign
            row[:] = np.where(rng.random(len(row)) < 0.9, 1.5, -1.5)
        elif kind == "zero":
            row[:] = 0
        else:
            row *= np.float32({"tiny": 1e-6, "denormal": 1e-40, "large": 50}[kind])


def _indices(problem: Problem, tensor: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    shape = problem.shape(tensor)
    below = problem.sizes[_BELOW[tensor.name]] if tensor.name in _BELOW else 1 << 20
    if not below:
        return np.zeros(shape, problem.index)
    lowest = -below if rng.random() < 0.2 else 0  # negative indices count from the end, as in ONNX's Gather
    values = rng.integers(lowest, below, shape)
    if values.size:
        values.reshape(-1)[rng.integers(0, values.size)] = below - 1
    return values.astype(problem.index)


def _mask(problem: Problem, tensor: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    batch, sequence = problem.shape(tensor)
    seen = np.ones((batch, sequence), bool)
    places, lengths = (
        np.arange(sequence),
        rng.integers(1, sequence + 1, (batch, 1)) if sequence else np.zeros((batch, 1)),
    )
    if problem.mask in ("random", "wide"):
        seen = rng.random((batch, sequence)) < rng.choice([0.03, 0.5, 0.95])
    elif problem.mask == "right":
        seen = places < lengths
    elif problem.mask == "left":
        seen = places >= sequence - lengths
    elif problem.mask == "holes":  # whole blocks of keys hidden, between blocks that are seen
        seen = (places // rng.choice([8, 16, 32, 64, 128]) + rng.integers(0, 2, (batch, 1))) % 2 == 0
    elif problem.mask in ("last", "first"):
        seen = np.broadcast_to(places == (sequence - 1 if problem.mask == "last" else 0), seen.shape)
    elif problem.mask == "empty":  # rows that see nothing attend to all keys alike
        seen = rng.random((batch, 1)) * np.ones(sequence) < 0.5
    values = seen.astype(problem.index)
    if problem.mask == "wide":  # whatever is not 0 shows a key
        others = [2, -1, 255, 256, 65536, *([1 << 32] if problem.index == "int64" else [])]
        values *= rng.choice(np.array(others, problem.index), values.shape)
    return values
