"""Masks made of token ids: tables, comparisons, and tokens that change what comes after them."""

from __future__ import annotations

from .build import BOOL, FLOAT, INT32, INT64, VOCABULARY, Graph, Random, masking, np

I = "ids"  # noqa: E741


@masking()
def _table(b: Graph, r: Random) -> str:
    """visible = table[ids], with very few zeros."""
    values = np.ones(VOCABULARY)
    zeros = r.sample(range(VOCABULARY), r.choice([1, 1, 2, 5]))
    values[zeros] = 0
    kind = r.choice([bool, np.int64, np.int32, np.float32, np.uint8])
    b.numbers = tuple(zeros)
    rows = b.op("Gather", b.const(values.astype(kind), dtype=kind), I, axis=0)
    return b.keys(rows if kind is bool else b.cast(rows, BOOL))


@masking()
def _any_of_a_list(b: Graph, r: Random) -> str:
    """ReduceMax over [B, S, n] of equalities with a constant list."""
    tokens = r.sample(range(VOCABULARY), r.randrange(2, 5))
    b.numbers = tuple(tokens)
    equal = b.cast(b.op("Equal", b.unsqueeze(I, 2), b.ints([[tokens]])), INT32)
    found = b.op("ReduceSum", equal, b.ints([2]), keepdims=0)
    return b.keys(b.op("Equal", found, b.ints(0, np.int32)))


@masking()
def _causal_after_a_token(b: Graph, r: Random) -> str:
    """Keys before the token are seen by all, those after it by later queries."""
    token = r.randrange(VOCABULARY)
    b.numbers = (token,)
    q, k = b.grid(I)
    seen = b.op("CumSum", b.cast(b.op("Equal", I, b.ints(token)), INT64), b.ints(1))
    before = b.keys(b.op("Equal", seen, b.ints(0)))
    return b.op("Or", before, b.op("LessOrEqual", k, q))


@masking()
def _up_to_a_token(b: Graph, r: Random) -> str:
    """Everything up to the first such token: neighbours decide about a key."""
    token = r.randrange(VOCABULARY)
    b.numbers = (token,)
    seen = b.op("CumSum", b.cast(b.op("Equal", I, b.ints(token)), INT32), b.ints(1), exclusive=r.randrange(2))
    return b.keys(b.op("Equal", seen, b.ints(0, np.int32)))


@masking()
def _next_key(b: Graph, r: Random) -> str:
    """A key is hidden where its neighbour is padding."""
    token = r.randrange(VOCABULARY)
    b.numbers = (token,)
    shifted = b.op("Slice", I, b.ints([1]), b.ints([1 << 62]), b.ints([1]))
    padded = b.op("Pad", shifted, b.ints([0, 0, 0, 1]), b.ints(0))
    return b.keys(b.op("Not", b.op("Equal", padded, b.ints(token))))


@masking()
def _as_the_first(b: Graph, r: Random) -> str:
    """Keys other than the row's first token."""
    first = b.op("Slice", I, b.ints([0]), b.ints([1]), b.ints([1]))
    return b.keys(b.op("Not", b.op("Equal", I, first)) if r.random() < 0.5 else b.op("Equal", I, first))


@masking()
def _of_another_row(b: Graph, r: Random) -> str:
    """The first row's padding hides keys in every row."""
    token = r.choice([0, 1])
    b.numbers = (token,)
    first = b.op("Slice", I, b.ints([0]), b.ints([1]), b.ints([0]))
    return b.keys(b.op("Not", b.op("Equal", first, b.ints(token))))


@masking(added=True)
def _biased_by_token(b: Graph, r: Random) -> str:
    """table[ids] of numbers: a small bias here and there, or of every token."""
    values = np.zeros(VOCABULARY, np.float32)
    chosen = r.sample(range(VOCABULARY), r.choice([1, 3, VOCABULARY]))
    values[chosen] = r.choice([-1.0, 0.5, -10.0])
    b.numbers = tuple(chosen[:3])
    return b.keys(b.op("Gather", b.const(values), I, axis=0))


@masking()
def _of_the_word_table(b: Graph, r: Random) -> str:
    """Visible where the token's word vector has a positive first number."""
    table = b.const(np.random.default_rng(r.randrange(99)).standard_normal((VOCABULARY, 3)) + r.choice([0, 2, 3]))
    first = b.op("Gather", b.op("Gather", table, I, axis=0), b.ints(0), axis=2)
    return b.keys(b.op("Greater", first, b.const(0.0)))


@masking()
def _float_ids(b: Graph, r: Random) -> str:
    """Ids as floats, compared with a number between two."""
    token = r.randrange(1, VOCABULARY)
    b.numbers = (token,)
    return b.keys(b.op("Greater", b.cast(I, FLOAT), b.const(token - r.choice([0.5, 0.0]))))
