"""Operators that reduce axes, and those that sort or search along one."""

from __future__ import annotations

import numpy as np

from ..draw import Draw, near
from .registry import draws


@draws(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def reduction(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.float32, np.int32, np.int64), (0, 4))
    rank = d.rank(name)
    attrs = {"keepdims": d.maybe(d.r.randrange(2), 0.6)}
    given = d.chance(0.8)
    axes = [] if d.chance(0.2) else d.axes(rank)
    if op == "ReduceSum" or d.opset >= 18:
        attrs["noop_with_empty_axes"] = d.maybe(d.r.randrange(2), 0.4)
        d.node(op, [name, d.ints(axes)] if given else [name], **attrs)
    else:
        d.node(op, [name], axes=axes if given else None, **attrs)


@draws("ArgMax", "ArgMin")
def arg_extreme(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64, np.int32), (1, 4))
    d.node(op, [name], axis=d.maybe(d.axis(d.rank(name))), keepdims=d.maybe(d.r.randrange(2)),
           select_last_index=d.maybe(1, 0.2))  # fmt: skip


@draws("TopK")
def top_k(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64, np.int32), (1, 4))
    axis = d.axis(d.rank(name))
    most = d.shape(name)[axis]
    d.node(op, [name, d.ints([d.r.randint(0, most)])], outputs=2, axis=axis if axis != -1 or d.chance(0.5) else None,
           largest=d.maybe(d.r.randrange(2)), sorted=d.maybe(d.r.randrange(2)))  # fmt: skip


@draws("Unique")
def unique(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64, np.int8), (1, 3))
    outputs = d.r.randint(1, 4)
    d.node(op, [name], outputs=outputs, axis=d.maybe(d.axis(d.rank(name))), sorted=d.maybe(d.r.randrange(2)))


@draws("NonZero")
def non_zero(d: Draw, op: str) -> None:
    d.node(op, [d.tensor((np.float32, np.int64, bool), (0, 4))])


@draws("OneHot")
def one_hot(d: Draw, op: str) -> None:
    name = d.tensor((np.int64, np.int32, np.float32), (0, 3))
    rank = d.rank(name)
    axis = d.maybe(d.r.randint(-rank - 1, rank), 0.7)
    number = d.r.choice((1, 2, 3, 5))
    depth = d.integer(number) if d.chance(0.6) else d.ints([number], near(number))
    values = d.given(np.array([0, 1], d.r.choice((np.float32, np.int64))))
    d.node(op, [name, depth, values], axis=axis)


@draws("Compress")
def compress(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64), (1, 4))
    axis = d.maybe(d.axis(d.rank(name)), 0.7)
    size = d.shape(name)[axis] if axis is not None else int(np.prod(d.shape(name)))
    length = max(0, size + d.r.choice((0, 0, -1)))
    condition = d.constant(d.array([length], bool)) if d.chance(0.5) else d.new([length], bool)
    d.node(op, [name, condition], axis=axis)


@draws("LpNormalization")
def lp_normalization(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.float64), (1, 4))
    d.node(op, [name], axis=d.maybe(d.axis(d.rank(name))), p=d.maybe(d.r.choice((1, 2))))


@draws("MeanVarianceNormalization")
def mean_variance_normalization(d: Draw, op: str) -> None:
    name = d.tensor((np.float32,), 4)
    d.node(op, [name], axes=d.maybe(d.r.choice(([0, 2, 3], [0, 1, 2, 3])), 0.5))


@draws("ReverseSequence")
def reverse_sequence(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64), (2, 4))
    batch = d.r.randrange(2)
    lengths = np.minimum(d.r.randint(1, 3), np.full(d.shape(name)[batch], d.shape(name)[1 - batch]))
    d.node(op, [name, d.given(lengths.astype(np.int64))], batch_axis=batch, time_axis=1 - batch)
