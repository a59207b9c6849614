"""Masks and positions that are random programs of sizes, places, ids and the mask: nobody thought of them."""

from __future__ import annotations

from collections.abc import Callable

from .build import BOOL, FLOAT, HIDDEN, INT32, INT64, Graph, Random, attend, masking, np, recipe, spelled, words

M, I = "attention_mask", "ids"  # noqa: E741
_NUMBERS = (0, 1, 2, 3, 5, 7, 16, 31)


class _Program:
    """Tensors [B or 1, 1, S or 1, S or 1] of whole numbers, floats and conditions, made of each other at random."""

    def __init__(self, b: Graph) -> None:
        self.b, self.r = b, b.r
        q, k = b.grid(I)
        self.mask = b.keys(M)
        self.ints = [self.mask, self.mask, q, k, b.keys(I), b.length(I), b.op("Squeeze", b.size(I, 0), b.ints([0]))]
        self.ints += [b.queries(M), b.queries(I), b.distance(I)]
        b.numbers = (*b.r.sample(_NUMBERS, 3), b.r.randrange(97), b.r.choice([20, 33, 256]))
        self.ints += [b.number(n) for n in b.numbers]
        self.floats = [b.cast(self.mask, FLOAT), b.const(0.5), b.const(1.0), b.const(-1e4)]
        self.bools = [b.cast(self.mask, BOOL), b.op("LessOrEqual", k, q), b.op("Equal", self.mask, b.ints(1))]

    def grow(self, steps: int) -> None:
        for _ in range(steps):
            self.r.choice([self._int, self._int, self._float, self._bool, self._bool, self._always])()

    def _pick(self, of: list[str]) -> str:
        """The newest are the likeliest."""
        return of[-1 - min(int(self.r.expovariate(0.4)), len(of) - 1)] if self.r.random() < 0.6 else self.r.choice(of)

    def _int(self) -> None:
        b, r = self.b, self.r
        x, y = self._pick(self.ints), self._pick(self.ints)
        ways: list[Callable[[], str]] = [
            lambda: b.op(r.choice(["Add", "Sub", "Mul", "Min", "Max"]), x, y),
            lambda: b.op(r.choice(["Div", "Mod"]), x, b.ints(r.choice([2, 3, 7, -2]))),
            lambda: b.op(r.choice(["Abs", "Neg", "Sign"]), x),
            lambda: b.op("Where", self._pick(self.bools), x, y),
            lambda: b.cast(self._pick(self.bools), INT64),
            lambda: b.cast(self._pick(self.floats), INT64),
            lambda: b.cast(b.cast(x, r.choice([2, 3, 4, 5, INT32, 12])), INT64),
            lambda: b.op("Clip", x, b.ints(r.choice([-1, 0, 1])), b.ints(r.choice([1, 2, 30]))),
            lambda: b.op("BitwiseAnd" if b.opset >= 18 else "Max", x, b.ints(r.choice([1, 2, 3, 4]))),
        ]
        self.ints.append(r.choice(ways)())

    def _float(self) -> None:
        b, r = self.b, self.r
        x, y = self._pick(self.floats), self._pick(self.floats)
        ways: list[Callable[[], str]] = [
            lambda: b.op(r.choice(["Add", "Sub", "Mul", "Min", "Max"]), x, y),
            lambda: b.op("Mul", x, b.const(r.choice([0.0, 0.5, -1.0, 1e4, -1e9]))),
            lambda: b.op(r.choice(["Abs", "Neg", "Floor", "Ceil", "Relu", "Sign", "Round", "Sqrt", "Log", "Exp"]), x),
            lambda: b.op("Where", self._pick(self.bools), x, y),
            lambda: b.cast(self._pick(self.ints), FLOAT),
            lambda: b.cast(self._pick(self.bools), FLOAT),
            lambda: b.cast(b.cast(x, r.choice([10, 11])), FLOAT),
        ]
        self.floats.append(r.choice(ways)())

    def _bool(self) -> None:
        b, r = self.b, self.r
        if r.random() < 0.4:
            self.bools.append(
                b.op(r.choice(["And", "Or", "Xor", "And", "Equal"]), *(self._pick(self.bools) for _ in "ab"))
            )
        elif r.random() < 0.2:
            self.bools.append(b.op("Not", self._pick(self.bools)))
        elif r.random() < 0.3:
            self.bools.append(b.cast(self._pick(r.choice([self.ints, self.floats])), BOOL))
        else:
            kind = r.choice([self.ints, self.ints, self.floats])
            op = r.choice(["Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"])
            self.bools.append(b.op(op, self._pick(kind), self._pick(kind)))

    def _always(self) -> None:
        """What is true, or 0, or the same as before, in most programs or in all."""
        b, r = self.b, self.r
        x, c = self._pick(self.ints), self._pick(self.bools)
        ways: list[Callable[[], str]] = [
            lambda: b.op("GreaterOrEqual", self.ints[r.choice([2, 3])], b.ints(r.choice([0, 0, 1, -1]))),
            lambda: b.op(
                "Less", self.ints[r.choice([2, 3])], b.op("Add", self.ints[5], b.ints(r.choice([0, 0, 1, -1])))
            ),
            lambda: b.op("Or", c, b.op("Not", c)),
            lambda: b.op("Equal", x, b.op("Add", x, b.ints(r.choice([0, 0, 1])))),
            lambda: b.op("GreaterOrEqual", b.op("Mul", x, x), b.ints(0)),
            lambda: b.op("Equal", b.op("Mul", b.op("Div", x, b.ints(2)), b.ints(2)), x),
            lambda: b.op("Less", b.op("Abs", b.op("Sub", self.ints[2], self.ints[3])), self.ints[5]),
            lambda: b.op("Equal", b.op("Max", x, b.ints(0)), b.op("Abs", x)),
        ]
        self.bools.append(r.choice(ways)())


@masking(opset=(16, 18, 20), longest=40)
def _condition(b: Graph, r: Random) -> str:
    """The user's mask and, or, where a program's condition."""
    program = _Program(b)
    program.grow(r.randrange(1, 7))
    last, real = program.bools[-1], program.bools[0]
    how = r.randrange(5)
    if how == 0:
        return last
    if how == 1:
        return b.op("Or", real, b.op("Not", last))
    if how == 2:
        both = (b.cast(t, INT64) for t in (real, program._pick(program.bools)))
        return b.cast(b.op("Where", last, *both), BOOL)
    return b.op("And", real, last) if how == 3 else b.op("And", last, b.op("GreaterOrEqual", program.mask, b.ints(1)))


@masking(added=True, opset=(16, 18, 20), longest=40)
def _number(b: Graph, r: Random) -> str:
    """A program's number added to the scores, or what hides where it is not 0."""
    program = _Program(b)
    program.grow(r.randrange(1, 7))
    number = r.choice([program.floats[-1], b.cast(program.ints[-1], FLOAT)])
    how = r.randrange(4)
    if how == 0:
        return b.op("Mul", b.op("Sub", b.const(1.0), number), b.const(-1e4))
    if how == 1:
        return b.op("Where", b.cast(number, BOOL), b.const(0.0), b.const(-1e4))
    if how == 2:
        hidden = b.op("Where", program.bools[0], b.const(0.0), b.const(-1e9))
        return b.op("Add", hidden, b.op("Mul", number, b.const(0.0)))
    return b.op("Min", b.op("Mul", number, b.const(1e4)), b.const(0.0))


@masking(added=True, mask_type=np.float32, opset=(16, 18, 20), count=18)
def _of_a_float_mask(b: Graph, r: Random) -> str:
    """The same of a mask of floats."""
    x = b.keys(M)
    for _ in range(r.randrange(5)):
        number = b.const(r.choice([0.0, 0.5, 1.0, -1.0, 2.0, 1e-3, 1e4]))
        op = r.choice(
            ["Add", "Sub", "Mul", "Max", "Min", "Abs", "Neg", "Ceil", "Floor", "Round", "Relu", "Sign", "Clip", "Half"]
        )
        if op == "Half":
            x = b.cast(b.cast(x, 10), FLOAT)
        elif op == "Clip":
            x = b.op("Clip", x, b.const(r.choice([0.0, 0.5])), b.const(r.choice([1.0, 0.75])))
        elif op in ("Add", "Sub", "Mul", "Max", "Min"):
            x = b.op(op, *((x, number) if r.random() < 0.6 else (number, x)))
        else:
            x = b.op(op, x)
    how = r.randrange(3)
    if how == 0:
        return b.op("Where", b.cast(x, BOOL), b.const(0.0), b.const(-1e4))
    if how == 1:
        sides = [x, b.const(r.choice([0.0, 0.1, 0.3, 0.5, 0.9, 0.99995, 1.0, 1.5, -0.5]))]
        op = r.choice(["Greater", "Less", "GreaterOrEqual", "Equal"])
        return b.op("Where", b.op(op, *r.sample(sides, 2)), b.const(0.0), b.const(-1e9))
    return b.op("Mul", x, b.const(r.choice([-1e4, 1.0, 1e4])))


@recipe(opset=(16, 18), count=8, longest=40, runs=False)
def _positions(b: Graph, r: Random) -> None:
    """Positions, and rows of types, that are a program of sizes and places."""
    ids = b.ids()
    b.ids(M)
    places = b.unsqueeze(b.places(ids), 0)
    ints = [
        places,
        places,
        b.length(ids),
        b.op("Squeeze", b.size(ids, 0), b.ints([0])),
        b.ints(0),
        b.ints(1),
        b.ints(3),
    ]
    for _ in range(r.randrange(1, 5)):
        x, y = r.choice(ints[-3:]), r.choice(ints)
        way = r.randrange(5)
        if way == 0:
            ints.append(b.op(r.choice(["Add", "Sub", "Mul", "Min", "Max"]), x, y))
        elif way == 1:
            ints.append(b.op(r.choice(["Div", "Mod"]), x, b.ints(r.choice([1, 2, 50]))))
        elif way == 2:
            ints.append(b.op("Where", b.op(r.choice(["Less", "GreaterOrEqual"]), x, y), x, b.op("Abs", x)))
        elif way == 3:
            ints.append(b.op(r.choice(["Abs", "Identity"]), b.cast(b.cast(x, r.choice([FLOAT, INT32])), INT64)))
        else:
            ints.append(b.op("Sub", b.op("Add", x, b.ints(2)), b.ints(r.choice([2, 2, 1]))))
    index = b.op("Add", b.op("Mod", ints[-1], b.ints(64)), b.op("Mul", places, b.ints(0)))
    if r.random() < 0.4:
        index = b.op("Expand", index, b.op("Shape", ids))
    rows = b.op("Gather", b.weight(64, HIDDEN), index if r.random() < 0.5 else ints[-1], axis=0)
    total = b.op("Add", words(b, ids), rows)
    if r.random() < 0.4:
        kind = b.op("Mod", b.op("Mul", ints[-1], b.ints(r.choice([0, 1, 2]))), b.ints(2))
        total = b.op("Add", total, b.op("Gather", b.weight(2, HIDDEN), kind, axis=0))
    b.output(b.layer_norm(total, HIDDEN))


@recipe(opset=(16, 18), count=12, longest=40)
def _two_heads_of_masks(b: Graph, r: Random) -> None:
    """Two attentions, each with a program of its own over the same tensors."""
    ids = b.ids()
    b.ids(M)
    x = words(b, ids)
    program = _Program(b)
    for _ in range(2):
        program.grow(r.randrange(0, 4))
        visible = b.op(r.choice(["And", "Or"]), program.bools[0], program._pick(program.bools))
        x = b.op("Add", x, attend(b, x, spelled(r, parts={"mask": b.additive(visible)})))
    b.output(x)


RECIPES = (
    *[_condition] * 16, *[_number] * 6, *[_of_a_float_mask] * 4, _positions, _two_heads_of_masks,
)  # fmt: skip
