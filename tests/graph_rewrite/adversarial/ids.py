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
def _not_one_token(b: Graph, r: Random) -> str:
    token = r.randrange(VOCABULARY)
    b.numbers = (token,)
    return b.keys(b.op("Not", b.op("Equal", I, b.number(token or 1))))


@masking()
def _compared(b: Graph, r: Random) -> str:
    token, op = r.randrange(VOCABULARY), r.choice(["Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"])
    b.numbers = (token,)
    return b.keys(b.op(op, I, b.ints(token)))


@masking()
def _some_tokens(b: Graph, r: Random) -> str:
    """None of a few tokens."""
    tokens = r.sample(range(VOCABULARY), r.randrange(2, 5))
    b.numbers = tuple(tokens)
    hidden = b.op("Equal", I, b.ints(tokens[0]))
    for token in tokens[1:]:
        hidden = b.op("Or", hidden, b.op("Equal", I, b.ints(token)))
    return b.keys(b.op("Not", hidden))


@masking()
def _any_of_a_list(b: Graph, r: Random) -> str:
    """ReduceMax over [B, S, n] of equalities with a constant list."""
    tokens = r.sample(range(VOCABULARY), r.randrange(2, 5))
    b.numbers = tuple(tokens)
    equal = b.cast(b.op("Equal", b.unsqueeze(I, 2), b.ints([[tokens]])), INT32)
    found = b.op("ReduceSum", equal, b.ints([2]), keepdims=0)
    return b.keys(b.op("Equal", found, b.ints(0, np.int32)))


@masking()
def _arithmetic(b: Graph, r: Random) -> str:
    """Max(ids, 0), Min(ids + 1, n), Mod, Div and products, compared with a token or cast to bool."""
    token = r.randrange(1, VOCABULARY)
    b.numbers = (token,)
    x, op = I, r.choice(["Max", "Min", "Mod", "Div", "Sub", "Add", "Mul"])
    x = b.op(op, x, b.ints(r.choice([1, 2, 3, token])))
    if r.random() < 0.5:
        return b.keys(b.cast(x, BOOL))
    return b.keys(b.op("Not", b.op("Equal", x, b.ints(r.choice([0, 1, token])))))


@masking()
def _through_float16(b: Graph, r: Random) -> str:
    """Compared as numbers of 11 bits, or of one byte."""
    token, kind = r.randrange(VOCABULARY), r.choice([10, 2, 3, 11])
    b.numbers = (token,)
    return b.keys(b.op("Not", b.op("Equal", b.cast(b.cast(I, kind), INT64), b.ints(token))))


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


@masking()
def _same_token(b: Graph, r: Random) -> str:
    """Queries see keys of the same token, or smaller ones."""
    return b.op(r.choice(["Equal", "GreaterOrEqual"]), b.queries(I), b.keys(I))


@masking()
def _with_the_mask(b: Graph, r: Random) -> str:
    """A given mask and padding together, by And, Or, Mul or Min."""
    token = r.choice([0, 1, 50])
    b.numbers = (token,)
    real = b.op("Not", b.op("Equal", I, b.ints(token)))
    if r.random() < 0.5:
        return b.keys(b.op(r.choice(["And", "Or", "Xor"]), b.cast("attention_mask", BOOL), real))
    product = b.op(r.choice(["Mul", "Min", "Max", "Add"]), "attention_mask", b.cast(real, INT64))
    return b.keys(b.cast(product, BOOL))


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


RECIPES = (
    _table, _not_one_token, _compared, _some_tokens, _any_of_a_list, _arithmetic, _through_float16,
    _causal_after_a_token, _up_to_a_token, _next_key, _as_the_first, _of_another_row, _same_token, _with_the_mask,
    _biased_by_token, _of_the_word_table, _float_ids,
)  # fmt: skip
