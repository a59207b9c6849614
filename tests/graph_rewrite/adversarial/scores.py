"""Scores so large that what hides a key does not, and numbers near where float32 ends."""

from __future__ import annotations

from .build import BOOL, HIDDEN, Attention, Case, Graph, Random, attend, attention_of, masking, np, recipe, spelled

M = "attention_mask"


def _weakly_hidden(r: Random) -> Case:
    """Hidden by -1000 or so, where scores reach thousands."""
    hidden = r.choice([-900.0, -1000.0, -1001.0, -2000.0, -1e4])
    loud = r.choice([5.0, 15.0] if hidden == -1e4 else [10.0, 40.0, 100.0, 300.0])  # 1e4 counts as enough, see design

    def make(b: Graph) -> str:
        visible = b.cast(b.keys(M), BOOL)
        if r.random() < 0.5:
            return b.op("Where", visible, b.const(0.0), b.const(hidden))
        return b.op("Mul", b.op("Sub", b.const(1.0), b.cast(visible, 1)), b.const(hidden))

    return attention_of(r, make, added=True, weights=loud)


def _weakly_selected(r: Random) -> Case:
    """Scores replaced by -1000 are larger than others that stay."""
    hidden = r.choice([-1000.0, -1500.0, -1e4])
    b = Graph(r)
    loud = r.choice([3.0, 10.0] if hidden == -1e4 else [20.0, 100.0])
    x, mask = b.op("Mul", b.input("x", ("B", "S", HIDDEN)), b.const(loud)), b.ids(M)
    parts = {"hidden": hidden}
    b.output(attend(b, x, spelled(r, mask="select", parts=parts), mask))
    return Case(b.model())


def _scaled_afterwards(r: Random) -> Case:
    """Mask and scores together times a small number: what is left hides nothing."""
    after = r.choice([1e-2, 1e-3, 0.1, -1.0, 1e4])
    b = Graph(r)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    spec = spelled(r, mask="subtract", parts={"after_mask": lambda s: b.op("Mul", s, b.const(after))})
    b.output(attend(b, x, spec, mask))
    return Case(b.model())


@masking(added=True)
def _raised(b: Graph, r: Random) -> str:
    """Visible keys get a number, not 0: the same for all, or different for some."""
    low, high = r.choice([(-1e4, 1.0), (-1e4, -1e4 + 5), (0.0, 1e4), (-3.4e38, 5.0), (-1e9, 100.0)])
    return b.op("Where", b.cast(b.keys(M), BOOL), b.const(high), b.const(low))


@recipe()
def _twice(b: Graph, r: Random) -> None:
    """The mask is added twice, or two masks are."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    one = b.additive(b.cast(b.unsqueeze(mask, 1, 2), BOOL))
    other = one if r.random() < 0.5 else b.additive(b.op("Greater", b.unsqueeze(mask, 1, 2), b.ints(1)))
    spec = spelled(r, parts={"mask": one, "after_mask": lambda s: b.op("Add", s, other)})
    b.output(attend(b, x, spec))


@recipe()
def _in_float16(b: Graph, r: Random) -> None:
    """Scores go through float16, where they overflow."""
    x = b.op("Mul", b.input("x", ("B", "S", HIDDEN)), b.const(r.choice([1.0, 50.0, 200.0])))
    parts = {"after_mask": lambda s: b.cast(b.cast(s, 10), 1)}
    b.output(attend(b, x, Attention(mask="none", parts=parts)))


@recipe(count=8)
def _changed(b: Graph, r: Random) -> None:
    """Scores clipped, capped, squared, negated, rounded or sorted out before the Softmax."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)
    named = [("Clip", -1.0, 1.0), ("Tanh",), ("Neg",), ("Abs",), ("Round",), ("Max", 0.0), ("Pow", 3.0), ("Relu",)]
    op, *numbers = r.choice(named)

    def change(s: str) -> str:
        return b.op(op, s, *(b.const(n) for n in numbers))

    b.output(attend(b, x, spelled(r, mask=r.choice(["none", "where"]), parts={"after_mask": change}), mask))


@recipe()
def _weights_changed(b: Graph, r: Random) -> None:
    """Something happens to the weights after the Softmax."""
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids(M)

    def change(w: str) -> str:
        how = r.randrange(6)
        if how == 0:
            return b.op("Mul", w, b.cast(b.unsqueeze(mask, 1, 2), 1))
        if how == 1:
            return b.op("Mul", w, b.const(r.choice([1.0, 0.9, 2.0])))
        if how == 2:
            return b.op("Where", b.cast(b.unsqueeze(mask, 1, 2), BOOL), w, b.const(0.0))
        if how == 3:
            return b.op("Where", b.op("IsNaN", w), b.const(r.choice([0.0, 1.0])), w)
        if how == 4:
            return b.op("Add", w, b.const(1e-3))
        return b.op("Where", b.op("Less", w, b.const(0.05)), b.const(0.0), w)

    spec = spelled(r, mask=r.choice(["where -inf", "subtract", "where"]), parts={"after_softmax": change})
    b.output(attend(b, x, spec, mask))


@recipe(count=6)
def _sink(b: Graph, r: Random) -> None:
    """A column more in the Softmax, dropped afterwards."""
    x = b.input("x", ("B", 5, HIDDEN))
    sink = b.const(np.zeros((1, 1, 1, 1)))

    def widen(s: str) -> str:
        column = b.op("Mul", b.op("Slice", s, b.ints([0]), b.ints([1]), b.ints([3])), b.const(0.0))
        return b.op("Concat", s, b.op("Add", column, sink), axis=3)

    parts = {"after_mask": widen, "after_softmax": lambda w: b.op("Slice", w, b.ints([0]), b.ints([-1]), b.ints([3]))}
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


def _overflow_by_sum(r: Random) -> Case:
    """float32's least number and a score below zero: -inf, or not."""

    def make(b: Graph) -> str:
        least = float(np.finfo(np.float32).min)
        return b.op("Where", b.cast(b.keys(M), BOOL), b.const(0.0), b.const(least))

    return attention_of(r, make, added=True, weights=r.choice([1.0, 100.0, 1e10]), guard=r.random() < 0.5)
