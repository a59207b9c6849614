"""The shape that each operator gives its outputs: for every input of which the model runs, or no rule.

An operator that has no rule here gives tensors of which nothing is known. A size that a rule does not know is a size of
its own (`Elements.unknown`), equal to no other: axes are then still counted. Where the model fails to run unless sizes
agree, a rule may take one for the other. The test that draws operators at random compares each rule with ONNX Runtime.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ..nodes import NoMatch
from . import poly
from .engine import Elements
from .moves import in_range
from .poly import ONE, ZERO, Poly, nonnegative
from .shape_table import only, optional_input, rule, shape_of_first

# ---- element by element

_LIKE_THE_FIRST = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Bernoulli", "BitwiseNot", "Cast", "CastLike", "Ceil",
    "Celu", "Clip", "Cos", "Cosh", "CumSum", "DequantizeLinear", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf",
    "IsNaN", "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish", "Neg", "Not",
    "QuantizeLinear", "RMSNormalization", "RandomNormalLike", "RandomUniformLike", "Reciprocal", "Relu",
    "RotaryEmbedding", "Round", "ScatterElements", "ScatterND", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip
_TOGETHER = (
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
)  # fmt: skip


@rule(*_LIKE_THE_FIRST)
def _like_the_first(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    only(node, output)
    return shape_of_first(elements, node)


@rule("GroupNormalization")
def _group_normalization(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    only(node, output)
    shape = shape_of_first(elements, node)
    # Of no channels ONNX Runtime makes as many as the scale has.
    return shape if len(shape) < 2 or nonnegative(shape[1] - ONE) else [shape[0], elements.unknown(), *shape[2:]]


@rule("Dropout")
def _dropout(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return shape_of_first(elements, node)


@rule(*_TOGETHER)
def _together(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return elements.broadcast([elements.shape(t) for t in node.inputs], node)


@rule("BatchNormalization")
def _batch_normalization(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    only(node, output)
    return shape_of_first(elements, node)


@rule("LayerNormalization")
def _layer_normalization(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    first = in_range(node, node.attrs.get("axis", -1), len(shape))
    return shape if output == 0 else [*shape[:first], *[ONE] * (len(shape) - first)]


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return shape_of_first(elements, node) if output == 0 else []


# ---- products


@rule("MatMul", "MatMulInteger")
def _matmul(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    return _product(elements, node, node.inputs[0], node.inputs[1])


@rule("QLinearMatMul")
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


@rule("Gemm")
def _gemm(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    a, b = (elements.shape(t) for t in node.inputs[:2])
    if len(a) != 2 or len(b) != 2:
        raise NoMatch(node, f"multiplies {a} and {b}", wanted="two matrices")
    return [a[1 if node.attrs.get("transA", 0) else 0], b[0 if node.attrs.get("transB", 0) else 1]]


@rule("Einsum")
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


@rule("Attention")
def _attention(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    only(node, output)
    q, k, v = (elements.shape(t) for t in node.inputs[:3])
    if len(q) == len(v) == 4:
        return [*q[:3], v[3]]
    heads, kv_heads = node.attrs.get("q_num_heads", 0), node.attrs.get("kv_num_heads", 0)
    if len(q) != 3 or len(v) != 3 or heads <= 0 or kv_heads <= 0:
        raise NoMatch(node, f"attends with {q}, {k} and {v}", wanted="tensors of three or four axes")
    width = poly.divided(v[2], poly.number(kv_heads))
    return [*q[:2], width[0] * poly.number(heads) if width is not None and width[1] == ZERO else elements.unknown()]


@rule("Conv")
def _conv(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    x, weight = (elements.shape(t) for t in node.inputs[:2])
    rank = len(x) - 2
    sizes = [elements.unknown() for _ in range(rank)]
    if node.attrs.get("auto_pad", "NOTSET") == "NOTSET":
        kernel = node.attrs.get("kernel_shape", [n.constant for n in weight[2:]])
        strides, dilations = (node.attrs.get(name, [1] * rank) for name in ("strides", "dilations"))
        pads = node.attrs.get("pads", [0] * 2 * rank)
        for axis in range(rank):
            if kernel[axis] is not None:
                padded = x[2 + axis] + poly.number(pads[axis] + pads[axis + rank])
                reach = dilations[axis] * (kernel[axis] - 1) + 1
                sizes[axis] = _windows(elements, padded, reach, strides[axis], rounds_up=0)
    return [x[0], weight[0], *sizes]


@rule("AveragePool", "MaxPool", "LpPool")
def _pool(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
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


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    return [*shape[:2], *[ONE] * len(shape[2:])]


# ---- many to one


@rule(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def _reduce(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape, keeps = shape_of_first(elements, node), node.attrs.get("keepdims", 1)
    _check_elements(node, shape)
    axes, tensor = node.attrs.get("axes"), optional_input(node, 1)
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


@rule("ArgMax", "ArgMin")
def _arg(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    _check_elements(node, shape)
    axis = in_range(node, node.attrs.get("axis", 0), len(shape))
    return [*shape[:axis], *([ONE] if node.attrs.get("keepdims", 1) else []), *shape[axis + 1 :]]


@rule("TopK")
def _top_k(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    shape = shape_of_first(elements, node)
    axis = in_range(node, node.attrs.get("axis", -1), len(shape))
    (count,) = elements.numbers_known(node.inputs[1], node)
    shape[axis] = elements.unknown() if count is None else count
    return shape


@rule("Compress")
def _compress(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    if "axis" not in node.attrs:
        return [elements.unknown()]
    shape = shape_of_first(elements, node)
    shape[in_range(node, node.attrs["axis"], len(shape))] = elements.unknown()
    return shape


@rule("NonZero")
def _non_zero(elements: Elements, node: gs.Node, output: int) -> list[Poly]:
    rank = len(elements.shape(node.inputs[0]))
    return [poly.number(rank) if rank else elements.unknown(), elements.unknown()]
