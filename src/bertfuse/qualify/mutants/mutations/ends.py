"""Parts that are counted from the end: the last tokens, the last token of each text, sequences turned around."""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
from onnx import helper

from ..mutant import Mutant
from ..sizes import Arithmetic

_END, _BEGIN = (1 << 63) - 1, -(1 << 63)


def _bound(of: Arithmetic, x: str, axis: int) -> tuple[str, str]:
    """A bound of a Slice, int64 [1]: a number below 0, or one that is computed of the size."""
    r = of.r
    if r.random() < 0.5:
        n = -r.choice([1, 1, 2, 3, 4, 5, 8])
        return of.ints([n]), str(n)
    number, what = of.of_size(x, axis)
    if r.random() < 0.3:
        number, what = of.op("Neg", number), f"-({what})"
    return of.m.reshaped(of.node, "Unsqueeze", number, [0]), what


def rolled(m: Mutant, r: Random) -> str | None:
    """A tensor cut in two at a place that is counted from its end, and joined: as it was, or the other way round."""
    node, index = m.edge(r)
    if node is None or (kind := m.kinds.get(node.input[index])) is None:
        return None
    x = node.input[index]
    varying = [axis for axis, (a, b) in enumerate(kind.shape) if a != b]
    if not varying:
        return None
    axis = r.choice(varying)
    of = Arithmetic(m, r, node)
    if r.random() < 0.25:
        start = of.ints([r.choice([-1, _END, 3, 7])])
        if r.random() < 0.3:
            start, _ = _bound(of, x, axis)
        end = of.ints([r.choice([_BEGIN, -100])])
        made = of.op("Slice", x, start, end, of.ints([axis]), of.ints([-1]))
        what = "backwards"
        if r.random() < 0.4:
            made = of.op("Slice", made, of.ints([-1]), of.ints([_BEGIN]), of.ints([axis]), of.ints([-1]))
            what += " and back"
    else:
        bound, what = _bound(of, x, axis)
        axes = of.ints([r.choice([axis, axis - len(kind.shape)])])
        parts = [of.op("Slice", x, of.ints([0]), bound, axes), of.op("Slice", x, bound, of.ints([_END]), axes)]
        if r.random() < 0.4:
            parts.reverse()
            what += ", exchanged"
        made = of.op("Concat", *parts, axis=axis)
    m.kinds[made] = kind
    node.input[index] = made
    return f"'{x}' for {m.called(node)} is cut along axis {axis} at {what}"


def pooled(m: Mutant, r: Random) -> str | None:
    """One more output: a head over what is taken from the end of hidden states [B, S, H]."""
    found = [name for name, kind in m.kinds.items() if kind is not None and _is_hidden(kind) and _is_made(m, name)]
    ends = [name for name in found if name in m.output_names()]
    if not found:
        return None
    x = r.choice(ends if ends and r.random() < 0.6 else found)
    (_, _), (_, _), (hidden, _) = m.kinds[x].shape
    of = Arithmetic(m, r, None)
    taken, what = _taken(of, x)
    y, head = _head(of, taken, hidden, m.kinds[x].element)
    m.model.graph.output.append(onnx.ValueInfoProto(name=y))
    m.model.graph.output[-1].type.tensor_type.elem_type = m.kinds[x].element
    return f"'{y}' is an output, too: {head} of {what} of '{x}'"


def _is_hidden(kind) -> bool:
    sizes = kind.shape
    return kind.is_float and len(sizes) == 3 and sizes[2][0] == sizes[2][1] and all(a != b for a, b in sizes[:2])


def _is_made(m: Mutant, name: str) -> bool:
    return any(name in n.output for n in m.nodes)


def _taken(of: Arithmetic, x: str) -> tuple[str, str]:
    """[B, n, H] or [B, H] of x."""
    r, m = of.r, of.m
    how = r.randrange(6)
    axes = of.ints([1])
    if how <= 1:
        bound, what = _bound(of, x, 1)
        return of.op("Slice", x, bound, of.ints([_END]), axes), f"[{what}:]"
    if how == 2:
        bound, what = _bound(of, x, 1)
        return of.op("Slice", x, of.ints([0]), bound, axes), f"[:{what}]"
    if how == 3:
        start, end = r.choice([(-1, -1 - r.choice([1, 2, 4])), (r.choice([2, 5, 9]), _BEGIN), (-2, _BEGIN)])
        part = of.op("Slice", x, of.ints([start]), of.ints([end]), axes, of.ints([-1]))
        return part, f"[{start}:{end}:-1]"
    if how == 4:
        return of.op("Gather", x, of.ints(r.choice([-1, -1, -2, 1])), axis=1), "one token"
    index, what = _last_tokens(of, x)
    if r.random() < 0.7:
        return of.op("GatherND", x, m.reshaped(None, "Unsqueeze", index, [1]), batch_dims=1), f"token {what}"
    one = m.reshaped(None, "Unsqueeze", index, [1, 2])
    shape = of.op("Concat", of.op("Shape", one, end=2), of.op("Shape", x, start=2), axis=0)
    return of.op("GatherElements", x, of.op("Expand", one, shape), axis=1), f"elements of token {what}"


def _last_tokens(of: Arithmetic, x: str) -> tuple[str, str]:
    """int64 [B]: by a mask, or by the length."""
    m, r = of.m, of.r
    mask = next((i for i in m.facts.signature.inputs if i.is_mask and len(i.shape) == 2), None)
    if mask is not None and r.random() < 0.6:
        count = m.reshaped(None, "ReduceSum", of.cast(mask.name, onnx.TensorProto.INT64), [1], keepdims=0)
        return of.op("Sub", count, of.ints(1)), "sum of the mask - 1"
    number = of.op("Sub", of.size(x, 1), of.ints(1))
    batch = m.reshaped(None, "Unsqueeze", of.size(x, 0), [0])
    return of.op("Expand", number, batch), "S - 1"


def _head(of: Arithmetic, x: str, hidden: int, element: int) -> tuple[str, str]:
    """What a model does with pooled tokens."""
    r, m = of.r, of.m
    random = np.random.default_rng(r.randrange(1 << 30))
    dtype = helper.tensor_dtype_to_np_dtype(element)
    weight = lambda *shape: m.add_constant((random.standard_normal(shape) / np.sqrt(hidden)).astype(dtype))  # noqa: E731
    linear = lambda t, n: of.op("Add", of.op("MatMul", t, weight(hidden, n)), weight(n))  # noqa: E731
    how = r.choice(["mean", "linear and Softmax", "linear", "residual and LayerNorm", "GELU", "Softmax", "as it is"])
    if how == "mean":
        return m.reshaped(None, "ReduceMean", x, [1], keepdims=r.choice([0, 1])), how
    if how == "linear and Softmax":
        return of.op("Softmax", linear(x, 5), axis=r.choice([-1, -1, 1])), how
    if how == "linear":
        return linear(x, 3), how
    if how == "residual and LayerNorm" and m.opset >= 17:
        total = of.op("Add", linear(x, hidden), x)
        return of.op("LayerNormalization", total, m.add_constant(np.ones(hidden, dtype)), weight(hidden), axis=-1), how
    if how == "GELU":
        wide = linear(x, hidden)
        erf = of.op("Erf", of.op("Div", wide, m.add_constant(np.asarray(np.sqrt(2.0), dtype))))
        one, half = (m.add_constant(np.asarray(n, dtype)) for n in (1.0, 0.5))
        return of.op("Mul", of.op("Mul", wide, of.op("Add", erf, one)), half), how
    if how == "Softmax":
        return of.op("Softmax", x, axis=-1), how
    return of.op("Identity", x), "nothing"
