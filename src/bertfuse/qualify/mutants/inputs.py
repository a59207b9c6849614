"""Inputs made to find what a fused model does differently: masks of every kind, edges of tables, lengths, batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

Feed = dict[str, np.ndarray]

_SAME_VALUES = ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand", "Slice")
_MOST_ELEMENTS = 1 << 22

# What a mask may hold. Those of 0 and 1 are what the model was made for; what comes after is what users feed all the
# same: counts, segment numbers, flags of other sizes.
MASKS = ("ones", "right", "left", "holes", "one key", "empty")
STRANGE_MASKS = ("twos", "segments", "counts", "negative", "large")
FRACTIONS = ("fractions", "nearly one", "tiny")


@dataclass(frozen=True)
class Input:
    """A graph input. `rows` is how many rows the smallest table has that it indexes, 0 where it indexes none."""

    name: str
    dtype: np.dtype
    shape: tuple[int | str | None, ...]
    rows: int = 0

    @property
    def is_mask(self) -> bool:
        return not self.rows and len(self.shape) >= 2 and (self.dtype.kind in "iub" or "mask" in self.name)


@dataclass
class Signature:
    """What a model takes, and the integers in it that could be lengths or ids."""

    inputs: list[Input]
    numbers: list[int] = field(default_factory=list)
    longest: int = 64


def signature(model: onnx.ModelProto) -> Signature:
    """Reads inputs, tables and numbers off the graph."""
    constants = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    made = []
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if value.name in constants or not tensor.elem_type:
            continue
        shape = tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param or f"{value.name}.{axis}"
            for axis, d in enumerate(tensor.shape.dim)
        )
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        made.append(Input(value.name, dtype, shape, _rows(value.name, users, constants)))
    looked_up = {node.input[0] for node in model.graph.node if node.op_type in ("Gather", "Slice") and node.input}
    tables = [constants[name].dims for name in looked_up if name in constants and len(constants[name].dims) == 2]
    longest = min((dims[0] for dims in tables if dims[0] > 8), default=64)
    numbers = sorted({n for t in constants.values() for n in _numbers(t)})
    return Signature(made, numbers, longest)


def _rows(name: str, users: dict[str, list[onnx.NodeProto]], constants: dict[str, onnx.TensorProto]) -> int:
    rows, stack, seen = 0, [name], set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in users.get(current, []):
            table = constants.get(node.input[0])
            if node.op_type == "Gather" and len(node.input) > 1 and node.input[1] == current and table is not None:
                if len(table.dims) == 2 and table.data_type in (1, 10, 11, 16):
                    rows = min(rows or 1 << 31, table.dims[0])
            elif node.op_type in _SAME_VALUES and node.input[0] == current:
                stack.extend(node.output)
    return rows


def _numbers(tensor: onnx.TensorProto) -> list[int]:
    if int(np.prod(tensor.dims)) > 64 or tensor.data_type == onnx.TensorProto.STRING:
        return []
    values = np.asarray(numpy_helper.to_array(tensor)).ravel()
    if values.dtype.kind not in "iuf":
        return []
    return [int(v) for v in values.tolist() if v == v and 2 <= abs(v) < 1 << 20]


def mask(kind: str, shape: Sequence[int], dtype: np.dtype, random: np.random.Generator) -> np.ndarray:
    """A mask [B, ..., S] of a kind named in MASKS, STRANGE_MASKS or, of floats only, FRACTIONS."""
    batch, length = shape[0], shape[-1]
    places = np.arange(length)[None, :]
    lengths = random.integers(1, length + 1, (batch, 1))
    values: np.ndarray = np.ones((batch, length))
    if kind == "right":
        values = places < lengths
    elif kind == "left":
        values = places >= length - lengths
    elif kind in ("holes", "empty"):
        values = random.random((batch, length)) < random.choice([0.2, 0.5, 0.8])
        values[:, random.integers(length)] = True
        if kind == "empty":
            values[random.integers(batch)] = False
    elif kind == "one key":
        values = places == random.integers(0, length, (batch, 1))
    elif kind == "twos":
        values = random.integers(0, 2, (batch, length)) * 2
    elif kind == "segments":
        values = np.where(places < lengths, 1 + places // max(1, length // 3), 0)
    elif kind == "counts":
        values = random.integers(0, 6, (batch, length))
    elif kind == "negative":
        values = random.integers(-1, 2, (batch, length))
    elif kind == "large":
        largest = np.iinfo(dtype).max if dtype.kind in "iu" else min(1 << 40, int(np.finfo(dtype).max))
        few = np.array([0, 1, min(256, largest), min(65536, largest), largest], dtype)
        values = random.choice(few, (batch, length))
    elif kind == "fractions":
        values = random.choice([0.0, 0.3, 0.5, 0.7, 1.0], (batch, length))
    elif kind == "nearly one":
        values = random.choice([0.0, 0.9999, 1.0], (batch, length))
    elif kind == "tiny":
        values = random.choice([0.0, 1e-3, 1e-30, 1.0], (batch, length))
    values = np.asarray(values).copy()
    if kind != "empty" and not any((values != 0).all(axis=1)):
        values[:, 0] = np.where((values != 0).any(axis=1), values[:, 0], 1)
    if dtype.kind == "u":
        values = np.abs(values)
    return np.broadcast_to(values.reshape(batch, *[1] * (len(shape) - 2), length), shape).astype(dtype)


def feed(inputs: Signature, kind: str, sizes: dict[str, int], random: np.random.Generator) -> Feed:
    """Inputs of one kind of mask at the given sizes, by symbol. Raises KeyError for a symbol without a size."""
    made: Feed = {}
    for given in inputs.inputs:
        shape = [d if isinstance(d, int) else sizes[d] for d in given.shape]
        if given.dtype.kind == "f" and not given.is_mask:
            array = random.standard_normal(shape) * random.choice([1.0, 1.0, 4.0])
        elif given.rows:
            array = _ids(given, shape, inputs.numbers, random)
        elif given.is_mask and min(shape, default=0) > 0:
            array = mask(_possible(kind, given.dtype), shape, given.dtype, random)
        elif len(shape) == 1:
            array = random.integers(1, max(sizes.values(), default=1) + 1, shape)  # lengths
        else:
            array = random.integers(0, 2, shape)
        made[given.name] = np.ascontiguousarray(array).astype(given.dtype)
    return made


def _possible(kind: str, dtype: np.dtype) -> str:
    if dtype.kind == "f":
        return kind
    if kind in FRACTIONS:
        return "holes"
    return "holes" if dtype.kind == "b" and kind in STRANGE_MASKS else kind


def _ids(given: Input, shape: list[int], numbers: list[int], random: np.random.Generator) -> np.ndarray:
    """Random rows of the table; its edges, and numbers that the graph holds, more often than they would come."""
    ids = random.integers(0, given.rows, shape)
    special = [0, 1, given.rows - 1, *(n for n in numbers if 0 <= n < given.rows)]
    chance = random.choice([0.0, 0.3, 0.9])
    ids = np.where(random.random(shape) < chance, random.choice(special, shape), ids)
    if random.random() < 0.3 and shape and shape[-1]:  # padding, as a tokenizer writes it
        ids[..., shape[-1] // 2 + 1 :] = random.choice([0, 1])
    return ids


def sizes_of(inputs: Signature, batch: int, length: int) -> dict[str, int]:
    """A size for each symbol: the first axis of an input is a batch, all others lengths."""
    sizes: dict[str, int] = {}
    for given in inputs.inputs:
        for axis, dim in enumerate(given.shape):
            if isinstance(dim, str):
                sizes.setdefault(dim, batch if axis == 0 else length)
    return sizes


def feeds(inputs: Signature, random: np.random.Generator, count: int = 14, strange: bool = True) -> dict[str, Feed]:
    """`count` inputs by name, "holes 3x7 #0": every kind of mask, small and long, odd and even, single and batched."""
    kinds = [*MASKS, *(STRANGE_MASKS if strange else ())]
    if strange and any(i.dtype.kind == "f" and i.is_mask for i in inputs.inputs):
        kinds += FRACTIONS
    kinds += list(random.choice(["holes", "right", "left"], max(0, count - len(kinds))))
    near = [n + d for n in inputs.numbers if 2 <= n <= inputs.longest for d in (-1, 0, 1)]
    lengths = [2, 3, 5, 7, 8, 9, 12, 16, 20, 21, 33, *near]
    made: dict[str, Feed] = {}
    for index, kind in enumerate(kinds):
        length = int(random.choice(lengths))
        batch = int(random.choice([1, 2, 2, 3, 4, 5, 6]))
        if index == 0:
            length = inputs.longest
        elif kind == "holes" and "holes" in " ".join(made) and random.random() < 0.3:
            batch, length = 1, 1
        length = min(length, inputs.longest)
        if batch * length * length > _MOST_ELEMENTS:
            batch = 1
        made[f"{kind} {batch}x{length} #{index}"] = feed(inputs, str(kind), sizes_of(inputs, batch, length), random)
    if strange:
        made |= _of_other_sizes(inputs, random)
    return made


def _of_other_sizes(inputs: Signature, random: np.random.Generator) -> dict[str, Feed]:
    """Inputs whose axes of one name are of two sizes, 1 and more: ONNX Runtime takes them, and they broadcast."""
    made: dict[str, Feed] = {}
    length = min(7, inputs.longest)
    for kind, axis, sizes, other in (
        ("one row of", 0, (3, length), 1),
        ("one token of", 1, (3, length), 1),
        ("one row beside", 0, (1, length), 3),
        ("one token beside", 1, (3, 1), length),
        ("a row and a column of", 1, (1, length), 1),
    ):
        names = [i.shape[axis] for i in inputs.inputs if len(i.shape) > axis]
        shared = [
            i for i in inputs.inputs
            if len(i.shape) > axis and isinstance(i.shape[axis], str) and names.count(i.shape[axis]) > 1
        ]  # fmt: skip
        if not shared or length < 2:
            continue
        one = shared[int(random.integers(len(shared)))]
        given = feed(inputs, "holes", sizes_of(inputs, *sizes), random)
        own = sizes_of(inputs, *sizes) | {one.shape[axis]: other}
        if kind.startswith("a row"):
            own |= {one.shape[0]: 4}
        given[one.name] = feed(inputs, "holes", own, random)[one.name]
        made[f"{kind} '{one.name}' {sizes[0]}x{sizes[1]} #{len(made)}"] = given
    return made
