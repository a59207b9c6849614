"""Sums of looked-up rows that are not words, types and positions: twice the same, other indices, other orders."""

from __future__ import annotations

from collections.abc import Callable

from .build import BOOL, FLOAT, HIDDEN, INT32, INT64, VOCABULARY, Case, Graph, Random, Recipe, helper, named, np

ROWS = 40


def _table(b: Graph, rows: int, name: str = "") -> str:
    return b.const(b.random.standard_normal((rows, HIDDEN)), name or None)


def _words(b: Graph, index: str = "ids") -> str:
    return b.op("Gather", _table(b, VOCABULARY), index, axis=0)


def _positions(b: Graph, of: str = "ids") -> str:
    return b.op("Gather", _table(b, ROWS), b.unsqueeze(b.places(of), 0), axis=0)


def _types(b: Graph, index: str = "types") -> str:
    return b.op("Gather", _table(b, 2), index, axis=0)


def _summed(terms: Callable[[Graph, Random], list[str]]) -> Recipe:
    """LN of the sum of what `terms` gives of ids and types, added in any order."""

    @named(terms)
    def recipe(r: Random) -> Case:
        b = Graph(r)
        b.ids()
        b.ids("types")
        parts = terms(b, r)
        r.shuffle(parts)
        total = parts[0]
        for part in parts[1:]:
            total = b.op("Add", total, part)
        b.output(b.layer_norm(total, HIDDEN))
        return Case(b.model(), numbers=b.numbers, longest=ROWS, count=10)

    return recipe


@_summed
def _usual(b: Graph, r: Random) -> list[str]:
    return [_words(b), _types(b), _positions(b)]


@_summed
def _same_twice(b: Graph, r: Random) -> list[str]:
    """word + word, type + type, position + position: the same tensor, or another of the same rows."""
    word, type_, position = _words(b), _types(b), _positions(b)
    twice = r.choice([word, type_, position])
    return r.choice(
        [[word, type_, position, twice], [word, word, position], [word, position, position], [word, type_, word]]
    )


@_summed
def _places_of_another_input(b: Graph, r: Random) -> list[str]:
    """Positions as many as another input is long."""
    b.ids("others", ("B", "T"))
    return [_words(b), _types(b), _positions(b, "others")]


@_summed
def _other_places(b: Graph, r: Random) -> list[str]:
    """Positions from the end, by twos, from n on, beyond n the same."""
    n = r.randrange(1, 20)
    b.numbers = (n,)
    places = b.places("ids")
    length = b.length("ids")
    index = r.choice(
        [
            lambda: b.op("Sub", b.op("Sub", length, b.ints(1)), places),
            lambda: b.op("Mul", places, b.ints(2)),
            lambda: b.op("Add", places, b.ints(n)),
            lambda: b.op("Min", places, b.ints(n)),
            lambda: b.op("Max", places, b.ints(1)),
            lambda: b.op("Mod", places, b.ints(n + 1)),
            lambda: b.op("Div", places, b.ints(2)),
            lambda: b.op("Neg", places),
            lambda: b.op("Sub", places, length),
            lambda: b.op("Abs", b.op("Sub", places, b.ints(n))),
            lambda: b.cast(b.cast(places, r.choice([10, 2, 3, 1, 11])), INT64),
            lambda: b.op("Where", b.op("Less", places, b.number(n)), places, b.ints(0)),
            lambda: b.op("Range", b.ints(0), b.op("Mul", length, b.ints(2)), b.ints(2)),
            lambda: b.op("Range", b.op("Sub", length, b.ints(1)), b.ints(-1), b.ints(-1)),
            lambda: b.op("BitwiseXor", places, b.ints(1)) if b.opset >= 18 else places,
            lambda: b.op("Mul", places, b.op("Min", length, b.ints(1))),
        ]
    )()
    return [_words(b), _types(b), b.op("Gather", _table(b, ROWS), b.unsqueeze(index, 0), axis=0)]


@_summed
def _places_of_the_mask(b: Graph, r: Random) -> list[str]:
    """RoBERTa's: positions count real tokens, whatever that is."""
    token = r.choice([0, 1])
    b.numbers = (token,)
    real = b.cast(b.op("Not", b.op("Equal", "ids", b.ints(token))), INT64)
    count = b.op("CumSum", real, b.ints(1), exclusive=r.randrange(2), reverse=int(r.random() < 0.2))
    index = b.op("Mul", count, real) if r.random() < 0.6 else count
    return [_words(b), _types(b), b.op("Gather", _table(b, ROWS + 1), index, axis=0)]


@_summed
def _types_computed(b: Graph, r: Random) -> list[str]:
    """Types that are a constant in disguise, or a function of ids, or of the place."""
    ones = helper.make_tensor("value", INT64, [1], [1])
    index = r.choice(
        [
            lambda: b.cast(b.cast(b.ints(2), BOOL), INT64),
            lambda: b.op("Sub", "types", "types"),
            lambda: b.cast(b.op("Greater", "ids", b.ints(r.randrange(VOCABULARY))), INT64),
            lambda: b.op("Sub", b.ints(1), "types"),
            lambda: b.op("Mod", "ids", b.ints(2)),
            lambda: b.unsqueeze(b.op("Mod", b.places("ids"), b.ints(2)), 0),
            lambda: b.cast(b.op("Equal", b.length("ids"), b.ints(r.choice([7, 20]))), INT64),
            lambda: b.op("ConstantOfShape", b.op("Shape", "ids"), value=ones),
            lambda: b.cast("types", INT32),
            lambda: b.op("Neg", "types"),
            lambda: b.op("Sub", "types", b.ints(1)),
            lambda: b.op("Slice", "types", b.ints([-1]), b.ints([-(1 << 62)]), b.ints([1]), b.ints([-1])),
            lambda: b.op("Slice", "types", b.ints([0]), b.ints([1]), b.ints([0])),
        ]
    )()
    return [_words(b), _types(b, index), _positions(b)]


@_summed
def _ids_changed(b: Graph, r: Random) -> list[str]:
    """Words of ids that are changed on the way."""
    n = r.randrange(1, VOCABULARY)
    index = r.choice(
        [
            lambda: b.op("Mod", b.op("Add", "ids", b.ints(n)), b.ints(VOCABULARY)),
            lambda: b.op("Sub", "ids", b.ints(VOCABULARY)),
            lambda: b.op("Max", "ids", b.ints(n)),
            lambda: b.op("Where", b.op("Equal", "ids", b.ints(n)), b.ints(0), "ids"),
            lambda: b.cast(b.cast("ids", r.choice([10, 1, 3, 2])), INT64),
            lambda: b.op("Slice", "ids", b.ints([-1]), b.ints([-(1 << 62)]), b.ints([1]), b.ints([-1])),
            lambda: b.cast("ids", INT32),
        ]
    )()
    return [_words(b, index), _types(b), _positions(b)]


@_summed
def _more_terms(b: Graph, r: Random) -> list[str]:
    """A fourth term: a number, a vector, another table, a table by place and row, the mask."""
    by_place = b.const(b.random.standard_normal((ROWS, 1)))
    more = r.choice(
        [
            lambda: b.const(0.5),
            lambda: b.weight(HIDDEN),
            lambda: b.op("Gather", _table(b, VOCABULARY), "ids", axis=0),
            lambda: b.op("Gather", _table(b, 2), "types", axis=0),
            lambda: b.unsqueeze(b.cast("types", FLOAT), 2),
            lambda: b.const(b.random.standard_normal((1, 1, HIDDEN))),
            lambda: b.op("Gather", _table(b, ROWS), b.unsqueeze(b.places("ids"), 0), axis=0),
            lambda: b.op("Gather", by_place, b.unsqueeze(b.places("ids"), 0), axis=0),
        ]
    )()
    return [_words(b), _types(b), _positions(b), more]


@_summed
def _scaled(b: Graph, r: Random) -> list[str]:
    """A term, or the sum, times a number."""
    parts = [_words(b), _types(b), _positions(b)]
    at = r.randrange(3)
    parts[at] = b.op(r.choice(["Mul", "Sub", "Div"]), parts[at], b.const(r.choice([4.0, 0.5, 1.0])))
    return parts


@_summed
def _shared_table(b: Graph, r: Random) -> list[str]:
    """One table for two of the roles."""
    table = _table(b, VOCABULARY)
    places = b.unsqueeze(b.places("ids"), 0)
    second = r.choice([places, "types"])
    rest = _types(b) if second is places else _positions(b)
    return [b.op("Gather", table, "ids", axis=0), b.op("Gather", table, second, axis=0), rest]


@_summed
def _sliced_positions(b: Graph, r: Random) -> list[str]:
    """The first rows of the table, as many as there are tokens; from n on; backwards."""
    n = r.choice([0, 0, 1, 3])
    end = b.op("Add", b.size("ids", 1), b.ints([n]))
    rows = b.op("Slice", _table(b, ROWS + n), b.ints([n]), end, b.ints([0]))
    return [_words(b), _types(b), b.unsqueeze(rows, 0)]


@_summed
def _clamped_beyond_the_table(b: Graph, r: Random) -> list[str]:
    """Positions Min(place, ROWS - 1): the model runs at any length, and fused it must."""
    b.numbers = (ROWS, ROWS + 7)
    index = b.op("Min", b.places("ids"), b.ints(r.choice([ROWS - 1, ROWS - 5])))
    return [_words(b), _types(b), b.op("Gather", _table(b, ROWS), b.unsqueeze(index, 0), axis=0)]


@_summed
def _given_positions(b: Graph, r: Random) -> list[str]:
    """Positions are an input, of any order."""
    given = b.ids("position_ids", r.choice([("B", "S"), (1, "S")]))
    return [_words(b), _types(b), b.op("Gather", _table(b, ROWS), given, axis=0)]


@_summed
def _overflowing(b: Graph, r: Random) -> list[str]:
    """Position arithmetic that wraps in 32 or 8 bits."""
    places = b.cast(b.places("ids"), INT32)
    wide = b.op("Mul", places, b.ints(1 << r.choice([28, 30]), np.int32))
    index = b.op("Abs", b.op("Div", wide, b.ints(1 << 28, np.int32)))
    index = b.op("Mod", b.cast(index, INT64), b.ints(ROWS))
    return [_words(b), _types(b), b.op("Gather", _table(b, ROWS), b.unsqueeze(index, 0), axis=0)]


@_summed
def _without_a_role(b: Graph, r: Random) -> list[str]:
    parts = [_words(b), _types(b), _positions(b)]
    parts.pop(r.randrange(3))
    return parts
