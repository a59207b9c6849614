"""The data of a problem: two sets of inputs, made from its seed."""

from __future__ import annotations

import math
import zlib

import ml_dtypes
import numpy as np

from bertfuse.graph_rewrite.dialect.quantized import FLOAT8, INT8, LARGEST, NUMPY
from bertfuse.graph_rewrite.spec import TensorSpec

from . import packed
from .problem import Problem

FLOATS = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_IN_8_BITS = {"int8": NUMPY[INT8], "float8e4m3fn": NUMPY[FLOAT8]}
_ACTIVATIONS = ("x", "qkv", "residual")
_BELOW = {"ids": "V", "token_type_ids": "T", "position_ids": "P"}  # the axis symbol that an index stays below


def dtype_of(problem: Problem, tensor: TensorSpec) -> np.dtype:
    if tensor.dtype == "Q":
        return _IN_8_BITS[problem.writes]
    return {"I": np.dtype(problem.index), "C": np.dtype(np.int32), "S": np.dtype(np.float32)}.get(
        tensor.dtype, FLOATS[problem.dtype]
    )


def inputs(problem: Problem, which: int = 0) -> dict[str, np.ndarray | None]:
    """The op's inputs in its order, None for absent ones; `which` 0 and 1 are sets that share nothing."""
    found: dict[str, np.ndarray | None] = {}
    for tensor in problem.spec.inputs:
        if not problem.has(tensor):
            found[tensor.name] = None
            continue
        rng = np.random.Generator(np.random.SFC64([problem.seed, which, zlib.crc32(tensor.name.encode())]))
        if tensor.dtype == "C":
            found[tensor.name] = packed.counts(problem, tensor.name, which, rng)
            continue
        if tensor.of_quantized_form:
            found[tensor.name] = _of_quantized_form(problem, tensor, rng)
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
    elif tensor.name in ("gamma", "q_gamma", "k_gamma"):
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


def _of_quantized_form(problem: Problem, tensor: TensorSpec, rng: np.random.Generator) -> np.ndarray:
    """What says how results are written in 8 bits: some lie beyond the ends."""
    shape = problem.shape(tensor)
    if tensor.dtype == "Q":
        return np.zeros(shape, dtype_of(problem, tensor))
    if tensor.name == "y_smooth":
        return np.exp(rng.uniform(-1, 1, shape)).astype(np.float32)
    largest = LARGEST[INT8 if problem.writes == "int8" else FLOAT8]
    return np.asarray(rng.uniform(0.3, 6) / largest, np.float32)


def _disturb(kind: str, values: np.ndarray, rng: np.random.Generator) -> None:
    if kind == "large":
        values *= np.float32(rng.choice([4, 10, 30]))
    elif kind == "small":
        values *= np.float32(2.0 ** -rng.integers(6, 13))
    elif kind == "offset":
        values += np.float32(rng.choice([-20, 3, 50]))
    elif kind == "zeros":
        values[rng.random(values.shape[0]) < 0.7] = 0
    elif kind in ("outliers", "infinite"):
        places = rng.integers(0, values.size, max(1, min(64, values.size // 1000)))
        signs = rng.choice(np.float32([-1, 1]), places.size)
        values.reshape(-1)[places] = signs * np.float32(np.inf if kind == "infinite" else 300)


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
