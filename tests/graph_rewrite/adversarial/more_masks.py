"""Masks by operators that no exporter needs for them: scatters, products, loops, sorts, strings of Where."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from .build import BOOL, FLOAT, HEADS, HIDDEN, INT32, INT64, Graph, Random, attend, masking, recipe, spelled

M, I = "attention_mask", "ids"  # noqa: E741


def _flags(b: Graph) -> str:
    return b.cast(b.cast(M, BOOL), INT64)


@masking()
def _gather_elements(b: Graph, r: Random) -> str:
    """The mask read at indices along its length: in order, backwards, by the mask itself."""
    places = b.op("Expand", b.unsqueeze(b.places(I), 0), b.op("Shape", I))
    last = b.op("Sub", b.length(I), b.ints(1))
    index = r.choice([lambda: places, lambda: b.op("Sub", last, places), lambda: b.op("Min", places, _flags(b))])()
    return b.keys(b.cast(b.op("GatherElements", M, index, axis=1), BOOL))


@masking()
def _scattered(b: Graph, r: Random) -> str:
    """Some keys overwritten by ScatterND, ScatterElements or Pad."""
    if r.random() < 0.5:
        index = b.op("Expand", b.ints([[r.choice([0, 1, -1])]]), b.op("Concat", b.size(I, 0), b.ints([1]), axis=0))
        update = b.op("Expand", b.ints([[r.choice([0, 1])]]), b.op("Concat", b.size(I, 0), b.ints([1]), axis=0))
        changed = b.op("ScatterElements", M, index, update, axis=1)
    else:
        row = b.op("Expand", b.ints([r.choice([0, 1])]), b.size(I, 1))
        changed = b.op("ScatterND", M, b.ints([[0]]), b.unsqueeze(row, 0))
    return b.keys(b.cast(changed, BOOL))


@masking()
def _outer_product(b: Graph, r: Random) -> str:
    """mask maskᵀ: queries are masked as well as keys; of ones and the mask: keys alone."""
    numbers = b.cast(_flags(b), FLOAT)
    column = b.unsqueeze(
        numbers if r.random() < 0.6 else b.op("Add", b.op("Mul", numbers, b.const(0.0)), b.const(1.0)), 2
    )
    row = b.unsqueeze(numbers, 1)
    how = r.choice([("MatMul", {}), ("Einsum", {"equation": "bqx,bxk->bqk"})])
    return b.unsqueeze(b.cast(b.op(how[0], column, row, **how[1]), BOOL), 1)


@masking(opset=(16, 17))
def _by_head(b: Graph, r: Random) -> str:
    """Some heads see padding, or a window."""
    chosen = np.zeros((1, HEADS, 1, 1), bool)
    chosen[0, r.sample(range(HEADS), r.randrange(1, HEADS))] = True
    other = b.cast(b.keys(M), BOOL)
    window = b.op("LessOrEqual", b.distance(I), b.ints(r.choice([1, 30])))
    extra = r.choice([window, b.const(chosen, dtype=bool)])
    return b.op("Or", b.op("And", b.const(chosen, dtype=bool), extra), other)


@masking()
def _sorted(b: Graph, r: Random) -> str:
    """TopK of the mask: as many visible keys as there are, but the first ones."""
    values, _ = b.op("TopK", _flags(b), b.size(I, 1), outputs=2, axis=1, largest=1, sorted=1)
    return b.keys(b.cast(values, BOOL))


@masking()
def _by_nonzero(b: Graph, r: Random) -> str:
    """NonZero of the mask, scattered back: the same mask the long way round; or with ones missing."""
    where = b.op("Transpose", b.op("NonZero", M), perm=[1, 0])
    zeros = b.op("ConstantOfShape", b.op("Shape", M), value=helper.make_tensor("v", INT64, [1], [0]))
    if r.random() < 0.5:
        where = b.op("Slice", where, b.ints([1]), b.ints([1 << 62]), b.ints([0]))
    ones = b.op("Expand", b.ints([1]), b.op("Slice", b.op("Shape", where), b.ints([0]), b.ints([1])))
    return b.keys(b.cast(b.op("ScatterND", zeros, where, ones), BOOL))


@masking()
def _branch(b: Graph, r: Random) -> str:
    """If the sequence is longer than n another mask."""
    n = r.choice([4, 20, 40])
    b.numbers = (n,)

    def graph(name: str, hidden: bool) -> onnx.GraphProto:
        nodes = [helper.make_node("Cast", [M], [f"{name}_b"], to=BOOL)]
        last = f"{name}_b"
        if hidden:
            nodes += [
                helper.make_node("Equal", [M, M], [f"{name}_all"]),
                helper.make_node(r.choice(["Or", "And"]), [last, f"{name}_all"], [f"{name}_o"]),
            ]
            last = f"{name}_o"
        output = helper.make_tensor_value_info(last, BOOL, ["B", "S"])
        return helper.make_graph(nodes, name, [], [output])

    longer = b.op("Greater", b.length(I), b.ints(n))
    made = b.op("If", longer, then_branch=graph("then", True), else_branch=graph("else", False))
    return b.keys(made)


@masking()
def _loop(b: Graph, r: Random) -> str:
    """A Loop that takes the mask's complement n times, or S times."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["on"], ["on_next"]), helper.make_node("Not", ["state"], ["state_next"])],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("on", BOOL, []),
            helper.make_tensor_value_info("state", BOOL, ["B", "S"]),
        ],
        [
            helper.make_tensor_value_info("on_next", BOOL, []),
            helper.make_tensor_value_info("state_next", BOOL, ["B", "S"]),
        ],
    )
    count = b.ints(r.choice([0, 2, 4])) if r.random() < 0.4 else b.op("Mul", b.length(I), b.ints(r.choice([1, 2])))
    return b.keys(b.op("Loop", count, b.const(np.asarray(True), dtype=bool), b.cast(M, BOOL), body=body))


@masking()
def _stepped(b: Graph, r: Random) -> str:
    """Range with another step, start or end; reversed; of floats."""
    length = b.length(I)
    how = r.randrange(4)
    if how == 0:
        places = b.op("Range", b.op("Sub", length, b.ints(1)), b.ints(-1), b.ints(-1))
    elif how == 1:
        places = b.op("Range", b.ints(0), b.op("Mul", length, b.ints(3)), b.ints(3))
    elif how == 2:
        places = b.op("Range", b.ints(-2), b.op("Sub", length, b.ints(2)), b.ints(1))
    else:
        floats = b.op("Range", b.const(0.0), b.cast(length, FLOAT), b.const(1.0))
        places = b.cast(b.op("Mul", floats, b.const(r.choice([1.0, 0.1]))), INT64)
    real = b.op("ReduceSum", _flags(b), b.ints([1]), keepdims=1)
    return b.keys(b.op("Less", b.unsqueeze(places, 0), real))


@masking()
def _of_lengths(b: Graph, r: Random) -> str:
    """Lengths from an input or from the mask's sum, a little off; from the left or the right."""
    lengths = b.input("lengths", ("B",), r.choice([np.int64, np.int32])) if r.random() < 0.5 else None
    if lengths is None:
        sums = b.op("ReduceSum", _flags(b), b.ints([1]), keepdims=1)
    else:
        sums = b.unsqueeze(b.cast(lengths, INT64), 1)
    sums = b.op("Add", sums, b.ints(r.choice([0, 0, 1, -1])))
    places = b.unsqueeze(b.places(I), 0)
    if r.random() < 0.3:
        return b.keys(b.op("Not", b.op("Less", places, b.op("Sub", b.length(I), sums))))
    return b.keys(
        b.op(r.choice(["Less", "Less", "Greater"]), *((places, sums) if r.random() < 0.7 else (sums, places)))
    )


@masking()
def _negative_slices(b: Graph, r: Random) -> str:
    """Cut and put together again, in order or not."""
    n = r.choice([1, 2, -1])
    head = b.op("Slice", M, b.ints([0]), b.ints([n]), b.ints([1]))
    tail = b.op("Slice", M, b.ints([n]), b.ints([1 << 62]), b.ints([1]))
    parts = [head, tail]
    if r.random() < 0.5:
        parts.reverse()
    return b.keys(b.cast(b.op("Concat", *parts, axis=1), BOOL))


@masking()
def _rolled_rows(b: Graph, r: Random) -> str:
    """The mask of the next row of the batch, or of the batch turned round."""
    if r.random() < 0.5:
        turned = b.op("Slice", M, b.ints([-1]), b.ints([-(1 << 62)]), b.ints([0]), b.ints([-1]))
    else:
        head = b.op("Slice", M, b.ints([0]), b.ints([1]), b.ints([0]))
        turned = b.op("Concat", b.op("Slice", M, b.ints([1]), b.ints([1 << 62]), b.ints([0])), head, axis=0)
    return b.keys(b.cast(turned, BOOL))


@masking()
def _reshaped(b: Graph, r: Random) -> str:
    """Flattened and folded again: as it was, or with the axes exchanged."""
    flat = b.op("Reshape", M, b.ints([-1]))
    sizes = [b.size(I, 0), b.size(I, 1)]
    if r.random() < 0.5:
        folded = b.op("Transpose", b.op("Reshape", flat, b.op("Concat", *reversed(sizes), axis=0)), perm=[1, 0])
    else:
        folded = b.op("Reshape", flat, b.op("Concat", *sizes, axis=0))
    return b.keys(b.cast(folded, BOOL))


@masking()
def _unsigned_wrap(b: Graph, r: Random) -> str:
    """q - k without sign: a causal mask by wrapping; products that overflow."""
    q, k = b.grid(I)
    how = r.randrange(3)
    if how == 0:
        q, k = b.cast(q, TensorProto.UINT32), b.cast(k, TensorProto.UINT32)
        apart = b.cast(b.op("Sub", q, k), INT64)
        return b.op("Less", apart, b.ints(1 << 16))
    if how == 1:
        wide = b.op("Mul", b.cast(k, INT32), b.ints(1 << r.choice([26, 29]), np.int32))
        return b.op("Not", b.op("Less", wide, b.ints(0, np.int32)))
    apart = b.cast(b.op("Mul", b.distance(I), b.ints(8)), TensorProto.UINT8)
    return b.op("Less", b.cast(apart, INT64), b.ints(248))


@masking()
def _not_a_number(b: Graph, r: Random) -> str:
    """A mask by 0 / 0 and IsNaN, or by infinities that cancel."""
    numbers = b.cast(b.keys(M), FLOAT)
    if r.random() < 0.5:
        return b.op("Not", b.op("IsNaN", b.op("Div", numbers, numbers)))
    infinite = b.op("Div", b.const(1.0), numbers)
    return b.op("Not", b.op("IsInf", infinite))


@masking()
def _two_masks(b: Graph, r: Random) -> str:
    """Two inputs [B, S] for a mask: both must hide, or one of them."""
    other = b.ids("other_mask")
    op = r.choice(["And", "Or", "Xor"])
    return b.keys(b.op(op, b.cast(M, BOOL), b.cast(other, BOOL)))


@recipe()
def _square_mask(b: Graph, r: Random) -> None:
    """The input is a mask [B, S, S], or [S, S], or one row or the diagonal of it."""
    x = b.input("x", ("B", "S", HIDDEN))
    shape = r.choice([("B", "S", "S"), ("S", "S"), ("B", 1, "S", "S"), ("B", HEADS, "S", "S")])
    mask = b.input("square_mask", shape, np.int64)
    rank = len(shape)
    visible = b.cast(mask, BOOL)
    if rank == 3:
        visible = b.unsqueeze(visible, 1)
    if rank > 2 and r.random() < 0.3:
        visible = b.op("Slice", visible, b.ints([0]), b.ints([1]), b.ints([2]))
    b.output(attend(b, x, spelled(r, parts={"mask": b.additive(visible)})))


@masking(opset=(15,))
def _random(b: Graph, r: Random) -> str:
    """A mask that is drawn at random, or multiplied with what is."""
    drawn = b.op("RandomUniformLike", b.cast(M, FLOAT), low=0.99, high=1.0, seed=1.0)
    return b.keys(b.cast(b.op("Mul", drawn, b.cast(_flags(b), FLOAT)), BOOL))
