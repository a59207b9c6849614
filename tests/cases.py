"""Inputs for every op, made from its description: shared by the op tests, the GPU tests and the benchmark."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.spec import OpSpec, TensorSpec

FLOATS = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

ATTENTIONS = ("FusedAttention", "FusedAttentionVariant")
# What an index input may hold: below the size of that axis symbol, or below a number.
_BELOW = {"tokens": 100, "ids": "V", "token_type_ids": "T", "position_ids": "P", "mask": 2}


@dataclass(frozen=True)
class Case:
    """One op with inputs (None: absent) in the op's order and attributes. `error_scale` widens the tolerance."""

    op: str
    label: str
    inputs: Mapping[str, np.ndarray | None]
    attributes: Mapping[str, Any]
    dtype: str = "float32"
    error_scale: float = 1.0

    def __str__(self) -> str:
        return f"{self.op}-{self.dtype}-{self.label}"

    @property
    def spec(self) -> OpSpec:
        return OPS[self.op]


@dataclass(frozen=True)
class Shape:
    """Sizes of the axis symbols, the leading axes behind "...", and attributes."""

    label: str
    sizes: Mapping[str, int]
    leading: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


def shape_of(tensor: TensorSpec, shape: Shape) -> tuple[int, ...]:
    """The shape of one tensor of an op at these sizes."""
    named = tuple(axis.size(shape.sizes, shape.attributes) for axis in tensor.trailing)
    return (shape.leading if tensor.leading else ()) + named


def _fill(tensor: TensorSpec, shape: Shape, dtype: str, index_dtype: str, gain: float, rng: np.random.Generator):
    size = shape_of(tensor, shape)
    if tensor.dtype == "I":
        below = _BELOW[tensor.name]
        values = rng.integers(0, max(1, shape.sizes[below] if isinstance(below, str) else below), size)
        return values.astype(index_dtype)
    values = rng.standard_normal(size)
    if tensor.name == "weight":
        values /= math.sqrt(max(1, size[-1]))  # so that a product has the scale of its input
    elif tensor.name in ("gamma", "q_gamma", "k_gamma", "product_gamma"):
        values = 1 + 0.2 * values
    elif tensor.name == "frequencies":
        values = 10.0 ** rng.uniform(-4, 1, size)
    elif tensor.name in ("cos", "sin"):
        # Of the same angles for both: a hundredth of a turn for each place, times a power for each pair.
        angles = np.outer(np.arange(size[0]), 0.8 ** np.arange(size[1])) * math.pi / 50
        values = getattr(np, tensor.name)(angles)
    elif tensor.name == "positions":
        values *= 0.5
    elif tensor.name in ("x", "qkv", "residual"):
        values *= gain
    return values.astype(np.float32).astype(np.float32 if tensor.dtype == "S" else FLOATS[dtype])


def make_case(
    op: str,
    shape: Shape,
    *,
    dtype: str = "float32",
    index_dtype: str = "int64",
    absent: tuple[str, ...] = (),
    gain: float = 1.0,
    error_scale: float = 1.0,
) -> Case:
    """Random inputs of that shape, the same every time. `gain` multiplies the activations (not weights or tables)."""
    spec = OPS[op]
    label = "-".join((shape.label, *(f"no_{name}" for name in absent), *(("int32",) if index_dtype == "int32" else ())))
    rng = np.random.default_rng(zlib.crc32(f"{op} {label}".encode()))
    inputs = {
        tensor.name: None
        if tensor.by_pass or tensor.name in absent
        else _fill(tensor, shape, dtype, index_dtype, gain, rng)
        for tensor in spec.inputs
    }
    return Case(op, label, inputs, dict(shape.attributes), dtype, error_scale)


def absences(op: str) -> list[tuple[str, ...]]:
    """Every set of optional inputs that may be left out."""
    names = OPS[op].optional_inputs
    subsets = itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(len(names) + 1))
    return [
        absent
        for absent in subsets
        if not any(tensor.needs in absent and tensor.name not in absent for tensor in OPS[op].inputs if tensor.needs)
    ]


# (label, leading axes, K, N): one row, primes that no vector width divides, MiniLM's and BERT's widths, many tokens.
_GEMMS = (
    ("one_row", (1,), 16, 32),
    ("no_leading_axis", (), 24, 40),
    ("narrow", (10,), 20, 1),
    ("primes", (2, 13), 31, 101),
    ("four_axes", (2, 3, 5), 7, 37),
    ("minilm", (2, 16), 384, 1536),
    ("bert", (1, 8), 3072, 768),
    ("rows_4096", (4096,), 64, 96),
    ("empty_batch", (0, 7), 16, 32),
    ("empty_k", (3,), 0, 16),
)

# (label, B, S, H, num_heads)
_ATTENTIONS = (
    ("one_token", 1, 1, 8, 2),
    ("head_of_one", 2, 5, 3, 3),
    ("primes", 3, 37, 7 * 11, 7),
    ("one_head", 2, 33, 96, 1),
    ("minilm", 2, 128, 384, 12),
    ("bert", 1, 129, 768, 12),
    ("head_of_128", 1, 70, 256, 2),
    ("tokens_4096", 1, 4096, 32, 1),
    ("empty_batch", 0, 9, 16, 2),
    ("empty_sequence", 2, 0, 16, 2),
)

# (label, B, S, size of a head, num_heads, kv_num_heads, rotated pairs, columns of the bias and rows of the positions,
# window left and right)
_VARIANTS = (
    ("one_token", 1, 1, 4, 2, 1, 2, 1, -1, -1),
    ("primes", 3, 37, 11, 6, 3, 5, 13, 7, 3),
    ("causal", 2, 33, 32, 4, 4, 16, 64, -1, 0),
    ("minilm", 2, 128, 32, 12, 12, 8, 64, -1, -1),
    ("bert", 1, 129, 64, 12, 2, 32, 40, 20, 20),
    ("own_key", 2, 40, 8, 3, 1, 1, 3, 0, 0),
    ("window_of_1024", 1, 1500, 16, 2, 1, 8, 2000, 40, 0),
    ("empty_batch", 0, 9, 8, 2, 1, 4, 5, 3, -1),
    ("empty_sequence", 2, 0, 8, 2, 2, 4, 5, -1, 3),
)


# (label, B, S, K, size of a head, num_heads, kv_num_heads, rotated pairs)
_ROTARY = (
    ("one_token", 1, 1, 16, 4, 2, 1, 2),
    ("primes", 3, 37, 31, 11, 6, 3, 5),
    ("no_pair", 2, 5, 8, 4, 2, 2, 0),
    ("minilm", 2, 128, 384, 32, 12, 12, 8),
    ("bert", 1, 129, 768, 64, 12, 2, 32),
    ("tokens_4096", 1, 4096, 64, 16, 2, 1, 8),
    ("empty_batch", 0, 7, 16, 8, 2, 1, 4),
    ("empty_sequence", 2, 0, 16, 8, 2, 2, 4),
    ("empty_k", 1, 3, 0, 8, 2, 2, 4),
)


# (label, leading axes of the tokens, places, pairs)
_TABLES = (
    ("one_token", (1,), 1, 2),
    ("no_leading_axis", (), 7, 16),
    ("primes", (3,), 37, 5),
    ("no_pair", (2,), 5, 0),
    ("bert", (1,), 129, 32),
    ("tokens_8192", (1,), 8192, 24),
    ("empty_batch", (0,), 7, 4),
    ("empty_sequence", (2,), 0, 4),
)


def _rotary(label, batch, sequence, depth, size, heads, kv_heads, pairs) -> Shape:
    columns = (heads + 2 * kv_heads) * size
    sizes = dict(B=batch, S=sequence, K=depth, N=columns, C=sequence, R=pairs)
    return Shape(label, sizes, (), {"num_heads": heads, "kv_num_heads": kv_heads})


def _variant(label, batch, sequence, size, heads, kv_heads, pairs, columns, left, right) -> Shape:
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads, "scale": 1 / math.sqrt(size)}
    attributes |= {"window_left": left, "window_right": right, "bias_left": columns // 2}
    attributes |= {"positions_left": columns // 3, "hidden_queries": "alike" if columns % 2 else "as_others"}
    bias_heads = 1 if label in ("causal", "own_key") else heads
    return Shape(
        label,
        dict(B=batch, S=sequence, C=sequence, D=size, R=pairs, J=1, G=bias_heads, L=columns, P=2, M=columns),
        (),
        attributes,
    )


def shapes(op: str) -> list[Shape]:
    """The shapes that an op is tested with."""
    if op == "EmbedLayerNorm":
        sizes = (("one_token", 1, 1, 1, 8, 1), ("primes", 3, 13, 101, 37, 17), ("bert", 2, 128, 3000, 768, 512))
        empty = ("empty_batch", 0, 5, 10, 16, 8)
        return [Shape(name, dict(B=b, S=s, V=v, H=h, P=p, T=2)) for name, b, s, v, h, p in (*sizes, empty)]
    if op == "FusedAttentionVariant":
        return [_variant(*row) for row in _VARIANTS]
    if op == "FusedGemmRotary":
        return [_rotary(*row) for row in _ROTARY]
    if op == "RotaryTables":
        return [Shape(label, dict(C=places, R=pairs), leading) for label, leading, places, pairs in _TABLES]
    if op in ("AddQKVBias", "FusedAttention"):
        result = []
        for name, b, s, h, heads in _ATTENTIONS:
            attributes: dict[str, Any] = {"num_heads": heads}
            if op == "FusedAttention":
                attributes["scale"] = 1 / math.sqrt(h // heads)
            result.append(Shape(name, dict(B=b, S=s, H=h), (), attributes))
        return result
    return [Shape(name, dict(K=k, N=n, J=1), leading) for name, leading, k, n in _GEMMS]


def _attribute_choices(op: str) -> Iterator[dict[str, Any]]:
    names = {attr.name: attr for attr in OPS[op].attributes}
    if "approximate" in names:
        yield {"approximate": "tanh"}
    if "hidden_queries" in names:
        yield {"hidden_queries": "as_others"}
        yield {"hidden_queries": "alike", "window_left": -1, "window_right": -1}
    if "pairs" in names:
        yield {"pairs": "neighbours"}
    if "angle" in names:
        yield {"angle": "quotient"}
        yield {"scaling": 1.1386}
    if "activation" in names:
        yield from ({"activation": activation} for activation in names["activation"].choices)
    if "norm" in names:
        yield {"norm": "rms"}
    if "gamma_offset" in names:
        yield {"gamma_offset": 1.0}
    if "epsilon" in names:
        yield {"epsilon": 1e-5}


def _edge_cases(op: str, dtype: str) -> Iterator[Case]:
    base = next(shape for shape in shapes(op) if shape.label == "primes")
    for attributes in _attribute_choices(op):
        name = "_".join(map(str, itertools.chain(*attributes.items())))
        shape = Shape(name, base.sizes, base.leading, {**base.attributes, **attributes})
        for absent in absences(op) if "norm" in attributes else [()]:  # with another norm other inputs are read
            yield make_case(op, shape, dtype=dtype, absent=absent)
    large = Shape("large", base.sizes, base.leading, base.attributes)
    # Scores a hundred times larger lose two digits before the softmax sees them.
    yield make_case(op, large, dtype=dtype, gain=10.0, error_scale=30.0 if op in ATTENTIONS else 10.0)
    if op in ATTENTIONS:
        shape = Shape("masked", {**base.sizes, "S": 300, "C": 300}, (), base.attributes)
        case = make_case(op, shape, dtype=dtype, index_dtype="int32")
        mask = case.inputs["mask"]
        assert mask is not None
        mask[0] = 0  # a row that sees nothing
        mask[1] = 0
        mask[1, -1] = 1  # only the last key, behind whole blocks of hidden ones
        mask[2, 7:] = 0  # padding
        yield case
    if op == "EmbedLayerNorm":
        case = make_case(op, Shape("negative_ids", base.sizes), dtype=dtype)
        ids = case.inputs["ids"]
        assert ids is not None
        ids -= base.sizes["V"]
        yield case


def cases(op: str, dtype: str = "float32") -> list[Case]:
    """Every case of one op in one dtype: all shapes, all sets of absent inputs, edges."""
    found = [make_case(op, shape, dtype=dtype) for shape in shapes(op)]
    if "product_gamma" in OPS[op].optional_inputs:  # with it another sum is normalised
        found += [make_case(op, shape, dtype=dtype, absent=("product_gamma",)) for shape in shapes(op)]
    base = next(shape for shape in shapes(op) if shape.label == "primes")
    found += [make_case(op, base, dtype=dtype, absent=absent) for absent in absences(op) if absent]
    if any(tensor.dtype == "I" for tensor in OPS[op].inputs):
        found.append(make_case(op, base, dtype=dtype, index_dtype="int32"))
    return found + list(_edge_cases(op, dtype))
