"""Masks of integers that are more than 0 and 1: counts, numbers of segments, flags, and arithmetic on them."""

from __future__ import annotations

from .build import BOOL, FLOAT, INT32, INT64, Case, Graph, Random, attention_of, masking, np

M = "attention_mask"


@masking(added=True)
def _log_of_counts(b: Graph, r: Random) -> str:
    return b.op("Log", b.cast(b.keys(M), FLOAT))


@masking(added=True)
def _scaled_and_added(b: Graph, r: Random) -> str:
    """mask * a + c added as it is: 1 for visible, whatever is more raises a score."""
    hidden = r.choice([1e4, 1e5, 1e9])
    numbers = b.cast(b.keys(M), FLOAT)
    if r.random() < 0.5:
        return b.op("Sub", b.op("Mul", numbers, b.const(hidden)), b.const(hidden))
    return b.op("Mul", b.op("Sub", b.const(1.0), b.op("Min", numbers, b.const(1.0))), b.const(-hidden))


@masking()
def _packed_segments(b: Graph, r: Random) -> str:
    """Keys of the query's own segment, 0 being padding; queries of padding see everything, or nothing."""
    q, k = b.queries(M), b.keys(M)
    same = b.op("Equal", q, k)
    if r.random() < 0.6:
        same = b.op("Or", same, b.op("Equal", q, b.ints(0)))
    return b.op("And", b.op("Greater", k, b.ints(0)), same) if r.random() < 0.7 else same


@masking()
def _prefix_language_model(b: Graph, r: Random) -> str:
    """1 is visible to all, 2 to itself and what comes after it, 0 to nobody."""
    q, k = b.grid(M)
    later = b.op("And", b.op("Equal", b.keys(M), b.ints(2)), b.op("LessOrEqual", k, q))
    return b.op("Or", b.op("Equal", b.keys(M), b.ints(1)), later)


@masking(added=True)
def _chosen_in_turn(b: Graph, r: Random) -> str:
    """Where after Where: a value of its own for each integer."""
    x = b.const(r.choice([0.0, -1e4]))
    for number in r.sample(range(-1, 6), r.randrange(1, 4)):
        x = b.op("Where", b.op("Equal", b.keys(M), b.ints(number)), b.const(r.choice([0.0, -1e4, -1.0])), x)
    return x


@masking(added=True)
def _looked_up(b: Graph, r: Random) -> str:
    """A table of what each integer means."""
    table = [r.choice([0.0, -1e4]) for _ in range(6)]
    table[0], table[1] = -1e4, 0.0
    index = b.op("Max", b.op("Min", M, b.ints(5)), b.ints(0))
    return b.keys(b.op("Gather", b.const(table), index, axis=0))


def _other_types(r: Random) -> Case:
    """The mask itself is of another integer type."""
    kind = r.choice([np.int32, np.uint8, np.int8, np.uint32, np.uint64, np.int16, np.bool_])

    def make(b: Graph) -> str:
        first = b.cast(M, r.choice([INT32, INT64, FLOAT, 2, 3]))
        return b.keys(b.cast(first, BOOL))

    return attention_of(r, make, mask_type=kind, numbers=(255, 256, 257))


@masking()
def _one_hot(b: Graph, r: Random) -> str:
    """The second column of OneHot: integers other than 1 are hidden, -1 counts from the end."""
    depth = r.choice([2, 3, 4])
    hot = b.op("OneHot", M, b.ints(depth), b.ints([0, 1]), axis=-1)
    return b.keys(b.cast(b.op("Gather", hot, b.ints(1), axis=2), BOOL))


def _weak(r: Random) -> Case:
    """(1 - mask) times a number that hides little."""
    hidden = r.choice([-1.0, -5.0, -50.0, -900.0])
    return attention_of(
        r,
        lambda b: b.op("Mul", b.op("Sub", b.const(1.0), b.cast(b.keys(M), FLOAT)), b.const(hidden)),
        added=True,
        weights=r.choice([1.0, 8.0]),
    )


@masking(numbers=(255, 256, 257))
def _narrowed(b: Graph, r: Random) -> str:
    """Through a narrower type, in which 256 or 1 << 32 is 0."""
    kind = r.choice([2, 3, 4, 5, 6, 12])  # uint8, int8, uint16, int16, int32, uint32
    return b.keys(b.cast(b.cast(M, kind), BOOL))
