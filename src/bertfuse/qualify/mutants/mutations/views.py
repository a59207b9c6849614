"""Operators that move elements about, put on an edge so that the result is what it was: at some sizes, or at all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import onnx

from ..facts import Kind
from ..mutant import Mutant
from ..sizes import Arithmetic

_LETTERS = "abcdef"


def view(m: Mutant, r: Random) -> str | None:
    """Einsum, Pad, Squeeze and Reduce of no axes, uneven Split, Resize, Reshape, GatherND, Expand, Tile on an edge."""
    node, index = m.edge(r)
    if node is None or (kind := m.kinds.get(node.input[index])) is None or not kind.shape:
        return None
    x = node.input[index]
    maker = r.choice(_VIEWS)
    made = maker(Arithmetic(m, r, node), x, kind)
    if made is None:
        return None
    m.kinds[made] = kind
    node.input[index] = made
    return f"{maker.__name__.strip('_')} between '{x}' and {m.called(node)}"


def _einsum(of: Arithmetic, x: str, kind: Kind) -> str | None:
    if not kind.is_float:
        return None
    letters = _LETTERS[: len(kind.shape)]
    if of.r.random() < 0.5:
        one = [n if a == n and of.r.random() < 0.3 else 1 for a, n in kind.shape]
        ones = of.m.add_constant(np.ones(one, onnx.helper.tensor_dtype_to_np_dtype(kind.element)))
        return of.op("Einsum", x, ones, equation=f"{letters},{letters}->{letters}")
    equation = of.r.choice([f"{letters}->{letters}", "...->...", f"...{letters[-1]}->...{letters[-1]}", letters])
    return of.op("Einsum", x, equation=equation)


def _pad(of: Arithmetic, x: str, kind: Kind) -> str | None:
    """More elements at one end of an axis, or none, and away with them again; or one taken and put back."""
    r, rank = of.r, len(kind.shape)
    axis, n = r.randrange(rank), r.choice([0, 1, 2])
    at_end = r.random() < 0.5
    pads = [0] * (2 * rank)
    pads[axis + rank * at_end] = n
    given = [of.ints(pads)]
    if of.m.opset >= 18 and r.random() < 0.6:  # of some axes alone, in another order
        axes = r.sample(range(rank), r.randrange(1, rank + 1))
        if axis not in axes:
            axes.append(axis)
        given = [of.ints([pads[a] for a in axes] + [pads[a + rank] for a in axes]), "", of.ints(axes)]
    mode = r.choice(["constant", "constant", "edge"]) if kind.is_float and len(given) == 1 else "constant"
    wide = of.op("Pad", x, *given, mode=mode)
    if not n:
        return wide
    if r.random() < 0.5:
        bounds = ([0], [-n]) if at_end else ([n], [1 << 62])
        return of.op("Slice", wide, *map(of.ints, bounds), of.ints([axis]))
    pads[axis + rank * at_end] = -n
    return of.op("Pad", wide, of.ints(pads))


def _squeeze(of: Arithmetic, x: str, kind: Kind) -> str | None:
    """Without axes: every axis of one element goes, also that of a batch of one."""
    axis = of.r.randrange(len(kind.shape) + 1)
    return of.op("Squeeze", of.m.reshaped(of.node, "Unsqueeze", x, [axis]))


def _reduce(of: Arithmetic, x: str, kind: Kind) -> str | None:
    """Over no axes: all of them, or with noop_with_empty_axes none."""
    op = of.r.choice(["ReduceSum", "ReduceMean", "ReduceMax"])
    if (not kind.is_float and op == "ReduceMean") or kind.element == onnx.TensorProto.BOOL:
        return None
    noop = {"noop_with_empty_axes": of.r.choice([0, 1, 1])}
    if op != "ReduceSum" and of.m.opset < 18:
        return of.op(op, x, keepdims=1)
    axes = of.r.choice([[of.ints(np.zeros(0))], [""], []])
    return of.op(op, x, *axes, keepdims=1, **noop)


def _split(of: Arithmetic, x: str, kind: Kind) -> str | None:
    """In parts of which the last may be smaller, joined in their order or in another."""
    r, m = of.r, of.m
    axis = r.randrange(len(kind.shape))
    count = r.choice([2, 3, 4])
    if m.opset >= 18:
        parts = m.insert_before(of.node, "Split", [x], outputs=count, axis=axis, num_outputs=count)
    else:
        cut = of.r.choice([1, 2])
        rest = of.op("Sub", m.reshaped(of.node, "Unsqueeze", of.size(x, axis), [0]), of.ints([cut]))
        sizes = of.op("Concat", *r.sample([of.ints([cut]), rest], 2), axis=0)
        parts = m.insert_before(of.node, "Split", [x, sizes], outputs=2, axis=axis)
    parts = list(parts)
    if r.random() < 0.3:
        r.shuffle(parts)
    return of.op("Concat", *parts, axis=axis)


def _resize(of: Arithmetic, x: str, kind: Kind) -> str | None:
    """To the sizes that it has, or nearly."""
    if not kind.is_float:
        return None
    r, m, rank = of.r, of.m, len(kind.shape)
    if m.opset >= 18 and r.random() < 0.6:
        axes = sorted(r.sample(range(rank), r.randrange(1, rank + 1)))
        sizes = of.op("Concat", *(m.reshaped(of.node, "Unsqueeze", of.size(x, a), [0]) for a in axes), axis=0)
        policy = r.choice(["stretch", "not_larger", "not_smaller"])
        return of.op("Resize", x, "", "", sizes, axes=axes, keep_aspect_ratio_policy=policy, mode="nearest")
    if r.random() < 0.5:
        scales = [1.0] * rank
        if r.random() < 0.3:
            scales[r.randrange(rank)] = r.choice([1.01, 1.1, 0.99])
        return of.op("Resize", x, "", of.floats(scales), mode="nearest")
    return of.op("Resize", x, "", "", of.op("Shape", x), mode="nearest")


def _reshape(of: Arithmetic, x: str, kind: Kind) -> str | None:
    """There and back, by sizes, by -1 and by 0, which means two things."""
    r, m = of.r, of.m
    own = of.op("Shape", x)
    allowzero = {"allowzero": r.choice([0, 1])} if m.opset >= 14 else {}
    if r.random() < 0.3:
        return of.op("Reshape", x, own, **allowzero)
    if r.random() < 0.4:
        axis = r.randrange(len(kind.shape))
        number, _ = of.of_size(x, axis)
        wanted = [m.reshaped(of.node, "Unsqueeze", of.size(x, a), [0]) for a in range(len(kind.shape))]
        wanted[axis] = m.reshaped(of.node, "Unsqueeze", number, [0])
        return of.op("Reshape", x, of.op("Concat", *wanted, axis=0), **allowzero)
    flat = of.op("Reshape", x, of.ints(r.choice([[-1], [1, -1], [-1, 1]])))
    return of.op("Reshape", flat, own, **allowzero)


def _gather_nd(of: Arithmetic, x: str, kind: Kind) -> str | None:
    """Every token of every row by its number, or every row."""
    r, m = of.r, of.m
    if len(kind.shape) < 2:
        return None
    batch = r.choice([0, 1])
    numbers = of.op("Range", of.ints(0), of.size(x, batch), of.ints(1))
    if r.random() < 0.2:
        numbers = of.op("Mod", of.op("Add", numbers, of.ints(1)), of.size(x, batch))
    column = m.reshaped(of.node, "Unsqueeze", numbers, [1])
    if not batch:
        return of.op("GatherND", x, column)
    rows = m.reshaped(of.node, "Unsqueeze", of.size(x, 0), [0])
    shape = of.op("Concat", rows, of.op("Shape", column), axis=0)
    return of.op("GatherND", x, of.op("Expand", column, shape), batch_dims=1)


def _expand(of: Arithmetic, x: str, kind: Kind) -> str | None:
    """To a shape of which axes are computed: the same, or more where the tensor has one element."""
    r, m, rank = of.r, of.m, len(kind.shape)
    if r.random() < 0.3:
        return of.op("Tile", x, of.ints([1] * rank))
    axis = r.randrange(rank)
    sizes = [of.ints([1])] * rank
    number, _ = of.of_size(x, axis)
    sizes[axis] = m.reshaped(of.node, "Unsqueeze", number, [0])
    return of.op("Expand", x, of.op("Concat", *sizes, axis=0))


_VIEWS: tuple[Callable[[Arithmetic, str, Kind], str | None], ...] = (
    _einsum, _pad, _squeeze, _reduce, _split, _resize, _reshape, _gather_nd, _expand,
)  # fmt: skip


def as_einsum(m: Mutant, r: Random) -> str | None:
    """A Transpose, a Mul or a MatMul spelled as Einsum, in which axes of one element broadcast, too."""
    node = m.node(r, lambda n: n.op_type in ("Transpose", "Mul", "MatMul") and not n.domain)
    if node is None:
        return None
    kinds = [m.kinds.get(name) for name in node.input]
    if any(kind is None or not kind.is_float for kind in kinds):
        return None
    what = m.called(node)
    ranks = [len(kind.shape) for kind in kinds]
    if node.op_type == "Transpose":
        perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), None) or range(ranks[0])[::-1]
        equation = f"{_LETTERS[: ranks[0]]}->{''.join(_LETTERS[i] for i in perm)}"
    elif node.op_type == "Mul":
        if ranks[0] != ranks[1]:
            return None
        letters = _LETTERS[: ranks[0]]
        equation = f"{letters},{letters}->{letters}"
    else:
        if min(ranks) < 2 or (ranks[0] != ranks[1] and ranks[1] != 2):
            return None
        left = _LETTERS[: ranks[0] - 1]
        right = "" if ranks[1] == 2 else left[:-1]
        equation = f"{left}x,{right}xy->{left}y"
    node.op_type = "Einsum"
    del node.attribute[:]
    node.attribute.append(onnx.helper.make_attribute("equation", equation))
    return f"{what} is Einsum {equation}"
