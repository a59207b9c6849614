"""Masks made of token ids: tables, comparisons, and tokens that change what comes after them."""

from __future__ import annotations

from .build import BOOL, FLOAT, INT32, INT64, VOCABULARY, Case, Graph, Random, attention_of, np

I = "ids"  # noqa: E741


def _table(r: Random) -> Case:
    """visible = table[ids], with very few zeros."""
    values = np.ones(VOCABULARY)
    zeros = r.sample(range(VOCABULARY), r.choice([1, 1, 2, 5]))
    values[zeros] = 0
    kind = r.choice([bool, np.int64, np.int32, np.float32, np.uint8])

    def make(b: Graph) -> str:
        rows = b.op("Gather", b.const(values.astype(kind), dtype=kind), I, axis=0)
        return b.keys(rows if kind is bool else b.cast(rows, BOOL))

    return attention_of(r, make, numbers=tuple(zeros))


def _not_one_token(r: Random) -> Case:
    token = r.randrange(VOCABULARY)
    return attention_of(r, lambda b: b.keys(b.op("Not", b.op("Equal", I, b.number(token or 1)))), numbers=(token,))


def _compared(r: Random) -> Case:
    token, op = r.randrange(VOCABULARY), r.choice(["Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"])
    return attention_of(r, lambda b: b.keys(b.op(op, I, b.ints(token))), numbers=(token,))


def _some_tokens(r: Random) -> Case:
    """None of a few tokens."""
    tokens = r.sample(range(VOCABULARY), r.randrange(2, 5))

    def make(b: Graph) -> str:
        hidden = b.op("Equal", I, b.ints(tokens[0]))
        for token in tokens[1:]:
            hidden = b.op("Or", hidden, b.op("Equal", I, b.ints(token)))
        return b.keys(b.op("Not", hidden))

    return attention_of(r, make, numbers=tuple(tokens))


def _any_of_a_list(r: Random) -> Case:
    """ReduceMax over [B, S, n] of equalities with a constant list."""
    tokens = r.sample(range(VOCABULARY), r.randrange(2, 5))

    def make(b: Graph) -> str:
        equal = b.cast(b.op("Equal", b.unsqueeze(I, 2), b.ints([[tokens]])), INT32)
        found = b.op("ReduceSum", equal, b.ints([2]), keepdims=0)
        return b.keys(b.op("Equal", found, b.ints(0, np.int32)))

    return attention_of(r, make, numbers=tuple(tokens))


def _arithmetic(r: Random) -> Case:
    """Max(ids, 0), Min(ids + 1, n), Mod, Div and products, compared with a token or cast to bool."""
    token = r.randrange(1, VOCABULARY)

    def make(b: Graph) -> str:
        x, op = I, r.choice(["Max", "Min", "Mod", "Div", "Sub", "Add", "Mul"])
        x = b.op(op, x, b.ints(r.choice([1, 2, 3, token])))
        if r.random() < 0.5:
            return b.keys(b.cast(x, BOOL))
        return b.keys(b.op("Not", b.op("Equal", x, b.ints(r.choice([0, 1, token])))))

    return attention_of(r, make, numbers=(token,))


def _through_float16(r: Random) -> Case:
    """Compared as numbers of 11 bits, or of one byte."""
    token, kind = r.randrange(VOCABULARY), r.choice([10, 2, 3, 11])
    return attention_of(
        r, lambda b: b.keys(b.op("Not", b.op("Equal", b.cast(b.cast(I, kind), INT64), b.ints(token)))), numbers=(token,)
    )


def _causal_after_a_token(r: Random) -> Case:
    """Keys before the token are seen by all, those after it by later queries."""
    token = r.randrange(VOCABULARY)

    def make(b: Graph) -> str:
        q, k = b.grid(I)
        seen = b.op("CumSum", b.cast(b.op("Equal", I, b.ints(token)), INT64), b.ints(1))
        before = b.keys(b.op("Equal", seen, b.ints(0)))
        return b.op("Or", before, b.op("LessOrEqual", k, q))

    return attention_of(r, make, numbers=(token,))


def _up_to_a_token(r: Random) -> Case:
    """Everything up to the first such token: neighbours decide about a key."""
    token = r.randrange(VOCABULARY)

    def make(b: Graph) -> str:
        seen = b.op("CumSum", b.cast(b.op("Equal", I, b.ints(token)), INT32), b.ints(1), exclusive=r.randrange(2))
        return b.keys(b.op("Equal", seen, b.ints(0, np.int32)))

    return attention_of(r, make, numbers=(token,))


def _next_key(r: Random) -> Case:
    """A key is hidden where its neighbour is padding."""
    token = r.randrange(VOCABULARY)

    def make(b: Graph) -> str:
        shifted = b.op("Slice", I, b.ints([1]), b.ints([1 << 62]), b.ints([1]))
        padded = b.op("Pad", shifted, b.ints([0, 0, 0, 1]), b.ints(0))
        return b.keys(b.op("Not", b.op("Equal", padded, b.ints(token))))

    return attention_of(r, make, numbers=(token,))


def _as_the_first(r: Random) -> Case:
    """Keys other than the row's first token."""

    def make(b: Graph) -> str:
        first = b.op("Slice", I, b.ints([0]), b.ints([1]), b.ints([1]))
        return b.keys(b.op("Not", b.op("Equal", I, first)) if r.random() < 0.5 else b.op("Equal", I, first))

    return attention_of(r, make)


def _of_another_row(r: Random) -> Case:
    """The first row's padding hides keys in every row."""
    token = r.choice([0, 1])

    def make(b: Graph) -> str:
        first = b.op("Slice", I, b.ints([0]), b.ints([1]), b.ints([0]))
        return b.keys(b.op("Not", b.op("Equal", first, b.ints(token))))

    return attention_of(r, make, numbers=(token,))


def _same_token(r: Random) -> Case:
    """Queries see keys of the same token, or smaller ones."""
    return attention_of(r, lambda b: b.op(r.choice(["Equal", "GreaterOrEqual"]), b.queries(I), b.keys(I)))


def _with_the_mask(r: Random) -> Case:
    """A given mask and padding together, by And, Or, Mul or Min."""
    token = r.choice([0, 1, 50])

    def make(b: Graph) -> str:
        real = b.op("Not", b.op("Equal", I, b.ints(token)))
        if r.random() < 0.5:
            return b.keys(b.op(r.choice(["And", "Or", "Xor"]), b.cast("attention_mask", BOOL), real))
        product = b.op(r.choice(["Mul", "Min", "Max", "Add"]), "attention_mask", b.cast(real, INT64))
        return b.keys(b.cast(product, BOOL))

    return attention_of(r, make, numbers=(token,))


def _biased_by_token(r: Random) -> Case:
    """table[ids] of numbers: a small bias here and there, or of every token."""
    values = np.zeros(VOCABULARY, np.float32)
    chosen = r.sample(range(VOCABULARY), r.choice([1, 3, VOCABULARY]))
    values[chosen] = r.choice([-1.0, 0.5, -10.0])
    return attention_of(
        r, lambda b: b.keys(b.op("Gather", b.const(values), I, axis=0)), added=True, numbers=tuple(chosen[:3])
    )


def _of_the_word_table(r: Random) -> Case:
    """Visible where the token's word vector has a positive first number."""

    def make(b: Graph) -> str:
        table = b.const(np.random.default_rng(r.randrange(99)).standard_normal((VOCABULARY, 3)) + r.choice([0, 2, 3]))
        first = b.op("Gather", b.op("Gather", table, I, axis=0), b.ints(0), axis=2)
        return b.keys(b.op("Greater", first, b.const(0.0)))

    return attention_of(r, make)


def _float_ids(r: Random) -> Case:
    """Ids as floats, compared with a number between two."""
    token = r.randrange(1, VOCABULARY)
    return attention_of(
        r, lambda b: b.keys(b.op("Greater", b.cast(I, FLOAT), b.const(token - r.choice([0.5, 0.0])))), numbers=(token,)
    )


RECIPES = (
    _table, _not_one_token, _compared, _some_tokens, _any_of_a_list, _arithmetic, _through_float16,
    _causal_after_a_token, _up_to_a_token, _next_key, _as_the_first, _of_another_row, _same_token, _with_the_mask,
    _biased_by_token, _of_the_word_table, _float_ids,
)  # fmt: skip
