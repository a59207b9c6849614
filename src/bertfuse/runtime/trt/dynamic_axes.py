"""What TensorRT does not follow on axes of dynamic size, written so that it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

_FEW = 16  # numbers in a shape or an index


def fit(model: onnx.ModelProto) -> None:
    """Changes `model` in place; what it computes stays."""
    _leave_reshapes_out(model.graph, _Graph(model.graph))
    _count_from_the_start(model.graph, _Graph(model.graph))


def _leave_reshapes_out(graph: onnx.GraphProto, of: _Graph) -> None:
    """Reshapes of graph inputs to their own shapes go: exports of CLIP and SigLIP begin with x.view(-1, x.shape[-1]).

    TensorRT takes the first axis of that for any quotient of sizes. Its bounds in a profile are then not those of the
    mask's first axis, and a layer that has both cannot be configured.
    """
    instead = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Reshape" and not node.domain and of.keeps_shape(node)
    }
    for node in graph.node:
        node.input[:] = [instead.get(name, name) for name in node.input]
    if instead:
        _drop_unused(graph)


def _count_from_the_start(graph: onnx.GraphProto, of: _Graph) -> None:
    """Constant indices of Gather that count from the end, as of the last token: TensorRT does not define their result.

    index becomes index + size where it is negative.
    """
    nodes = []
    for node in graph.node:
        index = of.value(node.input[1]) if node.op_type == "Gather" and not node.domain else None
        if index is not None and (index < 0).any() and of.has_dynamic_axes(node.input[0]):
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            name = f"{node.output[0]}/index"
            for what, values in (("axis", np.array(axis)), ("negative", (index < 0).astype(np.int64))):
                graph.initializer.append(numpy_helper.from_array(values.astype(np.int64), f"{name}_{what}"))
            graph.initializer.append(numpy_helper.from_array(index.astype(np.int64), f"{name}_given"))
            nodes += [
                helper.make_node("Shape", [node.input[0]], [f"{name}_shape"], name=f"{name}_shape"),
                helper.make_node("Gather", [f"{name}_shape", f"{name}_axis"], [f"{name}_size"], name=f"{name}_size"),
                helper.make_node("Mul", [f"{name}_size", f"{name}_negative"], [f"{name}_plus"], name=f"{name}_plus"),
                helper.make_node("Add", [f"{name}_given", f"{name}_plus"], [name], name=name),
            ]
            node.input[1] = name
        nodes.append(node)
    if len(nodes) > len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)


class _Graph:
    """What is known of a graph's tensors before a run."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._made_by: Mapping[str, onnx.NodeProto] = {
            name: node for node in graph.node for name in node.output if not node.domain
        }
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._ranks = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in graph.input
            if value.type.tensor_type.HasField("shape")
        }
        self._outputs = {value.name for value in graph.output}

    def value(self, name: str) -> np.ndarray | None:
        """Of a few constant integers."""
        node, tensor = self._made_by.get(name), self._constants.get(name)
        if node is not None and node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = node.attribute[0].t
        if tensor is None or np.prod(tensor.dims) > _FEW:  # large ones may be elsewhere
            return None
        return numpy_helper.to_array(tensor) if tensor.data_type in (6, 7) else None

    def has_dynamic_axes(self, name: str) -> bool:
        """Whether a tensor may: an initializer and a Shape have none."""
        node = self._made_by.get(name)
        return name not in self._constants and (node is None or node.op_type not in ("Constant", "Shape"))

    def keeps_shape(self, node: onnx.NodeProto) -> bool:
        """Whether a Reshape's shape is its input's own, but for one axis at most that is -1 and so has to be, too."""
        x, shape = node.input
        sizes = list(self._sizes(shape))
        if x not in self._ranks or len(sizes) != self._ranks[x] or node.output[0] in self._outputs:
            return False
        return [size for axis, size in enumerate(sizes) if size != (x, axis)] in ([], [-1])

    def _sizes(self, name: str) -> Iterator[int | tuple[str, int] | None]:
        """A vector's elements: numbers, (tensor, axis) for its size, None for what cannot be told."""
        value, node = self.value(name), self._made_by.get(name)
        if value is not None:
            yield from (int(size) for size in value.reshape(-1))
        elif node is not None and node.op_type == "Concat":
            for part in node.input:
                yield from self._sizes(part)
        elif node is not None and node.op_type == "Unsqueeze":
            yield self._size(node.input[0])
        else:
            yield None

    def _size(self, name: str) -> tuple[str, int] | None:
        gather = self._made_by.get(name)
        if gather is None or gather.op_type != "Gather":
            return None
        shape, axis = self._made_by.get(gather.input[0]), self.value(gather.input[1])
        if shape is None or shape.op_type != "Shape" or shape.attribute or axis is None or axis.ndim:
            return None
        rank = self._ranks.get(shape.input[0])
        return (shape.input[0], int(axis) % rank) if rank else None


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Standard operators that nothing reads; left alone where nodes within nodes may read them."""
    if any(attribute.HasField("g") for node in graph.node for attribute in node.attribute):
        return
    needed, kept = {value.name for value in graph.output}, []
    for node in reversed(graph.node):  # ONNX has them in order
        if node.domain or needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
