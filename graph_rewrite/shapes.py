"""Axes and element types as the file declares them of a model's inputs, and how sizes are written.

What the file declares of tensors inside its graph is not believed: their shapes follow from the graph, by the rules of
`elements/shape_rules.py`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence

import onnx
import onnx_graphsurgeon as gs
from onnx import helper

from .nodes import producer
from .weights import Weight

Dim = int | str | None

_OF_IDS = ("int32", "int64", "bool")
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*$")
_OURS = re.compile(r"^axis_\d+$")  # sizes of which nothing is known
_KEEP_PLACES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten")


def name_axes(inputs: Sequence[gs.Tensor]) -> set[str]:
    """Give every axis of an input that is no number a name by which it can be followed; returns those made up for ids.

    ONNX says that axes of one name are of one size. A name that is no plain word gets one that is, so that "2*batch"
    is not taken for twice a batch. Ids and masks [B, S] of which nothing at all is said share their names: the fused
    model checks when it runs that they are of one shape (`same_shapes`). Any other axis without a name may be of any
    size.
    """
    declared = {dim for t in inputs for dim in t.shape or () if isinstance(dim, str) and dim}
    taken = {name for name in declared if _NAME.match(name) and not _OURS.match(name)}
    names = {name: name for name in taken}

    def new(base: str) -> str:
        base = re.sub("[^A-Za-z0-9_]", "_", base)
        name = base if re.match("[A-Za-z_]", base) else f"axis_{base}"
        while name in taken or _OURS.match(name):
            name += "_"
        taken.add(name)
        return name

    shared: list[str] = []
    for tensor in inputs:
        if tensor.shape is None:
            continue
        given = [dim if isinstance(dim, int) else dim or None for dim in tensor.shape]
        if len(given) == 2 and given == [None, None] and str(tensor.dtype) in _OF_IDS:
            shared = shared or [new(f"unnamed_axis_{axis}") for axis in range(2)]
            tensor.shape = list(shared)
            continue
        for axis, dim in enumerate(given):
            if isinstance(dim, str):
                given[axis] = names.setdefault(dim, "") or names.update({dim: new(dim)}) or names[dim]
            elif dim is None:
                given[axis] = new(f"{tensor.name}_axis_{axis}")
        tensor.shape = given
    return set(shared)


def axes_of_tokens(nodes: Iterable[gs.Node], inputs: Sequence[gs.Tensor]) -> set[str]:
    """The names of the axes of ids, which look up the rows of a table, and of features, which a weight multiplies.

    Where one of them is of size 0 there is no token, and nothing to compute. Any other axis, of a cache of past keys
    for example, may be of size 0 in a batch that has tokens.
    """
    ids = {id(t) for t in inputs}
    found: set[str] = set()
    for node in nodes:
        source = _tokens_of(node)
        while source is not None and (above := producer(source)) is not None:
            source = above.inputs[0] if above.op in _KEEP_PLACES else None
        if source is not None and id(source) in ids:
            found.update(dim for dim in source.shape or () if isinstance(dim, str))
    return found


def _tokens_of(node: gs.Node) -> gs.Tensor | None:
    """The ids that the node looks up in a table, or the features that it multiplies by a weight."""
    if node.op not in ("Gather", "MatMul", "Gemm", "Conv") or len(node.inputs) < 2:
        return None
    table, ids = node.inputs[:2] if node.op == "Gather" else node.inputs[1::-1]
    return ids if isinstance(table, gs.Constant) and len(table.shape) > 1 else None


def element_types(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> dict[str, int]:
    """The element type of every tensor, as ONNX's own inference has it: by the same one ONNX Runtime types a graph.

    Of tensors that it does not know, what the file declares: a wrong type is one that no runtime loads.
    """
    bare = without_weights(skeleton, weights)
    declared = {value.name: value.type.tensor_type.elem_type for value in bare.graph.value_info}
    del bare.graph.value_info[:]
    for value in (*bare.graph.input, *bare.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):  # it contradicts itself
        bare = onnx.shape_inference.infer_shapes(safe_to_infer(bare))
    graph = bare.graph
    found = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input, *graph.output)}
    return {name: element for name, element in (declared | {n: e for n, e in found.items() if e}).items() if element}


def safe_to_infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy with what gives the same types and shapes for what ends the process in onnx's inference.

    That is RegexFullMatch of a tensor whose type is not known (onnx 1.23): Cast to bool in its place.
    """
    unsafe = [node for node in _all_nodes(model) if node.op_type == "RegexFullMatch"]
    if not unsafe:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in _all_nodes(copy):
        if node.op_type == "RegexFullMatch":
            cast = helper.make_node("Cast", node.input, node.output, node.name, to=onnx.TensorProto.BOOL)
            cast.domain = node.domain
            node.CopyFrom(cast)
    return copy


def _all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Those of the graph, of bodies and of functions."""
    found = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    for node in found:  # grows as it goes
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found.extend(graph.node)
    return found


def without_weights(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> onnx.ModelProto:
    """A copy in which large initialisers, which have no data here, are inputs of known shape."""
    bare = onnx.ModelProto()
    bare.CopyFrom(skeleton)
    kept = [tensor for tensor in bare.graph.initializer if tensor.name not in weights]
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(kept)
    declared = {value.name for value in bare.graph.input}
    for name, weight in weights.items():
        if name not in declared:
            bare.graph.input.append(helper.make_tensor_value_info(name, weight.data_type, weight.shape))
    return bare


def monomial(dim: Dim) -> tuple[int, tuple[str, ...]] | None:
    """A dimension as (number, sorted symbols): 12*batch is (12, ("batch",)). None for sums and unknowns."""
    if dim is None:
        return None
    if isinstance(dim, int):
        return dim, ()
    number, symbols = 1, []
    for factor in str(dim).split("*"):
        factor = factor.strip()
        if factor.isdigit():
            number *= int(factor)
        elif _NAME.match(factor):
            symbols.append(factor)
        else:
            return None
    return number, tuple(sorted(symbols))


def product(dims: list[Dim]) -> tuple[int, tuple[str, ...]] | None:
    """The monomial of several dimensions' product."""
    number, symbols = 1, []
    for dim in dims:
        factor = monomial(dim)
        if factor is None:
            return None
        number *= factor[0]
        symbols += factor[1]
    return number, tuple(sorted(symbols))
