"""A random model while it is drawn: every node is run as it is added, on one set of inputs, so that most models run.

A Draw is one scope: the graph, the body of an If, a Loop or a Scan, or a local function. What operators need besides
their data (a tensor of some shape, an axis, a vector of given numbers) it finds among what there is, or makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .runtime import Bench, Kind, Refused, Value, element_of, kind_of_array

MOST_ELEMENTS = 6000  # of a tensor
SIZES = (0, 1, 2, 3, 5, 7)  # that named and unnamed axes are given
_LARGE = 1 << 40  # numbers beyond are not worked out from sizes
_BASE, _BASE_WEIGHTS = (1, 2, 3, 4, 5, 6, 7), (3, 6, 6, 3, 3, 2, 2)
_PLAIN_NAMES = ("batch", "sequence", "N", "M")
_ODD_NAMES = ("k<S", "2*batch", "axis_1", "batch + 1", "unnamed_axis_0", "a b", "Min(3, N)", "x", "-1", "7")
FLOATS = (np.float32, np.float32, np.float32, np.float64, np.float16)
INTS = (np.int64, np.int32)
NUMBERS = (np.float32, np.float32, np.int64, np.int32, np.float64, np.float16, np.uint8, np.int8, np.uint64)

Fill = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass
class Input:
    """An input of the model. `axes` are as declared, `keys` what each size is bound by: a number or a name.

    `fill` makes other values than `base`; None keeps to these.
    """

    name: str
    axes: tuple[int | str | None, ...]
    keys: tuple[int | str, ...]
    base: np.ndarray
    fill: Fill | None = None
    is_default: bool = False  # an initialiser of that name stands in for it where it is not fed


@dataclass
class Plan:
    """What the scopes of one model share.

    drawers  by operator, what adds a node of it
    vector   gives an int64 vector of these numbers, worked out from sizes; `scalar` one number
    """

    r: Random
    opset: int
    drawers: Mapping[str, Callable[[Draw, str], Any]]
    vector: Callable[[Draw, list[int]], str]
    scalar: Callable[[Draw, int], str]
    ir_version: int = 10
    inputs: list[Input] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)  # of each name in this run
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    domains: dict[str, int] = field(default_factory=dict)
    positive: bool = False  # no size may be 0: something is divided by one
    count: int = 0
    odd_names: bool = False

    def name(self, stem: str = "t") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.r.getrandbits(32))

    def axis_name(self, size: int, fresh: bool = False) -> str:
        """A name that has this size here: an old one or, if there are but a few, a new one."""
        known = [name for name, n in self.sizes.items() if n == size and not name.startswith("?")]
        names = [n for n in _PLAIN_NAMES if n not in self.sizes]
        if self.odd_names:
            names += [n for n in _ODD_NAMES if n not in self.sizes]
        if known and (not names or (not fresh and self.r.random() < 0.7)):
            return self.r.choice(known)
        name = self.r.choice(names) if names else f"d{len(self.sizes)}"
        self.sizes[name] = size
        return name


class Draw:
    """One scope. `form` is "graph", "body" or "function"."""

    def __init__(self, plan: Plan, form: str = "graph", parent: Draw | None = None) -> None:
        self.plan, self.form, self.parent = plan, form, parent
        self.r = plan.r
        self.opset = plan.opset
        self.nodes: list[onnx.NodeProto] = []
        self.own: dict[str, tuple[Kind, Value]] = {}
        self.initializers: list[onnx.TensorProto] = []
        self.constants: set[str] = set()  # initialisers and Constants
        self.recent: list[str] = []  # outputs of nodes, the newest last
        self.hidden: set[str] = set()  # tensors of a type without arrays, or parts of a group
        self.prefix, self.local = "t", None

    # ---- what there is

    def known(self) -> dict[str, tuple[Kind, Value]]:
        outer = self.parent.known() if self.form == "body" and self.parent is not None else {}
        return outer | self.own

    def value(self, name: str) -> Value:
        return self.typed(name)[1]

    def typed(self, name: str) -> tuple[Kind, Value]:
        if name in self.own:
            return self.own[name]
        if self.form == "body" and self.parent is not None:
            return self.parent.typed(name)
        raise KeyError(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.value(name).shape

    def rank(self, name: str) -> int:
        return self.value(name).ndim

    def dtype(self, name: str) -> np.dtype:
        return self.value(name).dtype

    def chance(self, p: float) -> bool:
        return self.r.random() < p

    def tensors(self, wanted: Callable[[np.ndarray], bool]) -> list[str]:
        return [n for n, (kind, v) in self.known().items() if kind.form == "tensor" and wanted(v)]

    # ---- nodes

    def fresh_name(self) -> str:
        if self.local is None:
            return self.plan.name(self.prefix)
        self.local += 1
        return f"{self.prefix}{self.local}"

    def node(
        self, op: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", keep: Sequence[int] = (), **attrs: Any
    ) -> Any:
        """Adds a node, run at once, and gives its output, or all of several. Attributes of None are left out.

        `keep` numbers the outputs that have a name where not all of them are to have one. Raises Refused.
        """
        names = [self.fresh_name() if not keep or i in keep else "" for i in range(outputs)]
        attrs = {name: value for name, value in attrs.items() if value is not None}
        inputs = list(inputs)
        while inputs and inputs[-1] == "":
            inputs.pop()
        if domain == "" and self.form == "graph" and self.chance(0.01):
            domain = "ai.onnx"
        empty = [name for name, value in attrs.items() if value == []]
        made = helper.make_node(op, inputs, names, domain=domain, **{n: v for n, v in attrs.items() if n not in empty})
        made.attribute.extend(onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS) for name in empty)
        made.name = self.r.choice(("", self.plan.name(op)))  # two of one name are refused
        self.add([made], [name for name in names if name])
        return names[0] if outputs == 1 else names

    def group(self, steps: Sequence[tuple[str, dict[str, Any]]], name: str) -> str:
        """A chain of unary nodes, of which only the last one's output has a type with arrays."""
        nodes = []
        for op, attrs in steps:
            made = helper.make_node(op, [name], [self.fresh_name()], **attrs)
            nodes.append(made)
            name = made.output[0]
        self.add(nodes, [name])
        return name

    def add(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> None:
        given = {name: self.typed(name) for node in nodes for name in free_names(node) if self._is_known(name)}
        for node in nodes:
            _check_cost(node, {name: value for name, (_, value) in given.items()})
        bench = Bench(self.opset, self.plan.ir_version, self.plan.domains)
        made = bench.run(nodes, given, outputs, self.plan.functions if any(map(_may_call, nodes)) else ())
        for _, value in made.values():
            check_small(value)
        self.own.update(made)
        self.recent += list(made)
        self.hidden |= {name for node in nodes for name in node.output if name and name not in made}
        self.nodes.extend(nodes)
        if all(node.op_type == "Constant" for node in nodes):
            self.constants.update(made)

    def _is_known(self, name: str) -> bool:
        return name in self.own or (self.form == "body" and self.parent is not None and self.parent._is_known(name))

    # ---- making tensors

    def constant(self, array: np.ndarray) -> str:
        """An initialiser or a Constant."""
        array = np.asarray(array)
        if self.form != "function" and self.chance(0.6):
            name = self.fresh_name()
            self.initializers.append(numpy_helper.from_array(array, name))
            self.own[name] = (kind_of_array(array), array)
            self.constants.add(name)
            return name
        name = self.node("Constant", [], **self._constant_attribute(array))
        self.constants.add(name)
        return name

    def _constant_attribute(self, array: np.ndarray) -> dict[str, Any]:
        if array.dtype == np.int64 and array.ndim <= 1 and array.size and self.chance(0.3):
            return {"value_int": int(array)} if array.ndim == 0 else {"value_ints": array.tolist()}
        if array.dtype == np.float32 and array.ndim <= 1 and array.size and self.chance(0.3):
            return {"value_float": float(array)} if array.ndim == 0 else {"value_floats": array.tolist()}
        if array.dtype == np.float32 and array.size and 1 <= array.ndim <= 2 and self.chance(0.05):
            flat = array.reshape(-1)
            (places,) = np.nonzero(flat)
            if len(places):
                values = numpy_helper.from_array(flat[places], "values")
                return {
                    "sparse_value": helper.make_sparse_tensor(
                        values, numpy_helper.from_array(places.astype(np.int64), "places"), list(array.shape)
                    )
                }
        return {"value": numpy_helper.from_array(array)}

    def input(self, array: np.ndarray, axes: Sequence[int | str | None] | None = None, fill: Fill | None = None) -> str:
        """An input of the model, here `array`; `axes` None draws whether each axis is named, fixed or unnamed."""
        array = np.asarray(array)
        if self.form == "function":
            return self.constant(array)
        if self.parent is not None:
            return self.parent.input(array, axes, fill)
        name = self.plan.name(self.r.choice(("x", "x", "ids", "mask")))
        axes = [self._axis(n) for n in array.shape] if axes is None else list(axes)
        if array.ndim == 2 and array.dtype.kind in "ib" and axes == [None, None]:
            axes[0] = self.plan.axis_name(array.shape[0])  # two such inputs are taken for ones of one shape
        keys = []
        for index, (axis, size) in enumerate(zip(axes, array.shape, strict=True)):
            key = f"?{name}.{index}" if axis is None else axis
            if isinstance(key, str):
                self.plan.sizes.setdefault(key, size)
            keys.append(key)
        default = array.dtype.kind in "if" and self.chance(0.02)
        self.plan.inputs.append(Input(name, tuple(axes), tuple(keys), array, fill, default))
        self.own[name] = (kind_of_array(array), array)
        return name

    def _axis(self, size: int) -> int | str | None:
        roll = self.r.random()
        if roll < 0.25:
            return size
        return None if roll < 0.35 else self.plan.axis_name(size)

    def size(self) -> int:
        """A size for a new axis, mostly one that there is."""
        if self.plan.sizes and self.chance(0.6):
            return self.r.choice(list(self.plan.sizes.values()))
        return 0 if self.chance(0.015) else self.r.choices(_BASE, _BASE_WEIGHTS)[0]

    def array(self, shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
        if math.prod(shape) > MOST_ELEMENTS:
            raise Refused("too large")
        return random_array(self.plan.rng(), tuple(shape), np.dtype(dtype))

    def new(self, shape: Sequence[int], dtype: Any = np.float32) -> str:
        """A new tensor of random values: an input, an initialiser or a Constant."""
        array = self.array(shape, dtype)
        if self.chance(0.65):
            return self.input(array, None, lambda rng, sizes: random_array(rng, sizes, array.dtype))
        return self.constant(array)

    def given(self, array: np.ndarray, fill: Fill | None = None, fixed: bool = False) -> str:
        """A tensor with this very value: mostly a constant, else an input, which `fill` gives others."""
        array = np.asarray(array)
        if self.chance(0.75):
            return self.constant(array)
        return self.input(array, list(array.shape) if fixed or self.chance(0.7) else None, fill)

    def tensor(
        self,
        dtypes: Iterable[Any] | None = None,
        rank: int | tuple[int, int] = (0, 4),
        wanted: Callable[[np.ndarray], bool] | None = None,
        old: float = 0.75,
    ) -> str:
        """One that there is, the newest most likely, or a new one."""
        dtypes = tuple(np.dtype(d) for d in (dtypes or FLOATS))
        low, high = (rank, rank) if isinstance(rank, int) else rank
        if self.chance(old):
            found = self.tensors(
                lambda v: v.dtype in dtypes and low <= v.ndim <= high and (wanted is None or wanted(v))
            )
            newest = [name for name in self.recent[-3:] if name in found and name not in self.constants]
            if newest and self.chance(0.8):
                return self.r.choice(newest)
            moving = [name for name in found if name not in self.constants]
            if moving and self.chance(0.9):
                return self.r.choice(moving)
            if found and self.chance(0.5):
                return self.r.choice(found)
        for _ in range(8):
            ranks = [n for n in (2, 3, 3, 1, 4, 0, 5) if low <= n <= high] or [low]
            shape = [self.size() for _ in range(self.r.choice(ranks))]
            if wanted is None or wanted(np.zeros(shape, dtypes[0])):
                return self.new(shape, self.r.choice(dtypes))
        raise Refused("no such tensor")

    def fitting(self, shape: Sequence[int], dtype: Any = np.float32) -> str:
        """A tensor of this shape."""
        found = self.tensors(lambda v: v.shape == tuple(shape) and v.dtype == np.dtype(dtype))
        return self.r.choice(found) if found and self.chance(0.5) else self.new(shape, dtype)

    def broadcasting(self, shape: Sequence[int], dtype: Any) -> str:
        """A tensor that is broadcast with one of this shape."""
        shape = list(shape)
        if self.chance(0.3):
            found = self.tensors(lambda v: v.dtype == np.dtype(dtype) and broadcasts(v.shape, shape))
            if found:
                return self.r.choice(found)
        if self.chance(0.4):
            shape = shape[self.r.randrange(len(shape) + 1) :]
        elif self.chance(0.15) and len(shape) < 4:
            shape = [self.size(), *shape]
        for index in range(len(shape)):
            if self.chance(0.25):
                shape[index] = 1
            elif shape[index] == 1 and self.chance(0.3):
                shape[index] = self.size()
        return self.new(shape, dtype)

    # ---- numbers of operators

    def axis(self, rank: int) -> int:
        """Of 0 to rank - 1, or counted from the end."""
        if not rank:
            raise Refused("no axis")
        axis = self.r.randrange(rank)
        return axis - rank if self.chance(0.4) else axis

    def axes(self, rank: int, least: int = 0, most: int | None = None) -> list[int]:
        chosen = self.r.sample(range(rank), self.r.randint(min(least, rank), min(rank, most or rank)))
        return [axis - rank if self.chance(0.3) else axis for axis in chosen]

    def maybe(self, value: Any, p: float = 0.5) -> Any:
        return value if self.chance(p) else None

    def ints(self, numbers: Sequence[int], fill: Fill | None = None) -> str:
        """An int64 vector of these numbers: constant, an input, or worked out from sizes of tensors."""
        if self.chance(0.45) or not numbers or max(map(abs, numbers)) > _LARGE:
            return self.given(np.array(numbers, np.int64), fill or shuffling(numbers), fixed=True)
        return self.plan.vector(self, list(numbers))

    def integer(self, number: int, fill: Fill | None = None, dtype: Any = np.int64) -> str:
        """A scalar of this value."""
        if self.chance(0.45) or abs(number) > _LARGE:
            return self.given(np.array(number, dtype), fill or near(number), fixed=True)
        name = self.plan.scalar(self, number)
        return name if np.dtype(dtype) == np.int64 else self.node("Cast", [name], to=element_of(dtype))


def broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "f":
        return np.asarray(rng.normal(size=shape), dtype)
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.kind == "O":
        words = np.array(["", "a", "b c", "a,b", "Kerze", "a b c"], object)
        return words[rng.integers(0, len(words), shape)] if shape else np.array(words[0], object)
    return np.asarray(rng.integers(-2 if dtype.kind == "i" else 0, 5, shape), dtype)


def shuffling(numbers: Sequence[int]) -> Fill:
    """Other vectors that often do as well where `numbers` do: reordered, or one of them another."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        made = np.resize(np.array(numbers, np.int64), shape)
        if made.size and rng.random() < 0.5:
            return rng.permutation(made)
        if made.size:
            made.flat[rng.integers(made.size)] = rng.choice((0, 1, 2, 3, 5, 7, -1))
        return made

    return fill


def near(number: float) -> Fill:
    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, number + rng.integers(-2, 3))

    return fill


_SIZED = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "Pad": 1, "CenterCropPad": 1, "AffineGrid": 1, "OneHot": 1}


def _check_cost(node: onnx.NodeProto, given: Mapping[str, Value]) -> None:
    """Raises Refused where a few numbers make a tensor of gigabytes: before it is made."""
    if node.op_type == "Range" and node.domain in ("", "ai.onnx"):
        start, limit, delta = (float(given[name].reshape(-1)[0]) for name in node.input)
        if not delta or not abs((limit - start) / delta) < MOST_ELEMENTS:
            raise Refused("too large")
    at = _SIZED.get(node.op_type)
    if at is not None and len(node.input) > at and isinstance(given.get(node.input[at]), np.ndarray):
        numbers = given[node.input[at]].reshape(-1).astype(float)
        most = math.prod(1 + abs(n) if node.op_type == "Pad" else max(1.0, abs(n)) for n in numbers)
        if not most <= MOST_ELEMENTS:
            raise Refused("too large")


def check_small(value: Value) -> None:
    arrays = value if isinstance(value, list) else [value]
    if not all(array is None or isinstance(array, np.ndarray) for array in arrays):
        raise Refused("no array")  # a sparse tensor
    if sum(array.size for array in arrays if array is not None) > MOST_ELEMENTS:
        raise Refused("too large")


def _may_call(node: onnx.NodeProto) -> bool:
    """Whether local functions may be in it."""
    return node.domain not in ("", "ai.onnx") or any(a.HasField("g") for a in node.attribute)


def free_names(node: onnx.NodeProto) -> list[str]:
    """What a node reads, its bodies included, without what these define themselves; each once."""
    found = dict.fromkeys(name for name in node.input if name)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.update(dict.fromkeys(_free_in(attribute.g)))
    return list(found)


def _free_in(graph: onnx.GraphProto) -> list[str]:
    defined = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    found: dict[str, None] = {}
    for node in graph.node:
        found.update(dict.fromkeys(name for name in free_names(node) if name not in defined))
        defined.update(node.output)
    found.update(dict.fromkeys(value.name for value in graph.output if value.name not in defined))
    return list(found)
