"""Linear layers in no other op become FusedGemm: embedding projections, poolers, classifiers, vocabularies.

Left to the runtime they would be another library's product, in TF32 where that is switched on, and the kernels before
and after it would wait for each other. The bias stays an Add behind the op: beside each attention FusedGemm has none,
and a model with both forms of an op needs an overload of its function.
"""

from __future__ import annotations

import contextlib

import onnx_graphsurgeon as gs

from .. import eight_bit, exactness, lower
from ..dialect.pattern import LINEAR
from ..exactness import Kind
from ..graph import FusionGraph
from ..nodes import DIALECT, NoMatch, data_type, matrix, node_name
from ..normalize import linear, quantized
from ..result import PassReport
from ..spec import DOMAIN, DTYPE_VARIABLES, NODE_MARKERS

NAME = "linear layers in no other op"
_MOST_NAMES = 3


def compute(graph: FusionGraph) -> PassReport | None:
    """Rewrite those of a finished graph, which the caller finishes again; None where there is none."""
    done: list[str] = []
    left: list[str] = []
    kinds = exactness.kinds(graph.gs.nodes, graph.gs.inputs)
    _find_quantised(graph)
    for node in linear.anchors(graph):
        found = matrix(node.inputs[1])
        if found is None or isinstance(node.inputs[0], gs.Constant):
            continue
        name = node_name(node)
        try:
            _check(node, found[0], kinds)
            _rewrite(graph, node)
            done.append(name)
        except NoMatch as miss:
            left.append(f"{name}: {miss.reason}")
    lower.leftovers(graph)
    eight_bit.write(graph)
    names = ", ".join(done[:_MOST_NAMES]) + (f" and {len(done) - _MOST_NAMES} more" if len(done) > _MOST_NAMES else "")
    return PassReport(NAME, [f"FusedGemm computes {names}"] if done else [], left) if done or left else None


def _find_quantised(graph: FusionGraph) -> None:
    """Products of 8-bit numbers as those of floats with what they were; what does not become an op is put back."""
    for node in quantized.anchors(graph):
        if node.op in ("MatMul", "Gemm", "MatMulInteger") and graph.is_live(node):
            with contextlib.suppress(NoMatch):
                quantized.rewrite(graph, node)


def _check(node: gs.Node, weight: gs.Constant, kinds: dict[int, Kind]) -> None:
    """Raise NoMatch for what the op does not take, and for what converting to half precision leaves in float32."""
    x = node.inputs[0]
    if data_type(weight.dtype) not in DTYPE_VARIABLES["T"].values():
        raise NoMatch(node, f"'{weight.name}' is {weight.dtype}", wanted=" or ".join(DTYPE_VARIABLES["T"]))
    if 0 in weight.shape:
        raise NoMatch(node, f"'{weight.name}' is {list(weight.shape)}", wanted="a matrix with elements")
    if kinds.get(id(x), Kind.CONSTANT) < Kind.FED:  # places, lengths, angles
        raise NoMatch(node, f"'{x.name}' is made of integers and constants alone", wanted="activations")


def _rewrite(graph: FusionGraph, node: gs.Node) -> None:
    position = len(graph.gs.nodes)
    linear.rewrite(graph, node)
    (made,) = (n for n in graph.gs.nodes[position:] if n.op == LINEAR and n.domain == DIALECT)
    x, weight, *bias = made.inputs
    (y,) = made.outputs
    fused = graph.replace(made, "FusedGemm", [x, weight], domain=DOMAIN, **NODE_MARKERS)
    if bias:
        product = graph.variable(f"{y.name}_product", y.dtype, y.shape)
        fused.outputs = [product]
        graph.add_node("Add", [product, *bias], [y])
