"""What proofs rest on: index arithmetic, elements followed through operators, and functions of one value."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertfuse.graph_rewrite.constants import Runner
from bertfuse.graph_rewrite.elements import poly
from bertfuse.graph_rewrite.elements.expr import Expr, Number, Read, value_of
from bertfuse.graph_rewrite.elements.poly import ONE, ZERO, Poly
from bertfuse.graph_rewrite.graph import FusionGraph
from bertfuse.graph_rewrite.io import split
from bertfuse.graph_rewrite.nodes import NoMatch
from bertfuse.graph_rewrite.normalize import clutter
from bertfuse.graph_rewrite.proof.rule import HIDDEN, OVERRIDES, VISIBLE, classify, rule
from bertfuse.graph_rewrite.proof.scalar import Range, ranges
from tests.graph_rewrite.graphs import Builder, run

_SETTINGS = settings(
    deadline=None,
    max_examples=100,
    derandomize=True,  # the same on every machine: what fails here fails there
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
B, S = poly.size("B"), poly.size("S")
b, k = poly.place("b", B), poly.place("k", S)
SIZES = [(1, 1), (1, 4), (3, 1), (2, 3), (3, 2), (2, 7)]


def at(number: Poly, sizes: dict[str, int]) -> int:
    """The polynomial with a number for each atom."""
    return sum(factor * int(np.prod([_atom(a, sizes) for a in atoms])) for atoms, factor in number.terms.items())


def _atom(atom: poly.Atom, sizes: dict[str, int]) -> int:
    if atom.name in sizes:
        return sizes[atom.name]
    assert atom.name.startswith("min("), atom.name
    return min(at(high, sizes) for high in atom.highs)


@st.composite
def polynomials(draw: st.DrawFn) -> Poly:
    atoms = st.lists(st.sampled_from([B, S, b, k]), max_size=2)
    terms = draw(st.lists(st.tuples(st.integers(-3, 3), atoms), min_size=1, max_size=4))
    return sum((poly.number(n) * poly.product(factors) for n, factors in terms), ZERO)


def everywhere() -> list[dict[str, int]]:
    names = {"b": next(iter(b.atoms)).name, "k": next(iter(k.atoms)).name}
    return [{"B": n, "S": m, names["b"]: i, names["k"]: j} for n, m in SIZES for i in range(n) for j in range(m)]


@_SETTINGS
@given(polynomials(), polynomials())
def test_what_is_shown_of_polynomials_holds(p: Poly, q: Poly) -> None:
    values = [(at(p, sizes), at(q, sizes)) for sizes in everywhere()]
    if poly.nonnegative(p):
        assert all(x >= 0 for x, _ in values), p
    divided = poly.divided(p, q)
    if divided is not None:
        parts = [tuple(at(part, sizes) for part in divided) for sizes in everywhere()]
        assert all(divmod(x, y) == part for (x, y), part in zip(values, parts, strict=True)), (p, q, divided)
    assert [at(poly.minimum(p, q), sizes) for sizes in everywhere()] == [min(pair) for pair in values]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (B * S - ONE - b * S - k, True),  # flattened places stay inside
        (S * S - S, True),
        (poly.minimum(S, poly.number(40)) - ONE, True),
        (S - poly.minimum(S, poly.number(40)), True),
        (k - b, False),
        (S - poly.number(2), False),
        (k - ONE, False),
    ],
    ids=repr,
)
def test_what_is_shown(number: Poly, shown: bool) -> None:
    assert poly.nonnegative(number) == shown


# ---- elements, compared with ONNX Runtime


def _move(draw: st.DrawFn, made: Builder, x: str, rank: int) -> tuple[str, int]:
    """One more operator on x; what it gives and the number of its axes."""
    axis = draw(st.integers(0, rank - 1))
    length = made.op("Gather", made.op("Shape", x), made.const([axis]), axis=0)
    scalar = made.op("Squeeze", length, made.const([0]))
    counted = made.op("Range", made.const(0), scalar, made.const(1))
    step = draw(st.sampled_from(MOVES))
    if step == "unsqueeze":
        return made.op("Unsqueeze", x, made.const([draw(st.integers(0, rank))])), rank + 1
    if step == "transpose":
        return made.op("Transpose", x, perm=list(draw(st.permutations(range(rank))))), rank
    if step == "flat":
        return made.op("Reshape", x, made.const([-1])), 1
    if step == "flatten":
        return made.op("Flatten", x, axis=draw(st.integers(0, rank))), 2
    if step == "merged":
        if rank < 2:
            return x, rank
        return made.op("Reshape", x, made.const([0] * (rank - 2) + [-1])), rank - 1
    if step == "back":  # to [B, S] again
        return made.op("Reshape", x, made.op("Shape", "m")), 2
    if step == "reversed":
        last = made.op("Sub", scalar, made.const(1))
        return made.op("Gather", x, made.op("Sub", last, counted), axis=axis), rank
    if step == "first":
        return made.op("Gather", x, made.const(draw(st.sampled_from([0, -1]))), axis=axis), rank - 1
    if step == "cut":
        bounds = draw(st.sampled_from([(0, -1), (1, 1 << 62), (0, 3), (-1, 1 << 62), (0, 1)]))
        return made.op("Slice", x, *(made.const([n]) for n in (*bounds, axis))), rank
    if step == "turned":
        return made.op("Slice", x, *(made.const([n]) for n in (-1, -(1 << 62), axis, -1))), rank
    if step == "repeated":
        return made.op("Tile", x, made.const([2 if i == axis else 1 for i in range(rank)])), rank
    if step == "joined":
        return made.op("Concat", x, x, axis=axis), rank
    if step == "places":
        return made.op("Add", x, counted), max(rank, 1)
    if step == "picked":
        index = made.op("Expand", made.op("Range", made.const(0), scalar, made.const(1)), made.op("Shape", x))
        return made.op("GatherElements", x, index, axis=rank - 1), rank
    if step == "cumulated":
        ones = made.op("ConstantOfShape", made.op("Shape", x), value=onnx.helper.make_tensor("one", 7, [1], [1]))
        options = {"exclusive": draw(st.integers(0, 1)), "reverse": draw(st.integers(0, 1))}
        return made.op("Add", x, made.op("CumSum", ones, made.const(axis), **options)), rank
    if step == "grid":
        index = made.op("Unsqueeze", counted, made.const([1]))
        return made.op(
            "GatherND", made.op("Transpose", x, perm=[axis, *(i for i in range(rank) if i != axis)]), index
        ), rank
    return made.op("Where", made.op("Less", counted, made.const(draw(st.sampled_from([0, 2])))), x, made.const(7)), rank


MOVES = (
    "unsqueeze", "transpose", "flat", "flatten", "merged", "back", "reversed", "first", "cut", "turned", "repeated",
    "joined", "places", "picked", "grid", "where", "cumulated",
)  # fmt: skip


@st.composite
def moved(draw: st.DrawFn) -> onnx.ModelProto:
    made = Builder()
    x, rank = made.ids("m"), 2
    for _ in range(draw(st.integers(1, 5))):
        if rank == 0 or rank > 4:
            break
        x, rank = _move(draw, made, x, rank)
    made.output(made.op("Identity", made.op("Add", x, made.const(0))), shape=[None] * rank, element=7)
    graph = onnx.helper.make_graph(made.nodes, "moved", made.inputs, made.outputs, made.initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


def _number(expr: Expr, sizes: dict[str, int], fed: np.ndarray) -> int:
    if isinstance(expr, Number):
        return at(expr.poly, sizes)
    if isinstance(expr, Read):
        return int(fed[tuple(at(place, sizes) for place in expr.index)])
    if expr.op == "Where":
        return _number(expr.args[1 if _number(expr.args[0], sizes, fed) else 2], sizes, fed)
    first, second = (_number(arg, sizes, fed) for arg in expr.args)
    return first < second if expr.op == "Less" else first + second


def _followed(model: onnx.ModelProto) -> tuple[list[Poly], tuple[Poly, ...], Expr]:
    graph = FusionGraph(*split(model))
    clutter.remove(graph)
    elements = graph.elements
    places, expr = elements.generic(graph.gs.outputs[0])
    return elements.shape(graph.gs.outputs[0]), places, expr


UNDERSTOOD = []


@_SETTINGS
@given(moved())
def test_elements_are_where_they_are_said_to_be(model: onnx.ModelProto) -> None:
    try:
        extents, places, expr = _followed(model)
    except NoMatch:
        UNDERSTOOD.append(False)
        return
    UNDERSTOOD.append(True)
    for batch, length in SIZES:
        fed = 100 + np.arange(batch * length).reshape(batch, length)
        try:
            (result,) = run(model, {"m": fed})
        except Exception:  # a cut of nothing, a size that does not fit: nothing is said of what does not run
            continue
        if result.size == 0:
            continue
        sizes = {"B": batch, "S": length}
        assert list(result.shape) == [at(extent, sizes) for extent in extents]
        names = [next(iter(place.atoms)).name if place.atoms else None for place in places]
        for index in itertools.product(*map(range, result.shape)):
            here = sizes | {name: i for name, i in zip(names, index, strict=True) if name}
            assert _number(expr, here, fed) == result[index], (index, expr)


def test_most_of_them_are_understood() -> None:
    """After the test above: one that refused everything would pass it."""
    assert UNDERSTOOD and sum(UNDERSTOOD) > len(UNDERSTOOD) / 3, f"{sum(UNDERSTOOD)} of {len(UNDERSTOOD)}"


# ---- functions of one value

UNARY = ("Not", "Abs", "Neg", "Sign", "Relu", "Floor", "Cast")
BINARY = ("Add", "Sub", "Mul", "Div", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal", "Min", "Max", "Mod")
NUMBERS = (-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 100.0, -10000.0)


@st.composite
def functions(draw: st.DrawFn) -> tuple[onnx.ModelProto, np.dtype]:
    """A chain of operators from one value to a number to be added, most of it in float32."""
    dtype = np.dtype(draw(st.sampled_from([np.int8, np.uint8, np.float16])))
    made = Builder()
    x = made.op("Cast", made.input("v", ("N",), dtype), to=1)
    for _ in range(draw(st.integers(1, 5))):
        op = draw(st.sampled_from((*BINARY, *UNARY)))
        if op == "Mod":
            x = made.op("Cast", made.op("Mod", x, made.const(draw(st.sampled_from([2.0, 3.0]))), fmod=1), to=1)
        elif op in BINARY:
            pair = [x, made.const(draw(st.sampled_from(NUMBERS)))]
            made_of = made.op(op, *(pair if draw(st.booleans()) else pair[::-1]))
            x = made.op("Cast", made_of, to=1)
        elif op == "Not":
            x = made.op("Cast", made.op("Not", made.op("Cast", x, to=9)), to=1)
        elif op == "Cast":
            x = made.op("Cast", made.op("Cast", x, to=draw(st.sampled_from([9, 7, 6, 10]))), to=1)
        else:
            x = made.op(op, x)
    made.output(made.op("Mul", x, made.const(draw(st.sampled_from([1.0, -10000.0])))), shape=("N",), element=1)
    return made.model(), dtype


@_SETTINGS
@given(functions())
def test_ranges_hold_for_every_value(made: tuple[onnx.ModelProto, np.dtype]) -> None:
    """The types are small: every value is tried. The proof halves ranges as it does for the large ones."""
    model, dtype = made
    graph = FusionGraph(*split(model))
    clutter.remove(graph)
    elements = graph.elements
    try:
        _, expr = elements.generic(graph.gs.outputs[0])
        read = next(part for part in _parts(expr) if isinstance(part, Read))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bertfuse.graph_rewrite.proof.scalar._SMALL", 4)
            found = ranges(expr, read, classify("added", 1.0), Runner(17))
    except (NoMatch, StopIteration):
        return
    codes = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    (results,) = run(model, {"v": codes})
    for value, result in zip(codes, results, strict=True):
        (kind,) = {part.kind for part in found if part.low <= value <= part.high or (part.is_nan and value != value)}
        wanted = VISIBLE if result == 0 else HIDDEN if result <= -9984 else OVERRIDES if result >= 9984 else 0
        assert kind == wanted, (value, result, found)


def _parts(expr: Expr):
    from bertfuse.graph_rewrite.elements.expr import walk

    return walk(expr)


def _range(low: float, high: float, kind: int, dtype: type) -> Range:
    return Range(dtype(low), dtype(high), kind)


def test_rules() -> None:
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    whole = [(least, -1, VISIBLE), (0, 0, HIDDEN), (1, most, VISIBLE)]
    assert rule([_range(*r, np.int64) for r in whole], "m", "n").is_ops
    one = rule([_range(*r, np.int64) for r in [(least, 0, HIDDEN), (1, 1, VISIBLE), (2, most, HIDDEN)]], "m", "n")
    assert (one.low, one.high, one.outside, one.lifting) == (1, 1, False, False)
    lifted = [(least, 0, HIDDEN), (1, 1, VISIBLE), (2, most, OVERRIDES)]
    assert rule([_range(*r, np.int64) for r in lifted], "m", "n").lifting
    with pytest.raises(NoMatch, match="raise the scores"):
        rule(
            [_range(*r, np.float32) for r in [(-np.inf, 0, HIDDEN), (1, 1, VISIBLE), (2, np.inf, OVERRIDES)]], "m", "n"
        )
    nan = Range(np.float32(np.nan), np.float32(np.nan), VISIBLE)
    with pytest.raises(NoMatch, match="1 ranges"):  # NaN on the wrong side of a comparison
        rule([_range(-np.inf, 0.5, HIDDEN, np.float32), _range(0.6, 1, VISIBLE, np.float32),
              _range(2, np.inf, HIDDEN, np.float32), nan], "m", "n")  # fmt: skip


def test_values_of_constants() -> None:
    assert value_of(Number(poly.number(3), np.dtype(np.int64))) == 3
    assert value_of(Number(S, np.dtype(np.int64))) is None


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_whole_numbers_that_leave_their_type(op: str, dtype: type) -> None:
    """They begin again at the other end: 1 - mask of the least number is far from 0, too."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    limits = np.iinfo(dtype)
    every = np.arange(limits.min, limits.max + 1).astype(dtype)
    for number in {1, 2, int(limits.min), int(limits.max), int(random.integers(limits.min, limits.max + 1))}:
        made = Builder()
        pair = [made.input("v", ("N",), dtype), made.const(number, dtype=dtype)]
        value = made.op(op, *(pair if random.integers(2) else pair[::-1]))
        made.output(made.op("Cast", value, to=9), shape=("N",), element=9)
        model = made.model()
        graph = FusionGraph(*split(model))
        clutter.remove(graph)
        _, expr = graph.elements.generic(graph.gs.outputs[0])
        read = next(part for part in _parts(expr) if isinstance(part, Read))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bertfuse.graph_rewrite.proof.scalar._SMALL", 4)
            found = ranges(expr, read, classify("kept", 1.0), Runner(17))
        (results,) = run(model, {"v": every})
        for given_value, result in zip(every, results, strict=True):
            (kind,) = {part.kind for part in found if part.low <= given_value <= part.high}
            assert kind == (VISIBLE if result else HIDDEN), (op, number, given_value, found)
