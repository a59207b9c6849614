"""Following one element of a tensor up to what it is made of, for every size and place at once.

A tensor is taken as a function from places to expressions. Operators that move elements change the places, those that
compute element by element combine expressions, and a Shape gives polynomials of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from ..nodes import DEFAULT_DOMAINS, NoMatch, node_name, producer
from ..shapes import Dim, monomial
from . import poly
from .expr import INDEX_TYPES, Apply, Expr, Number, Read, attributes_of, constant, value_of
from .poly import ONE, ZERO, Poly
from .simplify import simplified

if TYPE_CHECKING:
    from ..graph import FusionGraph

_DEEPEST = 90
_LONGEST_SHAPE = 64  # numbers in a tensor that is read as a shape
_BITS_OF_A_SIZE = 20  # sizes are taken to be below 2**20 where a product of them could overflow its type

Places = tuple[Poly, ...]
Rule = Callable[["Elements", gs.Node, int, Places], Expr]
ShapeRule = Callable[["Elements", gs.Node, int], list[Poly]]


class Elements:
    """Elements of one graph's tensors. Everything raises NoMatch with the node at which it ends."""

    def __init__(self, graph: FusionGraph) -> None:
        self._graph = graph
        self.inputs = {id(t): t for t in graph.gs.inputs}
        self._shapes: dict[int, list[Poly]] = {}
        self._found: dict[tuple[str, int, Places], Expr | NoMatch] = {}
        self._asked: dict[int, gs.Tensor] = {}  # held, so that no other tensor gets its id
        self._stop: gs.Tensor | None = None
        self._nonempty: frozenset[str] = frozenset()
        self._depth = 0

    def generic(self, tensor: gs.Tensor, stop: gs.Tensor | None = None) -> tuple[Places, Expr]:
        """Places along every axis and the element there. `stop` counts as an input of the model."""
        # An input counts as one anyway, and what was found without `stop` holds.
        self._stop = None if stop is None or self._is_input(stop) else stop
        try:
            shape = self.shape(tensor)
            names = [*(f"i{n}" for n in range(len(shape) - 4)), *"bhqk"[-len(shape) :]]
            places = tuple(map(poly.place, names[-len(shape) :] if shape else [], shape))
            return places, self.element(tensor, places)
        finally:
            self._stop = None

    def suppose(self, dims: Sequence[Dim]) -> None:
        """Take the sizes in these axes to be 1 or more: something is to be shown of elements along them."""
        names = frozenset(name for dim in dims if (factors := monomial(dim)) is not None for name in factors[1])
        if names != self._nonempty:
            self._nonempty = names
            self._shapes.clear()
            self._found.clear()

    def _is_input(self, tensor: gs.Tensor) -> bool:
        return id(tensor) in self.inputs and producer(tensor) is None

    def constant(self, tensor: gs.Tensor) -> np.ndarray | None:
        return self._graph.constants.value(tensor)

    # ---- shapes

    def shape(self, tensor: gs.Tensor) -> list[Poly]:
        """The sizes of the axes."""
        self._asked[id(tensor)] = tensor
        if id(tensor) not in self._shapes:
            self._shapes[id(tensor)] = self._deeper(tensor, lambda: self._find_shape(tensor))
        return self._shapes[id(tensor)]

    def _find_shape(self, tensor: gs.Tensor) -> list[Poly]:
        if isinstance(tensor, gs.Constant):
            return [poly.number(n) for n in tensor.shape]
        node = producer(tensor)
        if id(tensor) not in self.inputs and node is not None and node.domain in DEFAULT_DOMAINS:
            found = self.constant(tensor)
            if found is not None:
                return [poly.number(n) for n in found.shape]
            rule = SHAPES.get(node.op)
            if rule is not None:
                return rule(self, node, _output(node, tensor))
        return self._declared(tensor)

    def _declared(self, tensor: gs.Tensor) -> list[Poly]:
        """Of inputs, and of what is no index arithmetic, the shape that inference found."""
        if tensor.shape is None:
            raise NoMatch(producer(tensor) or tensor.name, f"the shape of '{tensor.name}' is not known")
        sizes = []
        for axis, dim in enumerate(tensor.shape):
            if dim is None and id(tensor) in self.inputs:
                dim = f"{tensor.name}_axis_{axis}"
            if id(tensor) in self.inputs and isinstance(dim, str):
                sizes.append(self._size(dim))
                continue
            factors = monomial(dim)
            if factors is None:
                raise NoMatch(producer(tensor) or tensor.name, f"an axis of '{tensor.name}' is {dim or 'not known'}")
            sizes.append(poly.product([poly.number(factors[0]), *map(self._size, factors[1])]))
        return sizes

    def _size(self, name: str) -> Poly:
        return poly.size(name, empty=name not in self._nonempty)

    def vector(self, tensor: gs.Tensor, node: gs.Node) -> list[Poly]:
        """The whole numbers in a tensor of one axis, or none."""
        shape = self.shape(tensor)
        if len(shape) > 1 or (shape and (shape[0].constant is None or shape[0].constant > _LONGEST_SHAPE)):
            raise NoMatch(node, f"'{tensor.name}' holds {shape} numbers", wanted="a few")
        places = [(poly.number(i),) for i in range(shape[0].constant)] if shape else [()]
        return [self.number(self.element(tensor, place), node, tensor) for place in places]

    def numbers(self, tensor: gs.Tensor, node: gs.Node) -> list[int]:
        """The constant whole numbers in a tensor of one axis, or none."""
        found = self.constant(tensor)
        if found is None or found.dtype not in INDEX_TYPES:
            raise NoMatch(node, f"'{tensor.name}' is computed", wanted="constant whole numbers")
        return [int(n) for n in found.reshape(-1)]

    def number(self, expr: Expr, node: gs.Node, tensor: gs.Tensor) -> Poly:
        """The expression as index arithmetic."""
        if not isinstance(expr, Number):
            raise NoMatch(node, f"'{tensor.name}' depends on more than sizes and places")
        return expr.poly

    # ---- elements

    def element(self, tensor: gs.Tensor, places: Places) -> Expr:
        """The element at `places`."""
        key = ("" if self._stop is None else self._stop.name, id(tensor), places)
        if key not in self._found:
            self._asked[id(tensor)] = tensor
            try:
                self._found[key] = self._deeper(tensor, lambda: self._find(tensor, places))
            except NoMatch as miss:
                self._found[key] = miss
        found = self._found[key]
        if isinstance(found, NoMatch):
            raise found
        return found

    def _find(self, tensor: gs.Tensor, places: Places) -> Expr:
        node = producer(tensor)
        if tensor is self._stop or self._is_input(tensor):
            if tensor.dtype is None:
                raise NoMatch(tensor.name, f"the type of '{tensor.name}' is not known")
            return Read(tensor.name, places, np.dtype(tensor.dtype), tensor)
        found = self.constant(tensor)
        if found is not None:
            return self._of_constant(tensor, found, places)
        if node is None or isinstance(tensor, gs.Constant):
            raise NoMatch(tensor.name, f"'{tensor.name}' is a weight", wanted="a function of the inputs alone")
        rule = RULES.get(node.op) if node.domain in DEFAULT_DOMAINS else None
        if rule is None:
            raise NoMatch(node, f"'{tensor.name}' comes from {node.op}, which is not followed")
        return rule(self, node, _output(node, tensor), places)

    def _of_constant(self, tensor: gs.Tensor, array: np.ndarray, places: Places) -> Expr:
        if array.size == 0:
            raise NoMatch(tensor.name, f"'{tensor.name}' has no elements")
        for axis, place in enumerate(places):
            if place.constant is not None:
                if not -array.shape[axis] <= place.constant < array.shape[axis]:
                    raise NoMatch(tensor.name, f"'{tensor.name}' has no element {place} on axis {axis}")
                array = array.take([place.constant], axis)
        first = array.reshape(-1)[0]
        if array.tobytes() == np.full_like(array, first).tobytes():
            return constant(first)
        if array.dtype in INDEX_TYPES and (found := _counting(array, places)) is not None:
            return Number(found, array.dtype)
        node = producer(tensor) or (tensor.outputs[0] if tensor.outputs else tensor.name)
        raise NoMatch(node, f"the constant '{tensor.name}' differs from place to place")

    def spread(self, tensor: gs.Tensor, places: Places) -> Expr:
        """The element of a tensor that is broadcast."""
        shape = self.shape(tensor)
        own = places[len(places) - len(shape) :]
        return self.element(tensor, tuple(ZERO if n == ONE else p for n, p in zip(shape, own, strict=True)))

    def broadcast(self, shapes: Sequence[list[Poly]], node: gs.Node) -> list[Poly]:
        """The shape that tensors have together. Sizes that may differ are refused: one of them may be 1."""
        rank = max(map(len, shapes))
        together = [ONE] * rank
        for shape in shapes:
            for axis, extent in enumerate(shape, rank - len(shape)):
                if together[axis] == ONE or (extent != ONE and poly.one_size(together[axis], extent)):
                    together[axis] = extent
                elif extent not in (ONE, together[axis]):
                    raise NoMatch(node, f"broadcasts sizes {together[axis]} and {extent}, which may differ")
        return together

    def apply(self, node: gs.Node, args: Sequence[Expr | None], dtype: np.dtype) -> Expr:
        """An element-wise node on elements: computed where they are constant, decided where sizes and places say it."""
        values = [value_of(arg) for arg in args]
        if all(value is not None or arg is None for value, arg in zip(values, args, strict=True)):
            try:
                return constant(self._graph.constants.run(node, values)[0].reshape(()))
            except ValueError as error:
                raise NoMatch(node, f"cannot be computed: {error}") from error
        return self.checked(node, simplified(Apply(node.op, attributes_of(node), tuple(args), dtype, node)))

    def checked(self, node: gs.Node, made: Expr) -> Expr:
        """The expression, where index arithmetic does not leave its type."""
        if isinstance(made, Number) and not _fits(made):
            raise NoMatch(node, f"{made.poly!r} may be more than {made.dtype} holds")
        return made

    def _deeper(self, tensor: gs.Tensor, work: Callable):
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise NoMatch(
                    producer(tensor) or tensor.name, f"more than {_DEEPEST} operators lead to '{tensor.name}'"
                )
            return work()
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            node = producer(tensor)
            what = node_name(node) if node is not None else tensor.name
            raise NoMatch(node or tensor.name, f"{what} is not as ONNX has it ({error})") from error
        finally:
            self._depth -= 1


def _output(node: gs.Node, tensor: gs.Tensor) -> int:
    return next(i for i, output in enumerate(node.outputs) if output is tensor)


def _counting(array: np.ndarray, places: Places) -> Poly | None:
    """start + step * place + ... for every axis, where that is what the array holds."""
    grid = np.full(array.shape, int(array.reshape(-1)[0]), np.int64)
    total = poly.number(int(array.reshape(-1)[0]))
    for axis, place in enumerate(places):
        if array.shape[axis] > 1:
            line = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)[:, 0].astype(np.int64)
            step = int(line[1] - line[0])
            shape = [1] * array.ndim
            shape[axis] = -1
            grid = grid + (np.arange(array.shape[axis]) * step).reshape(shape)
            total = total + poly.number(step) * place
    return total if np.array_equal(grid, array) else None


def _fits(found: Number) -> bool:
    bits = np.iinfo(found.dtype).bits - 2
    return all(abs(n).bit_length() + _BITS_OF_A_SIZE * len(atoms) <= bits for atoms, n in found.poly.terms.items())


# Filled by `moves` and `pointwise`: how to find an element of each operator's output, and its shape.
RULES: dict[str, Rule] = {}
SHAPES: dict[str, ShapeRule] = {}
