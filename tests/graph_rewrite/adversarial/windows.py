"""Windows, blocks, causal masks and biases of distance, whose sizes are no literals, or come from attributes."""

from __future__ import annotations

from .build import BOOL, FLOAT, HEADS, INT64, Case, Graph, Random, attention_of, masking, np
from .build import HIDDEN_VALUES as HIDDEN

M, I = "attention_mask", "ids"  # noqa: E741


def _size(r: Random) -> int:
    return r.choice([r.randrange(1, 12), r.randrange(12, 70), r.randrange(70, 300), 256])


def _masked(b: Graph, condition: str) -> str:
    """And the user's mask, or not."""
    return b.op("And", condition, b.cast(b.keys(M), BOOL)) if b.r.random() < 0.5 else condition


@masking(count=10)
def _window(b: Graph, r: Random) -> str:
    """|q - k| <= n."""
    n = _size(r)
    op = r.choice(["LessOrEqual", "Less"])
    b.numbers = (n,)
    return _masked(b, b.op(op, b.distance(I), b.number(n)))


@masking(never="FusedAttention", count=6)
def _wide_window(b: Graph, r: Random) -> str:
    """A window that no input here is as long as."""
    n = r.choice([2000, 4096, 65536, 1 << 21, (1 << 31) - 1])
    if r.random() < 0.5:
        return b.op(
            "LessOrEqual", b.distance(I), b.ints(n) if r.random() < 0.5 else b.op("Mul", b.ints(n // 16), b.ints(16))
        )
    half = b.op("Sqrt", b.const(float(n) * n))
    return b.op("LessOrEqual", b.cast(b.distance(I), FLOAT), half)


@masking(count=10)
def _blocks(b: Graph, r: Random) -> str:
    """Queries see keys of their own block of n."""
    n = r.randrange(2, 130)
    b.numbers = (n,)
    q, k = b.grid(I)
    if r.random() < 0.5:
        return _masked(b, b.op("Equal", b.op("Div", q, b.number(n)), b.op("Div", k, b.number(n))))
    blocks = [b.op("Floor", b.op("Div", b.cast(t, FLOAT), b.const(float(n)))) for t in (q, k)]
    return _masked(b, b.op("Equal", *blocks))


@masking(count=10)
def _dilated(b: Graph, r: Random) -> str:
    """Every n-th key."""
    n = r.randrange(2, 40)
    b.numbers = (n,)
    distance = b.distance(I) if r.random() < 0.5 else b.grid(I)[1]
    rest = b.op("Mod", distance, b.number(n))
    return _masked(b, b.op("Not", b.op("Equal", rest, b.ints(r.choice([n - 1, 0])))))


@masking(added=True, count=10)
def _ramp(b: Graph, r: Random) -> str:
    """Relu(|q - k| - n) * -1e9."""
    n = _size(r)
    b.numbers = (n,)
    far = b.op("Sub", b.cast(b.distance(I), FLOAT), b.cast(b.number(n), FLOAT))
    return b.op("Mul", b.op("Relu", far), b.const(r.choice(HIDDEN)))


@masking(added=True, count=10)
def _by_attribute(b: Graph, r: Random) -> str:
    """The size is an attribute."""
    n = _size(r)
    b.numbers = (n,)
    distance = b.cast(b.distance(I), FLOAT)
    how = r.randrange(5)
    if how == 0:
        far = b.op("ThresholdedRelu", distance, alpha=float(n))
    elif how == 1:
        far = b.op("Shrink", distance, lambd=float(n), bias=0.0)
    elif how == 2:
        far = b.op("HardSigmoid", distance, alpha=1.0, beta=-float(n))
    elif how == 3:
        far = b.op("Relu", b.op("Sub", distance, b.op("Constant", value_float=float(n))))
    else:
        far = b.op("Relu", b.op("Sub", distance, b.cast(b.op("Constant", value_int=n), FLOAT)))
    return b.op("Mul", far, b.const(-1e9))


@masking(opset=(14, 17, 18), count=10)
def _triangle(b: Graph, r: Random) -> str:
    """Trilu of ones, with a k that is computed."""
    n = r.choice([0, 1, 4, 30])
    b.numbers = (n + 1,)
    length = b.size(I, 1)
    ones = b.op("Expand", b.const(1.0), b.op("Concat", length, length, axis=0))
    k = b.op("Sub", b.ints(n + 3), b.ints(3)) if r.random() < 0.5 else b.op("Mul", b.number(n + 1), b.ints(1))
    return _masked(b, b.cast(b.op("Trilu", ones, k, upper=r.randrange(2)), BOOL))


def _buffer(r: Random) -> Case:
    """A slice of a constant [1, 1, N, N], as old GPT exports have it."""
    n, width = r.choice([40, 64]), r.choice([1, 3, 20, 33])
    q, k = np.ogrid[:n, :n]
    values = r.choice([k <= q, abs(q - k) < width, (q // width) == (k // width), (k < width) | (k <= q)])

    def make(b: Graph) -> str:
        length = b.size(I, 1)
        kind = r.choice([bool, np.uint8])
        table = b.const(values[None, None].astype(kind), dtype=kind)
        rows = b.op("Slice", table, b.ints([0]), length, b.ints([2]), b.ints([1]))
        square = b.op("Slice", rows, b.ints([0]), length, b.ints([3]), b.ints([1]))
        return _masked(b, square if kind is bool else b.cast(square, BOOL))

    return attention_of(r, make, longest=n, numbers=(width,), count=10)


@masking(added=True, count=10, longest=100)
def _linear_bias(b: Graph, r: Random) -> str:
    """ALiBi: a bias of distance, by head; tiny or not."""
    slope = r.choice([1e-4, 1e-2, 0.5])
    slopes = b.const(slope * 2.0 ** -np.arange(HEADS).reshape(1, HEADS, 1, 1)) if r.random() < 0.6 else b.const(slope)
    bias = b.op("Mul", b.op("Neg", b.cast(b.distance(I), FLOAT)), slopes)
    if r.random() < 0.5:
        return bias
    return b.op("Add", bias, b.additive(b.cast(b.keys(M), BOOL)))


@masking(longest=130, opset=(13, 17, 18))
def _half_way(b: Graph, r: Random) -> str:
    """Windows relative to the length: S / 2, S², S - n."""
    length = b.length(I)
    size = r.choice(
        [
            lambda: b.op("Div", length, b.ints(r.choice([2, 3]))),
            lambda: b.op("Sub", b.op("Mul", length, length), b.ints(r.choice([30, 400, 3000]))),
            lambda: b.op("Sub", length, b.ints(r.choice([2, 5, 19]))),
            lambda: b.op("Sub", b.ints(r.choice([25, 120])), length),
            lambda: b.op("Mod", length, b.ints(r.choice([2, 7]))),
        ]
    )()
    return b.op(r.choice(["LessOrEqual", "GreaterOrEqual"]), b.distance(I), size)


@masking(count=10)
def _global_tokens(b: Graph, r: Random) -> str:
    """A window, and the first tokens for all (Longformer)."""
    n, first = r.randrange(3, 60), r.randrange(1, 5)
    b.numbers = (n,)
    q, k = b.grid(I)
    near = b.op("LessOrEqual", b.distance(I), b.number(n))
    return _masked(b, b.op("Or", near, b.op("Or", b.op("Less", k, b.ints(first)), b.op("Less", q, b.ints(first)))))


@masking(count=10)
def _shifted(b: Graph, r: Random) -> str:
    """Windows by BitShift: blocks of a power of two."""
    power = r.randrange(1, 8)
    b.numbers = (1 << power,)
    q, k = (b.cast(t, 13) for t in b.grid(I))
    q, k = (b.op("BitShift", t, b.ints(power, np.uint64), direction="RIGHT") for t in (q, k))
    return b.op("Equal", b.cast(q, INT64), b.cast(k, INT64))
