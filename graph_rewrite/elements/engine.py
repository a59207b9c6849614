"""Following one element of a tensor up to what it is made of, for every size and place at once.

A tensor is taken as a function from places to expressions. Operators that move elements change the places, those that
compute element by element combine expressions, and a Shape gives polynomials of sizes. The shape of every tensor comes
from rules of our own, one for each operator (shape_rules.py): one without a rule gives tensors of unknown shape.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_graphsurgeon as gs

from ..nodes import DEFAULT_DOMAINS, DIALECT, NoMatch, node_name, producer
from ..shapes import Dim
from ..spec import DOMAIN
from . import poly
from .expr import INDEX_TYPES, Apply, Expr, Number, Read, attributes_of, constant, value_of
from .poly import ONE, ZERO, Atom, Poly
from .simplify import may_be_compared_wrongly, simplified

if TYPE_CHECKING:
    from ..constants import Constants

_DEEPEST = 90
_LONGEST_SHAPE = 64  # numbers in a tensor that is read as a shape
_LARGEST_SIZE = (1 << 31) - 1
_LARGEST_FACTOR = 1 << 30  # in a size that depends on others
_BITS_OF_A_SIZE = 20  # sizes are taken to be below 2**20 where a product of them could overflow its type

Places = tuple[Poly, ...]
Rule = Callable[["Elements", gs.Node, int, Places], Expr]
ShapeRule = Callable[["Elements", gs.Node, int], list[Poly]]


def _is_plausible(size: Poly) -> bool:
    """Whether there can be such a tensor; of larger numbers ONNX Runtime computes others than ONNX says."""
    if size.constant is not None:
        return size.constant <= _LARGEST_SIZE
    return all(abs(factor) <= _LARGEST_FACTOR for factor in size.terms.values())


class Elements:
    """Elements and shapes of one graph's tensors. Everything raises NoMatch with the node at which it ends.

    inputs     the model's own, their axes as numbers and names: equal names are equal sizes
    nonempty   the names of axes that have one element at least; any other may have none
    believe_names  without it no two axes of inputs are taken to be of one size
    """

    def __init__(
        self,
        inputs: Sequence[gs.Tensor],
        constants: Constants,
        nonempty: Iterable[str] = (),
        believe_names: bool = True,
    ) -> None:
        self.inputs = {id(t): t for t in inputs}
        self._believe_names = believe_names
        self._constants = constants
        self.nonempty = frozenset(nonempty)
        self._shapes: dict[int, list[Poly] | NoMatch] = {}
        self._sizes: dict[str, Poly] = {}  # by the text that stands for them in a tensor's shape
        self._found: dict[tuple[frozenset[int], bool, int, Places], Expr | NoMatch] = {}
        self._asked: dict[int, gs.Tensor] = {}  # held, so that no other tensor gets its id
        self._stops: frozenset[int] = frozenset()
        self.symbolic = False
        self.looked_up: dict[Atom, Expr] = {}  # of places that `symbolic` expressions hold: what they are
        self._numbers: dict[int, int] = {}
        self._unknown = 0
        self._depth = 0

    def assuming(self, name: str, least: int = 1, most: int | None = None) -> Elements:
        """The same graph where the axis `name` of its inputs is of that many elements."""
        other = Elements(list(self.inputs.values()), self._constants, self.nonempty, self._believe_names)
        highs = () if most is None else (poly.number(most),)
        atom = Atom(("size", name, least, most), name, (poly.number(least),), highs)
        other._sizes[name] = poly.of(atom)
        return other

    def generic(self, tensor: gs.Tensor, stop: gs.Tensor | None = None, symbolic: bool = False) -> tuple[Places, Expr]:
        """Places along every axis and the element there; `stop` and `symbolic` as for `at`."""
        shape = self.shape(tensor)
        names = [*(f"i{n}" for n in range(len(shape) - 4)), *"bhqk"[-len(shape) :]]
        places = tuple(map(poly.place, names[-len(shape) :] if shape else [], shape))
        return places, self.at(tensor, places, stop, symbolic)

    def at(
        self,
        tensor: gs.Tensor,
        places: Places,
        stop: gs.Tensor | Sequence[gs.Tensor] | None = None,
        symbolic: bool = False,
    ) -> Expr:
        """The element at `places`. `stop`, one tensor or several, counts as inputs of the model.

        With `symbolic` a constant that differs from place to place is read, too, at a place that `looked_up` may say
        more of, and a triangle is a condition on places.
        """
        stops = () if stop is None else (stop,) if isinstance(stop, gs.Tensor) else stop
        # An input counts as one anyway, and what was found without `stop` holds.
        self._stops, self.symbolic = frozenset(id(t) for t in stops if not self._is_input(t)), symbolic
        self._asked.update((id(t), t) for t in stops)
        try:
            return self.element(tensor, places)
        finally:
            self._stops, self.symbolic = frozenset(), False

    def _is_input(self, tensor: gs.Tensor) -> bool:
        return id(tensor) in self.inputs and producer(tensor) is None

    def constant(self, tensor: gs.Tensor) -> np.ndarray | None:
        return self._constants.value(tensor)

    def number_of(self, tensor: gs.Tensor) -> int:
        """A number that no other tensor has; names may be shared."""
        self._asked[id(tensor)] = tensor
        return self._numbers.setdefault(id(tensor), len(self._numbers))

    # ---- shapes

    def infer(self, nodes: Iterable[gs.Node]) -> None:
        """Give every tensor of the nodes, which are in topological order, the shape that follows from the graph."""
        for tensor in self.inputs.values():
            with contextlib.suppress(NoMatch):
                self.shape(tensor)
        for node in nodes:
            for tensor in node.outputs:
                if id(tensor) not in self.inputs and not isinstance(tensor, gs.Constant):
                    tensor.shape = None
                    with contextlib.suppress(NoMatch):
                        tensor.shape = [self.dim(size) for size in self.shape(tensor)]

    def shape(self, tensor: gs.Tensor) -> list[Poly]:
        """The sizes of the axes."""
        if id(tensor) not in self._shapes:
            self._asked[id(tensor)] = tensor
            try:
                self._shapes[id(tensor)] = self._deeper(tensor, lambda: self._find_shape(tensor))
            except NoMatch as miss:
                self._shapes[id(tensor)] = miss
        found = self._shapes[id(tensor)]
        if isinstance(found, NoMatch):
            raise found
        return found

    def _find_shape(self, tensor: gs.Tensor) -> list[Poly]:
        if isinstance(tensor, gs.Constant):
            return [poly.number(n) for n in tensor.shape]
        node = producer(tensor)
        if id(tensor) not in self.inputs and node is not None:
            ours = f"{node.domain}::{node.op}" if node.domain in (DOMAIN, DIALECT) else ""
            rule = SHAPES.get(node.op if node.domain in DEFAULT_DOMAINS else ours)
            if rule is not None:
                sizes = rule(self, node, _output(node, tensor))
                return [n if _is_plausible(n) else self.unknown() for n in sizes]
            if (found := self.constant(tensor)) is not None:
                return [poly.number(n) for n in found.shape]
            if tensor.shape is None or not self._believe_names:
                raise NoMatch(node, f"what {node.op} gives is of no known shape")
        if tensor.shape is None:
            raise NoMatch(node or tensor.name, f"the shape of '{tensor.name}' is not known")
        if not self._believe_names:
            return [
                poly.number(dim) if isinstance(dim, int) else self.unknown(empty=dim not in self.nonempty)
                for dim in tensor.shape
            ]
        return [self.size(dim, tensor) for dim in tensor.shape]

    def size(self, dim: Dim, tensor: gs.Tensor) -> Poly:
        """The size that an axis of a tensor's `shape` stands for."""
        if isinstance(dim, int):
            return poly.number(dim)
        if dim is None:
            raise NoMatch(producer(tensor) or tensor.name, f"an axis of '{tensor.name}' is not known")
        if dim not in self._sizes:
            self._sizes[dim] = poly.size(dim, empty=dim not in self.nonempty)
        return self._sizes[dim]

    def dim(self, size: Poly) -> Dim:
        """The size as a tensor's `shape` has it: equal ones are equal sizes, and others may be equal all the same."""
        if size.constant is not None:
            return size.constant
        text = size.text(exact=True)
        return text if self._sizes.setdefault(text, size) == size else None

    def unknown(self, empty: bool = True) -> Poly:
        """A size of which nothing is known, or that it is not 0 where `empty` is False."""
        name = ""
        while not name or name in self._sizes:
            self._unknown += 1
            name = f"axis_{self._unknown}"
        self._sizes[name] = poly.of(Atom(("unknown", self._unknown), name, (ZERO if empty else ONE,)))
        return self._sizes[name]

    def evaluate(self, dim: Dim, sizes: dict[str, int]) -> int | None:
        """The number that an axis is where the model's own axes have these sizes; None where that leaves it open."""
        if dim is None or isinstance(dim, int):
            return dim
        return poly.evaluated(self._sizes[dim], sizes) if dim in self._sizes else None

    def vector(self, tensor: gs.Tensor, node: gs.Node) -> list[Poly]:
        """The whole numbers in a tensor of one axis, or none."""
        return [self._number_at(tensor, place, node) for place in self._places_of_vector(tensor, node)]

    def numbers_known(self, tensor: gs.Tensor, node: gs.Node) -> list[Poly | None]:
        """As `vector`, with None for those that are not known."""
        found: list[Poly | None] = []
        for place in self._places_of_vector(tensor, node):
            found.append(None)
            with contextlib.suppress(NoMatch):
                found[-1] = self._number_at(tensor, place, node)
        return found

    def _places_of_vector(self, tensor: gs.Tensor, node: gs.Node) -> list[Places]:
        shape = self.shape(tensor)
        if len(shape) > 1 or (shape and (shape[0].constant is None or shape[0].constant > _LONGEST_SHAPE)):
            raise NoMatch(node, f"'{tensor.name}' holds {shape} numbers", wanted="a few")
        return [(poly.number(i),) for i in range(shape[0].constant)] if shape else [()]

    def _number_at(self, tensor: gs.Tensor, place: Places, node: gs.Node) -> Poly:
        return self.number(self.element(tensor, place), node, tensor)

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
        key = (self._stops, self.symbolic, id(tensor), places)
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
        if id(tensor) in self._stops or self._is_input(tensor):
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
        if self.symbolic:
            return Read(tensor.name, places, array.dtype, tensor)
        node = producer(tensor) or (tensor.outputs[0] if tensor.outputs else tensor.name)
        raise NoMatch(node, f"the constant '{tensor.name}' differs from place to place")

    def spread(self, tensor: gs.Tensor, places: Places) -> Expr:
        """The element of a tensor that is broadcast, whose axes are 1 long or the result's (`check_broadcast`)."""
        shape = self.shape(tensor)
        own = places[len(places) - len(shape) :]
        return self.element(tensor, tuple(ZERO if n == ONE else p for n, p in zip(shape, own, strict=True)))

    def broadcast(self, shapes: Sequence[list[Poly]], node: gs.Node) -> list[Poly]:
        """The shape that tensors have together; an axis of two sizes that may differ, one of them 1, is not known.

        Raises NoMatch for sizes of which the model cannot run.
        """
        return [self._together(sizes, node) for sizes in by_axis(shapes)]

    def _together(self, sizes: list[Poly], node: gs.Node) -> Poly:
        found = [n for n in dict.fromkeys(sizes) if n != ONE]
        numbers = {n.constant for n in found if n.constant is not None}
        if len(numbers) > 1:
            raise NoMatch(node, f"broadcasts sizes {' and '.join(map(repr, found))}")
        if numbers:  # whatever the others are: with a number other than 1 they are it, or 1
            return next(n for n in found if n.constant is not None)
        if len(found) < 2:
            return found[0] if found else ONE
        if not all(poly.one_size(a, b) for a, b in itertools.pairwise(found)):
            return self.unknown()
        # All are equal, or the model does not run: the size itself, not the smaller of it and a table's rows.
        return min(found, key=lambda size: sum(bool(atom.highs) for atom in size.atoms))

    def check_broadcast(self, shapes: Sequence[list[Poly]], node: gs.Node) -> None:
        """Raise NoMatch where tensors that are broadcast have sizes that may differ: one of them may be 1."""
        for sizes in by_axis(shapes):
            found = [n for n in dict.fromkeys(sizes) if n != ONE]
            for one, other in itertools.pairwise(found):
                if not poly.one_size(one, other):
                    raise NoMatch(node, f"broadcasts sizes {one} and {other}, which may differ")

    def apply(self, node: gs.Node, args: Sequence[Expr | None], dtype: np.dtype) -> Expr:
        """An element-wise node on elements: computed where they are constant, decided where sizes and places say it."""
        made = Apply(node.op, attributes_of(node), tuple(args), dtype, node)
        if may_be_compared_wrongly(made):
            return made
        values = [value_of(arg) for arg in args]
        if all(value is not None or arg is None for value, arg in zip(values, args, strict=True)):
            try:
                return constant(self._constants.run(node, values)[0].reshape(()))
            except ValueError as error:
                raise NoMatch(node, f"cannot be computed: {error}") from error
        return self.checked(node, simplified(made))

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


def by_axis(shapes: Sequence[list[Poly]]) -> list[list[Poly]]:
    """For each axis of tensors that are broadcast the sizes along it, 1 where one has no such axis."""
    rank = max(map(len, shapes))
    padded = [[ONE] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [list(sizes) for sizes in zip(*padded, strict=True)]


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


# How to find an element of each operator's output (`moves`, `picks`, `pointwise`), and its shape (`shape_rules`).
RULES: dict[str, Rule] = {}
SHAPES: dict[str, ShapeRule] = {}
