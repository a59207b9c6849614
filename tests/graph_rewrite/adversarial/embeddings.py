"""Sums of looked-up rows that are not words, types and positions: twice the same, other indices, other orders."""

from __future__ import annotations

from collections.abc import Callable

from .build import BOOL, FLOAT, HIDDEN, INT32, INT64, VOCABULARY, Case, Graph, Random, helper, np

ROWS = 40


def _table(b: Graph, rows: int, name: str = "") -> str:
    return b.const(b.random.standard_normal((rows, HIDDEN)), name or None)


def _words(b: Graph, index: str = "ids") -> str:
    return b.op("Gather", _table(b, VOCABULARY), index, axis=0)


def _positions(b: Graph, of: str = "ids") -> str:
    return b.op("Gather", _table(b, ROWS), b.unsqueeze(b.places(of), 0), axis=0)


def _types(b: Graph, index: str = "types") -> str:
    return b.op("Gather", _table(b, 2), index, axis=0)


def _summed(
    r: Random, terms: Callable[[Graph], list[str]], *, types: bool = True, opset: int | None = None, **case
) -> Case:
    """LN of the sum of `terms`, added in any order."""
    b = Graph(r, opset)
    b.ids()
    if types:
        b.ids("types")
    parts = terms(b)
    r.shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = b.op("Add", total, part)
    b.output(b.layer_norm(total, HIDDEN))
    return Case(b.model(), longest=ROWS, count=10, **case)


def _usual(r: Random) -> Case:
    return _summed(r, lambda b: [_words(b), _types(b), _positions(b)])


def _same_twice(r: Random) -> Case:
    """word + word, type + type, position + position: the same tensor, or another of the same rows."""

    def terms(b: Graph) -> list[str]:
        word, type_, position = _words(b), _types(b), _positions(b)
        twice = r.choice([word, type_, position])
        return r.choice(
            [[word, type_, position, twice], [word, word, position], [word, position, position], [word, type_, word]]
        )

    return _summed(r, terms)


def _places_of_another_input(r: Random) -> Case:
    """Positions as many as another input is long."""

    def terms(b: Graph) -> list[str]:
        b.ids("others", ("B", "T"))
        return [_words(b), _types(b), _positions(b, "others")]

    return _summed(r, terms)


def _other_places(r: Random) -> Case:
    """Positions from the end, by twos, from n on, beyond n the same."""
    n = r.randrange(1, 20)

    def terms(b: Graph) -> list[str]:
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

    return _summed(r, terms, numbers=(n,))


def _places_of_the_mask(r: Random) -> Case:
    """RoBERTa's: positions count real tokens, whatever that is."""
    token = r.choice([0, 1])

    def terms(b: Graph) -> list[str]:
        real = b.cast(b.op("Not", b.op("Equal", "ids", b.ints(token))), INT64)
        count = b.op("CumSum", real, b.ints(1), exclusive=r.randrange(2), reverse=int(r.random() < 0.2))
        index = b.op("Mul", count, real) if r.random() < 0.6 else count
        return [_words(b), _types(b), b.op("Gather", _table(b, ROWS + 1), index, axis=0)]

    return _summed(r, terms, numbers=(token,))


def _types_computed(r: Random) -> Case:
    """Types that are a constant in disguise, or a function of ids, or of the place."""

    def terms(b: Graph) -> list[str]:
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

    return _summed(r, terms)


def _ids_changed(r: Random) -> Case:
    """Words of ids that are changed on the way."""

    def terms(b: Graph) -> list[str]:
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

    return _summed(r, terms)


def _more_terms(r: Random) -> Case:
    """A fourth term: a number, a vector, another table, a table by place and row, the mask."""

    def terms(b: Graph) -> list[str]:
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

    return _summed(r, terms)


def _scaled(r: Random) -> Case:
    """A term, or the sum, times a number."""

    def terms(b: Graph) -> list[str]:
        parts = [_words(b), _types(b), _positions(b)]
        at = r.randrange(3)
        parts[at] = b.op(r.choice(["Mul", "Sub", "Div"]), parts[at], b.const(r.choice([4.0, 0.5, 1.0])))
        return parts

    return _summed(r, terms)


def _shared_table(r: Random) -> Case:
    """One table for two of the roles."""

    def terms(b: Graph) -> list[str]:
        table = _table(b, VOCABULARY)
        places = b.unsqueeze(b.places("ids"), 0)
        second = r.choice([places, "types"])
        rest = _types(b) if second is places else _positions(b)
        return [b.op("Gather", table, "ids", axis=0), b.op("Gather", table, second, axis=0), rest]

    return _summed(r, terms)


def _sliced_positions(r: Random) -> Case:
    """The first rows of the table, as many as there are tokens; from n on; backwards."""
    n = r.choice([0, 0, 1, 3])

    def terms(b: Graph) -> list[str]:
        end = b.op("Add", b.size("ids", 1), b.ints([n]))
        rows = b.op("Slice", _table(b, ROWS + n), b.ints([n]), end, b.ints([0]))
        return [_words(b), _types(b), b.unsqueeze(rows, 0)]

    return _summed(r, terms)


def _clamped_beyond_the_table(r: Random) -> Case:
    """Positions Min(place, ROWS - 1): the model runs at any length, and fused it must."""
    last = r.choice([ROWS - 1, ROWS - 5])

    def terms(b: Graph) -> list[str]:
        index = b.op("Min", b.places("ids"), b.ints(last))
        return [_words(b), _types(b), b.op("Gather", _table(b, ROWS), b.unsqueeze(index, 0), axis=0)]

    case = _summed(r, terms)
    case.longest, case.numbers = ROWS + 9, (ROWS, ROWS + 5)
    return case


def _given_positions(r: Random) -> Case:
    """Positions are an input, of any order."""

    def terms(b: Graph) -> list[str]:
        given = b.ids("position_ids", r.choice([("B", "S"), (1, "S")]))
        return [_words(b), _types(b), b.op("Gather", _table(b, ROWS), given, axis=0)]

    return _summed(r, terms)


def _overflowing(r: Random) -> Case:
    """Position arithmetic that wraps in 32 or 8 bits."""

    def terms(b: Graph) -> list[str]:
        places = b.cast(b.places("ids"), INT32)
        wide = b.op("Mul", places, b.ints(1 << r.choice([28, 30]), np.int32))
        index = b.op("Abs", b.op("Div", wide, b.ints(1 << 28, np.int32)))
        index = b.op("Mod", b.cast(index, INT64), b.ints(ROWS))
        return [_words(b), _types(b), b.op("Gather", _table(b, ROWS), b.unsqueeze(index, 0), axis=0)]

    return _summed(r, terms)


def _without_a_role(r: Random) -> Case:
    def terms(b: Graph) -> list[str]:
        parts = [_words(b), _types(b), _positions(b)]
        parts.pop(r.randrange(3))
        return parts

    return _summed(r, terms)


RECIPES = (
    _usual, _same_twice, _places_of_another_input, _other_places, _places_of_the_mask, _types_computed, _ids_changed,
    _more_terms, _scaled, _shared_table, _sliced_positions, _clamped_beyond_the_table, _given_positions, _overflowing,
    _without_a_role,
)  # fmt: skip
