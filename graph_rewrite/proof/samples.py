"""A second check of what was proven: the subgraph is run on random masks. It can refute, and never proves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import helper
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter, dtype_to_onnx

from ..nodes import NoMatch, producer
from ..shapes import monomial
from .key_range import KeyRange
from .rule import HIDING, Rule

if TYPE_CHECKING:
    from ..graph import FusionGraph

_SHAPES = ((2, 3), (1, 1), (3, 17))
_MAX_ELEMENTS = 1 << 20


@dataclass
class _Subgraph:
    """Nodes from `mask` to a tensor, in order. Of `cuts` only the shape is read."""

    nodes: list[gs.Node]
    constants: list[gs.Constant]
    inputs: list[gs.Tensor]
    cuts: list[gs.Tensor]


def check(
    graph: FusionGraph,
    target: gs.Tensor,
    mask: gs.Tensor,
    rule: Rule,
    kind: str,
    factor: float,
    keys: KeyRange | None = None,
    queries: bool = False,
) -> None:
    """Raise NoMatch where `target` hides other keys than `rule` and `keys` say; nothing where it cannot be run.

    With `queries` every key is hidden from a token that `rule` hides.
    """
    subgraph = _between(graph, mask, target)
    session = _session(graph, subgraph, target)
    if session is None:
        return
    random = np.random.default_rng(0)
    for batch, length in _SHAPES:
        sizes = _sizes(graph, mask, batch, length)
        feeds = _feeds(subgraph, mask, rule, sizes, random)
        if feeds is None:
            continue
        wanted = {value.name for value in session.get_inputs()}
        try:
            result = session.run(None, {name: value for name, value in feeds.items() if name in wanted})[0]
        except Exception:  # ONNX Runtime's exceptions have no base class of their own; a size that does not run
            continue
        values = feeds[mask.name]
        shown = _shown(values, rule).reshape(values.shape[0], 1, 1, values.shape[-1])
        if queries:
            shown = shown & shown.reshape(values.shape[0], 1, values.shape[-1], 1)
        if keys is not None:
            shown = shown & keys.seen(values.shape[-1])
        if not _agrees(result, shown, kind, factor):
            shape = f"{list(values.shape)}"
            raise NoMatch(producer(target) or target.name, f"run on '{mask.name}' {shape}, '{target.name}' is another")


def _shown(values: np.ndarray, rule: Rule) -> np.ndarray:
    return ((values >= rule.low) & (values <= rule.high)) != rule.outside


def _agrees(result: np.ndarray, shown: np.ndarray, kind: str, factor: float) -> bool:
    shown = np.broadcast_to(shown, np.broadcast_shapes(shown.shape, result.shape))
    if kind != "added":
        return np.array_equal(np.broadcast_to(result, shown.shape) == (kind == "kept"), shown)
    result = np.broadcast_to(result.astype(np.float64), shown.shape)
    return bool(np.all(result[shown] == 0) and np.all(result[~shown] * factor <= HIDING))


def _between(graph: FusionGraph, mask: gs.Tensor, target: gs.Tensor) -> _Subgraph:
    nodes, constants, inputs, cuts, seen = [], {}, {}, {}, set()
    ends = {id(mask)} | {id(t) for t in graph.gs.inputs}
    stack = [(target, False)]
    while stack:
        tensor, done = stack.pop()
        node = producer(tensor)
        if done:
            nodes.append(node)
        elif isinstance(tensor, gs.Constant):
            constants[tensor.name] = tensor
        elif id(tensor) in ends or node is None:
            inputs[tensor.name] = tensor
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((tensor, True))
            if node.op == "Shape" and id(node.inputs[0]) not in ends and not isinstance(node.inputs[0], gs.Constant):
                cuts[node.inputs[0].name] = node.inputs[0]
            else:
                stack.extend((t, False) for t in node.inputs if not t.is_empty())
    inside = {t.name for n in nodes for t in n.outputs}
    only_shapes = [t for name, t in cuts.items() if name not in inside and name not in inputs]
    return _Subgraph(nodes, list(constants.values()), list(inputs.values()), only_shapes)


def _session(graph: FusionGraph, subgraph: _Subgraph, target: gs.Tensor) -> ort.InferenceSession | None:
    try:
        nodes = [OnnxExporter.export_node(node) for node in subgraph.nodes]
        initializers = [OnnxExporter.export_tensor_proto(t) for t in subgraph.constants]
        given = [(t, dtype_to_onnx(t.dtype)) for t in subgraph.inputs]
        given += [(t, onnx.TensorProto.FLOAT) for t in subgraph.cuts]
        inputs = [helper.make_tensor_value_info(t.name, element, [None] * len(t.shape)) for t, element in given]
        output = onnx.ValueInfoProto(name=target.name)
        body = helper.make_graph(nodes, "samples", inputs, [output], initializers)
        opset = helper.make_opsetid("", graph.opset)
        model = helper.make_model(body, opset_imports=[opset], ir_version=graph.gs.ir_version or 8)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # bfloat16 and other types that ONNX Runtime does not compute on the CPU
        return None


def _feeds(
    subgraph: _Subgraph, mask: gs.Tensor, rule: Rule, sizes: dict[str, int], random: np.random.Generator
) -> dict[str, np.ndarray] | None:
    """Random values for the mask, on both sides of the rule's bounds; 0 and 1 for all else."""
    feeds = {}
    for tensor in (*subgraph.inputs, *subgraph.cuts):
        shape = [_size(dim, sizes) for dim in tensor.shape]
        if None in shape or math.prod(shape) > _MAX_ELEMENTS:
            return None
        element = np.float32 if any(tensor is t for t in subgraph.cuts) else np.dtype(tensor.dtype)
        values = np.array([0, 1, *([] if rule.lifting or tensor is not mask else [rule.low, rule.high])])
        feeds[tensor.name] = random.choice(values, shape).astype(element)
    return feeds


def _sizes(graph: FusionGraph, mask: gs.Tensor, batch: int, length: int) -> dict[str, int]:
    """A number for each symbol of the inputs' axes: those of the mask as given, others by their place."""
    sizes: dict[str, int] = {}
    for tensor in graph.gs.inputs:
        for axis, dim in enumerate(tensor.shape or []):
            if isinstance(dim, str):
                sizes[dim] = (batch, length)[axis] if axis < 2 else length
    for dim, size in ((mask.shape[0], batch), (mask.shape[-1], length)):
        if isinstance(dim, str):
            sizes[dim] = size
    return sizes


def _size(dim: int | str | None, sizes: dict[str, int]) -> int | None:
    factors = monomial(dim)
    if factors is None or any(symbol not in sizes for symbol in factors[1]):
        return None
    return factors[0] * math.prod(sizes[symbol] for symbol in factors[1])
