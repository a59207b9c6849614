"""Symbolic shapes: what every tensor's axes are, in terms of the model's own dynamic axes."""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx
from onnx import helper

from .weights import Weight

Dim = int | str | None

UNNAMED = "unnamed"  # begins the names that ids without names for their axes share
_OF_IDS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.BOOL)
_FACTOR = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*$")


def infer_shapes(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> dict[str, tuple[int, list[Dim] | None]]:
    """Element type and axes of every tensor that can be worked out; an axis is a number, an expression or None.

    Axes are None where not even their number is known.

    ONNX Runtime's symbolic inference sees through the shape arithmetic of exporters ("-1" between "batch" and 32 is 12
    heads), which ONNX's own does not; ONNX's own is what is left where the other does not know an operator. What the
    file itself declares of tensors inside the graph fills the gaps, unless one declaration contradicts the inference:
    then the file was changed after it was exported, and none of them counts.
    """
    bare = without_weights(skeleton, weights)
    _name_axes(bare)
    _look_through_identities(bare.graph)
    inferred = _symbolic(bare) or _plain(bare)
    inside = _axes(skeleton.graph.value_info)
    values = (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
    found = _axes(values)
    if any(_contradict(inside[name][1], found[name][1]) for name in inside.keys() & found.keys()):
        inside = {}
    elements = [(value.name, value.type.tensor_type.elem_type) for value in (*skeleton.graph.value_info, *values)]
    types = {name: (element, None) for name, element in elements if element}
    return types | inside | found


def _axes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[int, list[Dim]]]:
    tensors = {value.name: value.type.tensor_type for value in values if value.type.HasField("tensor_type")}
    return {
        name: (tensor.elem_type, [_dim(dim) for dim in tensor.shape.dim])
        for name, tensor in tensors.items()
        if tensor.HasField("shape")
    }


def _contradict(one: list[Dim], other: list[Dim]) -> bool:
    sizes = [pair for pair in zip(one, other, strict=False) if all(isinstance(dim, int) for dim in pair)]
    return len(one) != len(other) or any(a != b for a, b in sizes)


def _name_axes(model: onnx.ModelProto) -> None:
    """A name for every axis of an input of which nothing is said, so that it can be followed.

    Ids and masks [B, S] of which nothing at all is said get the same ones: the fused model checks when it runs that
    they are of one shape (`same_shapes`). Any other such axis may be of any size.
    """
    taken = {
        dim.dim_param
        for value in (*model.graph.input, *model.graph.output, *model.graph.value_info)
        for dim in value.type.tensor_type.shape.dim
    }
    for value in model.graph.input:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        dims = tensor.shape.dim
        named = any(dim.HasField("dim_value") or dim.dim_param for dim in dims)
        ids = len(dims) == 2 and tensor.elem_type in _OF_IDS and not named
        owner = UNNAMED if ids else re.sub("[^A-Za-z0-9_]", "_", value.name)
        for index, dim in enumerate(dims):
            if not dim.HasField("dim_value") and not dim.dim_param:
                name = f"{owner}_axis_{index}"
                while name in taken:
                    name += "_"
                taken |= set() if ids else {name}
                dim.dim_param = name


def _look_through_identities(graph: onnx.GraphProto) -> None:
    """Let nodes read constants and initialisers themselves: inference sees no axes or shape in an Identity of one."""
    constants = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    constants |= {node.output[0] for node in graph.node if node.op_type == "Constant" and node.output}
    sources: dict[str, str] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = sources.get(name, name)
        if node.op_type == "Identity" and node.input[0] in constants:
            sources[node.output[0]] = node.input[0]


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


def _symbolic(model: onnx.ModelProto) -> onnx.ModelProto | None:
    from . import symbolic_shapes

    return symbolic_shapes.infer(model)


def _plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX's own inference. It keeps what is declared, also against what it infers, and says so only when strict."""
    failures = (onnx.shape_inference.InferenceError, RuntimeError, ValueError)
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True)
    except failures as error:
        if "existing shape differ" in str(error):
            del model.graph.value_info[:]
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except failures:  # a model that contradicts itself
        return model


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return dim.dim_param or None


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
        elif _FACTOR.match(factor):
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
