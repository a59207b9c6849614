"""What a model's own structure promises, read from the graph before anything is normalised.

Fusion that finds nothing must not look like success, so the promise is counted by other means than the patterns: from a
Softmax between two products of activations, a LayerNorm over what kind of sum, a GELU after a projection, an RMSNorm.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_graphsurgeon as gs

from .domains import MICROSOFT, called
from .graph import FusionGraph
from .nodes import NoMatch, is_float_cast, matrix, node_name, producer
from .normalize import attention, embedding, layer_norm, quantized, rms_norm
from .normalize.gelu import MICROSOFTS

_STEPS = 10
_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Neg", "Pow", "Erf", "Tanh")
_MATMULS = ("MatMul", "Gemm")
_QGEMM, _QATTENTION, _QADD, _QSOFTMAX, *_OTHERS = called(
    MICROSOFT, "QGemm", "QAttention", "QLinearAdd", "QLinearSoftmax", "QLinearMul", "DynamicQuantizeMatMul",
    "MatMulIntegerToFloat", "QEmbedLayerNormalization", "QuantizeLinear", "DequantizeLinear",
)  # fmt: skip
_QOPERATORS = ("QLinearMatMul", _QGEMM, _QATTENTION, _QADD, _QSOFTMAX, *_OTHERS)
_TENSORRT = called("trt", "TRT_FP8QuantizeLinear", "TRT_FP8DequantizeLinear")
EIGHT_BIT = ("MatMulInteger", "DequantizeLinear", "DynamicQuantizeLinear", *_QOPERATORS, *_TENSORRT)
# Between an operator on integers and what is made of its result.
_AFTER_INT8 = (*_ELEMENTWISE, *_MATMULS, "Cast", "Reshape", "Transpose", "Split", "Slice", "Squeeze", "Unsqueeze",
               "Where", "Concat")  # fmt: skip


@dataclass(frozen=True)
class Expectation:
    """Op `op` should come out at the node `anchor`."""

    op: str
    anchor: gs.Node
    refusal: NoMatch | None = None  # why no op comes out, unless the 8-bit numbers before it are taken in
    products: tuple[gs.Node, ...] = ()  # of those numbers

    @property
    def name(self) -> str:
        return node_name(self.anchor)


def expectations(graph: FusionGraph, level: str) -> list[Expectation]:
    """Every op that fusion at `level` ("basic" or "full") should find."""
    full = level == "full"
    found = [Expectation("FusedAttention" if full else "AddQKVBias", node) for node in attention.anchors(graph)]
    normalised_gelus: set[int] = set()
    for node in layer_norm.anchors(graph):
        op, gelu = _layer_norm(node)
        if gelu is not None:
            normalised_gelus.add(id(gelu))
        if op is not None and (full or op != "EmbedLayerNorm"):
            found.append(Expectation(op, node))
    for node in [*graph.nodes("Erf", "Tanh", "Gelu"), *graph.nodes(*MICROSOFTS, domain=MICROSOFT)]:
        if id(node) not in normalised_gelus and (node.op != "Tanh" or _is_cubic(node)) and _after_projection(node):
            found.append(Expectation("FusedGemmGelu", node))
    known = {id(e.anchor) for e in found}
    others = [*graph.nodes("Softmax"), *graph.nodes(_QATTENTION, _QSOFTMAX, domain=MICROSOFT)]
    for node in others:
        if id(node) not in known and (node.op == _QATTENTION or _after_quantised_product(node)):
            found.append(Expectation("FusedAttention" if full else "AddQKVBias", node))
    if full:  # unless an op that takes more has it
        found += [Expectation("FusedRMSNorm", node) for node in rms_norm.anchors(graph) if not _is_variance(node)]
    return [Expectation(e.op, e.anchor, *_refusal(e.anchor)) for e in found]


def _after_quantised_product(softmax: gs.Node) -> bool:
    """Whether quantised scores lead to the Softmax: a product of two tensors that are computed."""
    stack, seen = [(softmax.inputs[0], 0)], set()
    while stack:
        tensor, depth = stack.pop()
        node = producer(tensor)
        if node is None or id(node) in seen or depth > _STEPS:
            continue
        seen.add(id(node))
        if node.op in ("MatMul", "MatMulInteger", "QLinearMatMul"):
            second = node.inputs[3 if node.op == "QLinearMatMul" else 1]
            above = producer(second)
            dequantised = above is not None and above.op == "DequantizeLinear"
            source = above.inputs[0] if dequantised else second
            quantised = dequantised or node.op != "MatMul"
            return quantised and not isinstance(source, gs.Constant)
        if node.op in (*_AFTER_INT8, *EIGHT_BIT, "QuantizeLinear"):
            stack.extend((t, depth + 1) for t in node.inputs)
    return False


def _refusal(anchor: gs.Node) -> tuple[NoMatch | None, tuple[gs.Node, ...]]:
    """That the model is quantised, where the anchor works on what integers were multiplied to, and those products."""
    found, products = ([anchor], []) if anchor.op in EIGHT_BIT else _int8_above(anchor)
    if not found:
        return None, ()
    node = next((n for n in found if n.op == "MatMulInteger"), found[0])
    hint = "fuse the float model that it was made of"
    if node.op == "DequantizeLinear":
        hint = f"our ops round what a product multiplies, and nothing else: quantise that alone, or {hint}"
    elif node.op in (*_QOPERATORS, *_TENSORRT):
        hint = f"write QuantizeLinear and DequantizeLinear around products alone, or {hint}"
    return NoMatch(node, eight_bit_words(node), hint, wanted="float32, float16 or bfloat16"), tuple(products)


def eight_bit_words(node: gs.Node) -> str:
    """What is said of such a node."""
    return f"int8 quantised ({node.op.rpartition('::')[2]})"


def _int8_above(below: gs.Node) -> tuple[list[gs.Node], list[gs.Node]]:
    """The operators on quantised numbers that give, through what carries them on, an input of the node.

    Beside them the products on the way whose operands are such numbers.
    """
    stack, seen = [(tensor, 0) for tensor in below.inputs], set()
    found: list[gs.Node] = []
    products: list[gs.Node] = []
    while stack:
        tensor, depth = stack.pop()
        node = producer(tensor)
        if node is None or id(node) in seen or depth > _STEPS:
            continue
        seen.add(id(node))
        if quantized.is_product(node):
            products.append(node)
        if node.op in EIGHT_BIT:
            found.append(node)
        elif node.op in _AFTER_INT8:
            stack.extend((t, depth + 1) for t in node.inputs)
    return found, products


def _layer_norm(node: gs.Node) -> tuple[str | None, gs.Node | None]:
    """What the LayerNorm at this anchor promises, and the GELU that this takes in."""
    x = _normalised(node)
    if x is None:
        return None, None
    above = producer(x)
    if above is not None and above.op == "DequantizeLinear":
        above = producer(above.inputs[0])
        operands = above.inputs[0:4:3] if above is not None and above.op == _QADD else []
        return ("FusedGemmLayerNorm" if any(map(_gives_quantised_product, operands)) else None), None
    terms, _ = embedding.terms(x)
    if embedding.has_lookup(x) or any(quantized.is_lookup(producer(term)) for term in terms):
        return ("EmbedLayerNorm" if embedding.is_embedding(x) else None), None
    for term in terms:
        gelu = _gelu_above(term)
        if gelu is not None and _after_projection(gelu):
            return "FusedGemmGeluLayerNorm", gelu
    projections = [t for t in terms if _gives_projection(t)]
    others = [t for t in terms if not isinstance(t, gs.Constant) and not any(t is p for p in projections)]
    if projections and (others or len(projections) > 1):
        return "FusedGemmLayerNorm", None
    return None, None


def _normalised(node: gs.Node) -> gs.Tensor | None:
    """The tensor that the LayerNorm at this anchor normalises."""
    if node.op == "LayerNormalization":
        return _uncast(node.inputs[0])
    tensor = node.inputs[0]
    for _ in range(_STEPS):
        above = producer(tensor)
        if above is None:
            return None
        if above.op == "Sub":
            return _uncast(above.inputs[0])
        tensor = next((t for t in above.inputs if not isinstance(t, gs.Constant)), None)
        if tensor is None:
            return None
    return None


def _is_variance(root: gs.Node) -> bool:
    """Whether what is squared under the root was centred before, in another type: it is a LayerNorm's."""
    squares = None if root.op == "RMSNormalization" else rms_norm.mean_of_squares(root)
    sub = None if squares is None else producer(_uncast(squares[0]))
    mean = producer(sub.inputs[1]) if sub is not None and sub.op == "Sub" else None
    return mean is not None and mean.op == "ReduceMean"


def _uncast(tensor: gs.Tensor) -> gs.Tensor:
    node = producer(tensor)
    if node is not None and node.op == "DequantizeLinear":
        below = producer(node.inputs[0])
        return below.inputs[0] if below is not None and below.op == "QuantizeLinear" else tensor
    return node.inputs[0] if node is not None and is_float_cast(node) else tensor


def _gelu_above(tensor: gs.Tensor) -> gs.Node | None:
    """The Erf, cubic Tanh or Gelu that `tensor` comes from through element-wise operators."""
    stack, seen = [(tensor, 0)], set()
    while stack:
        current, depth = stack.pop()
        node = producer(current)
        if node is None or id(node) in seen or depth > _STEPS:
            continue
        seen.add(id(node))
        if node.op in ("Erf", "Gelu", *MICROSOFTS) or (node.op == "Tanh" and _is_cubic(node)):
            return node
        # An Add of two activations is a residual: what is above it belongs to an earlier layer.
        activations = [t for t in node.inputs if not isinstance(t, gs.Constant)]
        if node.op == "Mul" or (node.op in _ELEMENTWISE and len(activations) == 1):
            stack.extend((t, depth + 1) for t in activations)
    return None


def _is_cubic(tanh: gs.Node) -> bool:
    """Whether the argument of the Tanh holds a third power or square of its source, as GELU's approximation does."""
    stack, seen = [(tanh.inputs[0], 0)], set()
    while stack:
        tensor, depth = stack.pop()
        node = producer(tensor)
        if node is None or node.op not in _ELEMENTWISE or depth > _STEPS or id(node) in seen:
            continue
        seen.add(id(node))
        casts = [p for t in node.inputs if (p := producer(t)) is not None and p.op == "Cast"]
        scales_integers = any((p := producer(cast.inputs[0])) is not None and p.op in EIGHT_BIT for cast in casts)
        constant = any(isinstance(t, gs.Constant) for t in node.inputs)
        if node.op == "Pow" or (node.op == "Mul" and not constant and not scales_integers):
            return True
        stack.extend((t, depth + 1) for t in node.inputs)
    return False


def _after_projection(gelu: gs.Node) -> bool:
    """Whether the GELU's argument is a projection's output."""
    stack, seen = [(gelu.inputs[0], 0)], set()
    while stack:
        tensor, depth = stack.pop()
        node = producer(tensor)
        if _gives_projection(tensor):
            return True
        if node is not None and node.op in _ELEMENTWISE and depth < _STEPS and id(node) not in seen:
            seen.add(id(node))
            stack.extend((t, depth + 1) for t in node.inputs if not isinstance(t, gs.Constant))
    return False


def _gives_projection(tensor: gs.Tensor) -> bool:
    """Whether the tensor is a product with a weight, of floats or of integers scaled back to floats."""
    for _ in range(_STEPS):  # times the scale, plus the bias, to integers and back
        node = producer(tensor)
        if _is_projection(node):
            return True
        if node is None or node.op not in ("Add", "Mul", "Cast", "QuantizeLinear", "DequantizeLinear", *_MATMULS):
            return node is not None and node.op in EIGHT_BIT
        if node.op in _MATMULS:
            return any((p := producer(t)) is not None and p.op == "DequantizeLinear" for t in node.inputs)
        tensor = next((t for t in node.inputs if not isinstance(t, gs.Constant)), tensor)
    return (node := producer(tensor)) is not None and node.op in EIGHT_BIT


def _gives_quantised_product(tensor: gs.Tensor) -> bool:
    """Whether the tensor, of integers, is a product with a weight, maybe with its bias."""
    node = producer(tensor)
    if node is not None and node.op == _QADD:
        node = next((p for t in node.inputs[0:4:3] if (p := producer(t)) is not None), None)
    return node is not None and node.op in ("QLinearMatMul", _QGEMM)


def _is_projection(node: gs.Node | None) -> bool:
    if node is not None and node.op == "Reshape":  # back from two axes
        node = producer(node.inputs[0])
    if node is not None and node.op == "Add" and any(isinstance(t, gs.Constant) for t in node.inputs):
        node = producer(next(t for t in node.inputs if not isinstance(t, gs.Constant) or t is node.inputs[-1]))
    return node is not None and node.op in _MATMULS and matrix(node.inputs[1]) is not None
