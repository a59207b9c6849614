"""Gated feed-forward networks: activation(gate) * up, both of them columns of projections of one tensor."""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from ..dialect.pattern import GELU, LINEAR, Recorder
from ..elements import poly
from ..elements.expr import Read
from ..graph import FusionGraph
from ..nodes import DIALECT, NoMatch, producer, scalar
from ..ops.fused_gated_gemm import OP
from .emit import emit
from .heads import packed

_PARTS = ("Split", "Slice", "Identity")
_QUICK = 1.702


def anchors(graph: FusionGraph) -> list[gs.Node]:
    if not graph.families:
        return []
    return [*graph.nodes(GELU, domain=DIALECT), *graph.nodes("Sigmoid", "Swish")]


def rewrite(graph: FusionGraph, node: gs.Node) -> None:
    kind, source, activated, inside = _activation(node)
    products = [user for user in activated.outputs if user.op == "Mul"]
    if len(activated.outputs) != 1 or not products or graph.is_output(activated):
        return  # no gate: whatever else it is has reasons of its own
    (root,) = products
    up = next((t for t in root.inputs if t is not activated), None)
    if up is None:
        raise NoMatch(root, "multiplies the gate by itself", wanted="by another projection")
    parts = {"gate": _part(graph, source), "up": _part(graph, up)}
    linears = {name: linear for name, (linear, *_) in parts.items()}
    columns = {name: found for name, (_, found, _) in parts.items()}
    x = linears["gate"].inputs[0]
    if linears["up"].inputs[0] is not x or len(columns["gate"]) != len(columns["up"]):
        raise NoMatch(
            linears["up"], f"projects '{linears['up'].inputs[0].name}'", wanted=f"'{x.name}', as the gate does"
        )
    weight, bias = packed(linears, columns)
    biased = any(len(linear.inputs) > 2 for linear in linears.values())
    constants = [
        graph.constant(f"{root.outputs[0].name}_{name}", value)
        for name, value in (("weight", weight), ("bias", bias if biased else None))
        if value is not None
    ]
    absent = [None] * (len(OP.inputs) - 1 - len(constants))  # a bias, and what quantised models have
    written = OP.body(Recorder(), x, *constants, *absent, activation=kind)
    interior = [*inside, root, *linears.values(), *(n for *_, nodes in parts.values() for n in nodes)]
    emit(graph, written, root, list({id(n): n for n in interior}.values()), [x])


def _activation(node: gs.Node) -> tuple[str, gs.Tensor, gs.Tensor, list[gs.Node]]:
    """Its name, argument and result, and its nodes."""
    if node.op == GELU:
        kind = "gelu_tanh" if node.attrs["approximate"] == "tanh" else "gelu"
        return kind, node.inputs[0], node.outputs[0], [node]
    if node.op == "Swish":
        alpha = float(node.attrs.get("alpha", 1.0))
        if alpha != 1.0 and not math.isclose(alpha, _QUICK, rel_tol=1e-6):
            raise NoMatch(node, f"alpha is {alpha:g}", wanted="1 or 1.702")
        return "silu" if alpha == 1.0 else "quick_gelu", node.inputs[0], node.outputs[0], [node]
    argument, nodes, kind = node.inputs[0], [node], "silu"
    above = producer(argument)
    users = node.outputs[0].outputs
    if len(users) != 1 or users[0].op != "Mul":
        raise NoMatch(node, "a plain Sigmoid", wanted="x times it")
    source = next((t for t in users[0].inputs if t is not node.outputs[0]), None)
    if source is not argument and above is not None and above.op == "Mul":
        factor = next((value for t in above.inputs if (value := scalar(t)) is not None), 0.0)
        if math.isclose(factor, _QUICK, rel_tol=1e-3 if str(argument.dtype) != "float32" else 1e-6):
            kind, nodes = "quick_gelu", [above, node]
            argument = next((t for t in above.inputs if scalar(t) is None), argument)
    if source is not argument:
        raise NoMatch(users[0], "multiplies something else by a Sigmoid", wanted="x sigmoid(x), or x sigmoid(1.702 x)")
    return kind, source, users[0].outputs[0], [*nodes, users[0]]


def _part(graph: FusionGraph, tensor: gs.Tensor) -> tuple[gs.Node, np.ndarray, list[gs.Node]]:
    """The projection that the tensor is columns of, which, and the nodes between."""
    nodes, base = [], tensor
    while (node := producer(base)) is not None and node.op in _PARTS:
        nodes.append(node)
        base = node.inputs[0]
    if node is None or node.op != LINEAR or node.domain != DIALECT:
        raise NoMatch(node or tensor.name, f"'{tensor.name}' is no part of a projection", wanted="one")
    shape, whole = graph.elements.shape(tensor), graph.elements.shape(base)
    if shape[:-1] != whole[:-1]:
        raise NoMatch(producer(tensor), f"'{tensor.name}' is {shape} of {whole}", wanted="columns of every row")
    width = shape[-1].constant
    places = tuple(poly.place(f"i{axis}", size) for axis, size in enumerate(shape))
    read = graph.elements.at(tensor, places, base)
    first = read.index[-1] - places[-1] if isinstance(read, Read) and read.tensor is base else None
    if width is None or first is None or first.constant is None or read.index[:-1] != places[:-1]:
        raise NoMatch(producer(tensor), f"'{tensor.name}' takes other elements", wanted="columns side by side")
    return node, np.arange(first.constant, first.constant + width), nodes
