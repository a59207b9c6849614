"""The shape that each operator gives its outputs: for every input of which the model runs, or no rule.

An operator that has no rule here gives tensors of which nothing is known. A size that a rule does not know is a size of
its own (`Elements.unknown`), equal to no other: axes are then still counted. Where the model fails to run unless sizes
agree, a rule may take one for the other. The test that draws operators at random compares each rule with ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_graphsurgeon as gs

from ..nodes import NoMatch
from . import poly
from .engine import SHAPES, Elements
from .moves import in_range, permutation, squeezed_axes, unsqueezed_axes
from .picks import cut, gather_nd_depth, range_bounds, shape_slice, slice_axes, split_axis
from .poly import ONE, ZERO, Poly, nonnegative

_NOT_GIVEN = poly.number(-1)


def _rule(*ops: str) -> Callable:
    def add(rule: Callable) -> Callable:
        for op in ops:
            SHAPES[op] = rule
        return rule

    return add


def _given(node: gs.Node, index: int) -> gs.Tensor | None:
    tensor = node.inputs[index] if index < len(node.inputs) else None
    return None if tensor is None or tensor.is_empty() else tensor


def _x(elements: Elements, node: gs.Node) -> list[Poly]:
    return list(elements.shape(node.inputs[0]))


def _only(node: gs.Node, output: int, most: int = 1) -> None:
    if output >= most:
        raise NoMatch(node, f"the shape of output {output} of {node.op} is not known")


# ---- element by element

_LIKE_THE_FIRST = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Bernoulli", "BitwiseNot", "Cast", "CastLike", "Ceil",
    "Celu", "Clip", "Cos", "Cosh", "CumSum", "DequantizeLinear", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf",
    "IsNaN", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish", "Neg", "Not",
    "QuantizeLinear", "RMSNormalization", "RandomNormalLike", "RandomUniformLike", "Reciprocal", "Relu",
    "RotaryEmbedding", "Round", "ScatterElements", "ScatterND", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip
_TOGETHER = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip


@_rule(*_LIKE_THE_FIRST)
def _like_the_first(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    _only(node, output)
    return _x(elements, node)


@_rule("Dropout")
def _dropout(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return _x(elements, node)


@_rule(*_TOGETHER)
def _together(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return elements.broadcast([elements.shape(t) for t in node.inputs], node)


@_rule("BatchNormalization")
def _batch_normalization(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    _only(node, output)
    return _x(elements, node)


@_rule("LayerNormalization")
def _layer_normalization(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    first = in_range(node, node.attrs.get("axis", -1), len(shape))
    return shape if output == 0 else [*shape[:first], *[ONE] * (len(shape) - first)]


@_rule("DynamicQuantizeLinear")
def _dynamic_quantize(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return _x(elements, node) if output == 0 else []


# ---- products


@_rule("MatMul", "MatMulInteger")
def _matmul(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return _product(elements, node, node.inputs[0], node.inputs[1])


@_rule("QLinearMatMul")
def _qlinear_matmul(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return _product(elements, node, node.inputs[0], node.inputs[3])


def _product(elements: Elements, node: gs.Node, x: gs.Tensor, y: gs.Tensor) -> list[Poly]:
    a, b = elements.shape(x), elements.shape(y)
    if not a or not b:
        raise NoMatch(node, "multiplies a number that has no axes")
    batch = elements.broadcast([a[:-2], b[:-2]], node)
    # Of operands without elements ONNX Runtime broadcasts otherwise.
    alone = min(len(a), len(b)) <= 2 or a[:-2] == b[:-2]
    if not alone and not all(nonnegative(n - ONE) for n in (*a, *b)):
        batch = [elements.unknown() for _ in batch]
    return [*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else [])]


@_rule("Gemm")
def _gemm(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    a, b = (elements.shape(t) for t in node.inputs[:2])
    if len(a) != 2 or len(b) != 2:
        raise NoMatch(node, f"multiplies {a} and {b}", wanted="two matrices")
    return [a[1 if node.attrs.get("transA", 0) else 0], b[0 if node.attrs.get("transB", 0) else 1]]


@_rule("Einsum")
def _einsum(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    equation = node.attrs["equation"].replace(" ", "")
    given, arrow, made = equation.partition("->")
    if "." in equation:
        raise NoMatch(node, f"computes '{equation}'", wanted="every axis named")
    terms = given.split(",")
    if not arrow:
        letters = sorted(set(given) - {","})
        made = "".join(letter for letter in letters if given.count(letter) == 1)
    sizes: dict[str, list[Poly]] = {}
    for term, tensor in zip(terms, node.inputs, strict=True):
        for letter, size in zip(term, elements.shape(tensor), strict=True):
            sizes.setdefault(letter, []).append(size)
    return [elements.broadcast([[size] for size in sizes[letter]], node)[0] for letter in made]


@_rule("Attention")
def _attention(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    _only(node, output)
    q, k, v = (elements.shape(t) for t in node.inputs[:3])
    if len(q) == len(v) == 4:
        return [*q[:3], v[3]]
    heads, kv_heads = node.attrs.get("q_num_heads", 0), node.attrs.get("kv_num_heads", 0)
    if len(q) != 3 or len(v) != 3 or heads <= 0 or kv_heads <= 0:
        raise NoMatch(node, f"attends with {q}, {k} and {v}", wanted="tensors of three or four axes")
    width = poly.divided(v[2], poly.number(kv_heads))
    return [*q[:2], width[0] * poly.number(heads) if width is not None and width[1] == ZERO else elements.unknown()]


@_rule("Conv")
def _conv(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    x, weight = (elements.shape(t) for t in node.inputs[:2])
    rank = len(x) - 2
    sizes = [elements.unknown() for _ in range(rank)]
    if node.attrs.get("auto_pad", "NOTSET") == "NOTSET":
        kernel = node.attrs.get("kernel_shape", [n.constant for n in weight[2:]])
        strides, dilations = (node.attrs.get(name, [1] * rank) for name in ("strides", "dilations"))
        pads = node.attrs.get("pads", [0] * 2 * rank)
        for axis in range(rank):
            size = x[2 + axis].constant
            if size is not None and kernel[axis] is not None:
                reach = dilations[axis] * (kernel[axis] - 1) + 1
                left = size + pads[axis] + pads[axis + rank] - reach
                sizes[axis] = poly.number(left // strides[axis] + 1) if left >= 0 else sizes[axis]
    return [x[0], weight[0], *sizes]


@_rule("AveragePool", "MaxPool", "LpPool")
def _pool(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    rank, attrs = len(shape) - 2, node.attrs
    strides, dilations = (attrs.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads, kernel = attrs.get("pads", [0] * 2 * rank), attrs["kernel_shape"]
    plain = attrs.get("auto_pad", "NOTSET") == "NOTSET" and not any(pads) and all(d == 1 for d in dilations)
    sizes = zip(shape[2:], kernel, strides, strict=True)
    rounds_up = attrs.get("ceil_mode", 0)
    return [*shape[:2], *(_windows(elements, *size, rounds_up) if plain else elements.unknown() for size in sizes)]


def _windows(elements: Elements, size: Poly, kernel: int, stride: int, rounds_up: int) -> Poly:
    """How many windows of `kernel` elements, one every `stride`, lie along an axis."""
    if kernel == stride == 1:
        return size
    more = 2 * stride - 1 if rounds_up and stride <= kernel else stride
    reach = size + poly.number(more - kernel)
    known = nonnegative(reach - poly.number(stride)) if not rounds_up else stride <= kernel and nonnegative(reach)
    return poly.quotient(reach, poly.number(stride)) if known else elements.unknown()


@_rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    return [*shape[:2], *[ONE] * len(shape[2:])]


# ---- many to one


@_rule(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def _reduce(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape, keeps = _x(elements, node), node.attrs.get("keepdims", 1)
    _check_elements(node, shape)
    axes, tensor = node.attrs.get("axes"), _given(node, 1)
    if axes is None and tensor is not None:
        if elements.constant(tensor) is None:
            if not keeps:
                raise NoMatch(node, f"reduces the axes '{tensor.name}', which are computed", wanted="constant axes")
            return [size if size == ONE else elements.unknown() for size in shape]
        axes = elements.numbers(tensor, node)
    if not axes:
        axes = [] if node.attrs.get("noop_with_empty_axes", 0) else range(len(shape))
    reduced = {in_range(node, axis, len(shape)) for axis in axes}
    return [ONE if axis in reduced else size for axis, size in enumerate(shape) if keeps or axis not in reduced]


def _check_elements(node: gs.Node, shape: list[Poly]) -> None:
    """Raise NoMatch for a tensor that may be without elements: ONNX Runtime hands that on in its own shape."""
    if not all(nonnegative(n - ONE) for n in shape):
        raise NoMatch(node, f"reduces {shape}, which may be without elements", wanted="sizes of 1 or more")


@_rule("ArgMax", "ArgMin")
def _arg(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    _check_elements(node, shape)
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    return [*shape[:axis], *([ONE] if node.attrs.get("keepdims", 1) else []), *shape[axis + 1 :]]


@_rule("TopK")
def _top_k(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    axis = in_range(node, node.attrs.get("axis", -1), len(shape))
    (count,) = elements.numbers_known(node.inputs[1], node)
    shape[axis] = elements.unknown() if count is None else count
    return shape


@_rule("Compress")
def _compress(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    if "axis" not in node.attrs:
        return [elements.unknown()]
    shape = _x(elements, node)
    shape[in_range(node, node.attrs["axis"], len(shape))] = elements.unknown()
    return shape


@_rule("NonZero")
def _non_zero(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    rank = len(elements.shape(node.inputs[0]))
    return [poly.number(rank) if rank else elements.unknown(), elements.unknown()]


# ---- axes added, removed, exchanged, merged and divided


@_rule("Unsqueeze")
def _unsqueeze(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    for axis in unsqueezed_axes(elements, node):
        shape.insert(axis, ONE)
    return shape


@_rule("Squeeze")
def _squeeze(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    axes = squeezed_axes(elements, node)
    return [size for axis, size in enumerate(elements.shape(node.inputs[0])) if axis not in axes]


@_rule("Transpose")
def _transpose(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = elements.shape(node.inputs[0])
    return [shape[axis] for axis in permutation(elements, node)]


@_rule("Flatten")
def _flatten(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape, axis = _x(elements, node), node.attrs.get("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [poly.product(shape[:axis]), poly.product(shape[axis:])]


@_rule("Reshape")
def _reshape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    wanted = elements.numbers_known(node.inputs[1], node)
    try:
        given: list[Poly] | None = elements.shape(node.inputs[0])
    except NoMatch:
        given = None
    shape: list[Poly | None] = []
    for axis, size in enumerate(wanted):
        if size == ZERO and not node.attrs.get("allowzero", 0):
            size = given[axis] if given is not None else elements.unknown()  # 0 stands for the size that is given
        elif size is not None and size != _NOT_GIVEN and not _is_size(node, size, given, axis):
            size = None
        shape.append(elements.unknown() if size is None else size)
    if shape.count(_NOT_GIVEN) > 1:
        raise NoMatch(node, f"reshapes to {wanted}", wanted="one size at most that is left open")
    if _NOT_GIVEN in shape:
        rest = poly.quotient_of_products(given, [n for n in shape if n != _NOT_GIVEN]) if given is not None else None
        shape[shape.index(_NOT_GIVEN)] = elements.unknown() if rest is None else rest
    return shape


def _is_size(node: gs.Node, size: Poly, given: list[Poly] | None, axis: int) -> bool:
    """Whether a computed number is the size of the axis: 0 would stand for the size that is given, -1 for the rest."""
    if nonnegative(size - ONE) or (node.attrs.get("allowzero", 0) and nonnegative(size)):
        return True
    # Where no such axis is given, 0 is an error.
    return given is not None and nonnegative(size) and (axis >= len(given) or size == given[axis])


# ---- elements repeated, joined and parted


@_rule("Expand")
def _expand(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    wanted = elements.numbers_known(node.inputs[1], node)
    wanted = [elements.unknown() if n is None or not nonnegative(n) else n for n in wanted]
    return elements.broadcast([_x(elements, node), wanted], node)


@_rule("Tile")
def _tile(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    times = elements.numbers_known(node.inputs[1], node)
    return [
        elements.unknown() if n is None or not nonnegative(n) else size * n
        for size, n in zip(_x(elements, node), times, strict=True)
    ]


@_rule("Concat")
def _concat(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shapes = [elements.shape(t) for t in node.inputs]
    axis = in_range(node, node.attrs["axis"], len(shapes[0]))
    # ONNX Runtime does not look at the other axes of a tensor without elements.
    full = [shape for shape in shapes if all(nonnegative(n - ONE) for n in shape)]
    made = []
    for other, sizes in enumerate(zip(*shapes, strict=True)):
        if other == axis:
            made.append(sum(sizes[1:], sizes[0]))
        elif len(set(sizes)) == 1:
            made.append(sizes[0])
        else:
            known = [shape[other] for shape in full]
            made.append(next((n for n in known if n.constant is not None), known[0]) if known else elements.unknown())
    return made


@_rule("Split")
def _split(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    axis = split_axis(node, len(shape))
    sizes = _given(node, 1)
    if sizes is not None:
        size = elements.numbers_known(sizes, node)[output]
        shape[axis] = elements.unknown() if size is None or not nonnegative(size) else size
        return shape
    count = len(node.outputs)
    if shape[axis].constant is not None:  # equal parts, of which the last may be smaller
        part = -(-shape[axis].constant // count)
        size = part if output < count - 1 else shape[axis].constant - part * (count - 1)
        if size < 0:
            raise NoMatch(node, f"splits {shape[axis]} elements into {count}")
        shape[axis] = poly.number(size)
        return shape
    found = poly.divided(shape[axis], poly.number(count))
    shape[axis] = found[0] if found is not None and found[1] == ZERO else elements.unknown()
    return shape


@_rule("Slice")
def _slice(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    starts, ends = (elements.numbers_known(t, node) for t in node.inputs[1:3])
    found = slice_axes(elements, node, len(shape), len(starts))
    if found is None:
        return [elements.unknown() for _ in shape]
    for start, end, (axis, step) in zip(starts, ends, found, strict=True):
        shape[axis] = _part(elements, node, start, end, shape[axis], step)
    return shape


def _part(elements: Elements, node: gs.Node, start: Poly | None, end: Poly | None, size: Poly, step: int) -> Poly:
    if None in (start, end, step):
        return elements.unknown()
    numbers = [n.constant for n in (start, end, size)]
    if None not in numbers and step > 0:
        return poly.number(len(range(numbers[2])[numbers[0] : numbers[1] : step]))
    try:
        return cut(node, start, end, size, step)[1]
    except NoMatch:
        return elements.unknown()


@_rule("Pad")
def _pad(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    pads, tensor = elements.numbers_known(node.inputs[1], node), _given(node, 3)
    if tensor is not None and elements.constant(tensor) is None:
        return [elements.unknown() for _ in shape]
    axes = range(len(shape)) if tensor is None else elements.numbers(tensor, node)
    for before, after, axis in zip(pads[: len(axes)], pads[len(axes) :], axes, strict=True):
        axis = in_range(node, axis, len(shape))
        size = None if before is None or after is None else shape[axis] + before + after
        shape[axis] = elements.unknown() if size is None or not nonnegative(size) else size
    return shape


@_rule("Resize")
def _resize(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return [elements.unknown() for _ in elements.shape(node.inputs[0])]


# ---- elements looked up


@_rule("Gather")
def _gather(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape, index = elements.shape(node.inputs[0]), elements.shape(node.inputs[1])
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    return [*shape[:axis], *index, *shape[axis + 1 :]]


@_rule("GatherND")
def _gather_nd(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    batch, depth = gather_nd_depth(elements, node)
    return [*elements.shape(node.inputs[1])[:-1], *elements.shape(node.inputs[0])[batch + depth :]]


@_rule("GatherElements")
def _gather_elements(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return elements.shape(node.inputs[1])


# ---- elements made


@_rule("Shape")
def _shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    try:
        shape = elements.shape(node.inputs[0])
    except NoMatch:
        return [elements.unknown()]
    return [poly.number(len(shape[shape_slice(node, len(shape))]))]


@_rule("Size")
def _size(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return []


@_rule("Range")
def _range(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    try:
        start, limit, delta, _ = range_bounds(elements, node)
    except NoMatch:
        return [elements.unknown()]
    length = (limit - start) * poly.number(delta)
    return [length if nonnegative(length) else elements.unknown()]


@_rule("ConstantOfShape")
def _constant_of_shape(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    sizes = elements.numbers_known(node.inputs[0], node)
    return [elements.unknown() if n is None or not nonnegative(n) else n for n in sizes]


@_rule("OneHot")
def _one_hot(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = _x(elements, node)
    axis = in_range(node, node.attrs.get("axis", -1), len(shape) + 1)
    return [*shape[:axis], elements.unknown(), *shape[axis:]]


@_rule("EyeLike")
def _eye_like(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return _x(elements, node)


@_rule("Constant")
def _constant(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    value = node.attrs.get("value")
    if isinstance(value, gs.Constant):
        return [poly.number(n) for n in value.shape]
    for name, value in node.attrs.items():
        if name in ("value_float", "value_int", "value_string"):
            return []
        if name in ("value_floats", "value_ints", "value_strings"):
            return [poly.number(len(value))]
    raise NoMatch(node, "holds a constant of no known shape")
