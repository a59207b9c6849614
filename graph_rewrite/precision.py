"""A fused graph in another float type."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from . import exactness, gammas
from .exactness import FLOATS, Kind, has_body, is_float
from .graph import FusionGraph, as_weight
from .nodes import DEFAULT_DOMAINS, data_type, producer
from .ops import OPS
from .order import read_by_bodies
from .spec import DOMAIN
from .weights import cast_array

DTYPES = {
    "fp32": onnx.TensorProto.FLOAT,
    "fp16": onnx.TensorProto.FLOAT16,
    "bf16": onnx.TensorProto.BFLOAT16,
}
_SMALL = 1024  # bytes of a constant that is converted at once
# Operators whose inputs may be of another float type than what they give.
_OF_ANY_TYPE = ("Cast", "Shape", "Size")


def convert(graph: FusionGraph, dtype: str) -> None:
    """Turn the float32, float16 and bfloat16 tensors of the graph, its inputs and outputs included, into `dtype`.

    In a half precision type all that must be exact stays float32 (see exactness.py), with Casts where it meets the
    rest; so do float inputs that are ids or lengths. What the bodies of If, Loop and Scan and functions of the model's
    own read and give keeps its type. Finite constants beyond the range of the type (the -3.4e38 of masks) become its
    largest, those too small for it (the 1e-9 under a division) its smallest. Kernels and function bodies accumulate in
    float32 whatever the type.
    """
    gammas.convert(graph, _numpy(DTYPES[dtype]))
    _Conversion(graph, DTYPES[dtype]).run()


class _Conversion:
    def __init__(self, graph: FusionGraph, target: int) -> None:
        self._graph, self._target = graph, target
        self._nodes = list(graph.gs.nodes)
        half = target != onnx.TensorProto.FLOAT
        self._kinds = exactness.kinds(self._nodes, graph.gs.inputs) if half else {}
        self._wide = exactness.exact(self._nodes, self._kinds) if half else set()
        bodies = [node for node in self._nodes if self._has_body(node)]
        of_bodies = [t for n in bodies for t in (*n.inputs, *n.outputs, *read_by_bodies(n)) if is_float(t)]
        self._kept = {id(t): data_type(t.dtype) for t in of_bodies}
        self._outputs = {id(t) for t in graph.gs.outputs}
        self._types: dict[int, int] = {}
        self._casts: dict[tuple[int, int], gs.Tensor] = {}
        self._constants: dict[tuple[int, int], gs.Constant] = {}
        self._added: list[gs.Node] = []

    def run(self) -> None:
        graph = self._graph.gs
        tensors = [t for t in graph.tensors().values() if isinstance(t, gs.Variable) and is_float(t)]
        self._types = {id(t): self._type(t) for t in tensors}
        runs = {id(node): self._runs_in(node) for node in self._nodes}
        order: list[gs.Node] = []
        for node in self._nodes:
            if not self._has_body(node):
                self._added = []
                self._convert_inputs(node, runs[id(node)])
                order += self._added
            order.append(node)
            self._added = []
            self._convert_outputs(node, runs[id(node)])
            order += self._added
        for tensor in tensors:
            tensor.dtype = _numpy(self._types[id(tensor)])
        for default in self._graph.defaults.values():
            if is_float(default):
                default.values = _converted(default, self._target)
        graph.nodes[:] = order

    def _type(self, tensor: gs.Tensor) -> int:
        if id(tensor) in self._kept:
            return self._kept[id(tensor)]
        if id(tensor) not in self._wide or (id(tensor) in self._outputs and tensor.inputs):
            return self._target
        # A float16 input that is to be exact is as exact as it can be.
        given = data_type(tensor.dtype)
        return onnx.TensorProto.FLOAT if tensor.inputs else given

    def _runs_in(self, node: gs.Node) -> int:
        if node.op == "Cast" and is_float(node.outputs[0]) and id(node.outputs[0]) not in self._wide:
            return self._types[id(node.outputs[0])]
        wide = exactness.runs_wide(node, self._kinds, self._wide)
        wide = wide or not _is_defined_for(node, self._target, self._graph.opset)
        return onnx.TensorProto.FLOAT if wide and self._target != onnx.TensorProto.FLOAT else self._target

    def _convert_inputs(self, node: gs.Node, runs: int) -> None:
        for name, value in node.attrs.items():
            if isinstance(value, gs.Constant) and is_float(value):
                values = cast_array(np.asarray(value.values), runs)
                node.attrs[name] = gs.Constant(value.name, values)
            elif name == "dtype" and value in FLOATS and isinstance(value, int):
                node.attrs[name] = runs
        if node.op == "Cast" and node.attrs["to"] in FLOATS and is_float(node.outputs[0]):
            node.attrs["to"] = runs
        for index, tensor in enumerate(node.inputs):
            if not is_float(tensor) or _is_scale(node, index):
                continue
            if isinstance(tensor, gs.Constant):
                node.inputs[index] = self._constant(tensor, runs)
            elif self._types[id(tensor)] != runs and node.op not in _OF_ANY_TYPE:
                node.inputs[index] = self._cast(tensor, runs)

    def _convert_outputs(self, node: gs.Node, runs: int) -> None:
        """What is kept in another type than it is computed in goes through a Cast."""
        if self._has_body(node):
            return
        for index, tensor in enumerate(node.outputs):
            if is_float(tensor) and self._types[id(tensor)] != runs:
                made = self._graph.variable(f"{tensor.name}_computed", _numpy(runs), tensor.shape)
                node.outputs[index] = made
                self._types[id(made)] = runs
                self._add("Cast", [made], tensor, to=self._types[id(tensor)])
                if id(tensor) in self._wide and runs == onnx.TensorProto.FLOAT:
                    self._read_instead(tensor, made)

    @staticmethod
    def _read_instead(output: gs.Tensor, exact: gs.Tensor) -> None:
        """An output of the graph is rounded; who reads it within the graph reads what it was before."""
        for user in {id(n): n for n in output.outputs}.values():
            for index, tensor in enumerate(user.inputs):
                if tensor is output:
                    user.inputs[index] = exact

    def _cast(self, tensor: gs.Tensor, to: int) -> gs.Tensor:
        key = (id(tensor), to)
        if key not in self._casts:
            source = self._bounded(tensor) if to != onnx.TensorProto.FLOAT else tensor
            made = self._graph.variable(f"{tensor.name}_cast", _numpy(to), tensor.shape)
            self._add("Cast", [source], made, to=to)
            self._casts[key] = made
        return self._casts[key]

    def _bounded(self, tensor: gs.Tensor) -> gs.Tensor:
        """Within the range of the type, where only constants take it out: what hides a key is not to become -inf."""
        if self._kinds.get(id(tensor), Kind.ACTIVATION) > Kind.FED or not _beyond(tensor, self._largest()):
            return tensor
        given = _numpy(self._types[id(tensor)])
        bounds = [self._graph.constant("bound", np.array(sign * self._largest(), given)) for sign in (-1, 1)]
        made = self._graph.variable(f"{tensor.name}_bounded", given, tensor.shape)
        self._add("Clip", [tensor, *bounds], made)
        return made

    def _largest(self) -> float:
        return 65504.0 if self._target == onnx.TensorProto.FLOAT16 else float.fromhex("0x1.fep127")

    def _constant(self, constant: gs.Constant, to: int) -> gs.Constant:
        if data_type(constant.dtype) == to:
            return constant
        key = (id(constant), to)
        if key not in self._constants:
            shared = id(constant) in self._kept or any(self._differs(user, to) for user in constant.outputs)
            name = self._graph.name(f"{constant.name}_converted") if shared else constant.name
            self._constants[key] = gs.Constant(name, _converted(constant, to))
        return self._constants[key]

    def _differs(self, user: gs.Node, to: int) -> bool:
        return self._runs_in(user) != to or self._has_body(user)

    def _has_body(self, node: gs.Node) -> bool:
        """Whether nodes that are not converted compute what this one gives: those of a branch, a loop, a function."""
        return has_body(node) or node.op in self._graph.functions

    def _add(self, op: str, inputs: list[gs.Tensor], output: gs.Tensor, **attributes: Any) -> None:
        name = self._graph.name(f"{op}_{output.name}")
        self._added.append(gs.Node(op, name, attributes, inputs, [output]))


def _is_defined_for(node: gs.Node, element: int, opset: int) -> bool:
    """Whether the operator takes floats of this type in this opset: Where of bfloat16 came with opset 16."""
    if node.domain not in DEFAULT_DOMAINS:
        return True
    try:
        schema = onnx.defs.get_schema(node.op, opset, "")
    except onnx.defs.SchemaError:
        return True
    kind = f"tensor({onnx.helper.tensor_dtype_to_string(element).removeprefix('TensorProto.').lower()})"
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    formal = [*zip(schema.inputs, node.inputs, strict=False), *zip(schema.outputs, node.outputs, strict=False)]
    return all(kind in allowed.get(form.type_str, [form.type_str]) for form, tensor in formal if is_float(tensor))


def _is_scale(node: gs.Node, index: int) -> bool:
    """Whether it is one of 8-bit numbers, which are float32 whatever the op's type."""
    return node.domain == DOMAIN and OPS[node.op].inputs[index].dtype == "S"


def _converted(constant: gs.Constant, to: int) -> Any:
    weight = as_weight(constant).cast(to)
    return weight if weight.nbytes >= _SMALL else weight.load()


def _numpy(number: int) -> np.dtype:
    return onnx.helper.tensor_dtype_to_np_dtype(number)


def _beyond(tensor: gs.Tensor, largest: float) -> bool:
    """Whether finite constants beyond `largest`, and no infinite ones, are among those that `tensor` is made of."""
    stack, seen, found = [tensor], set(), False
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        node = producer(current)
        given = [current] if isinstance(current, gs.Constant) else []
        given += [v for v in node.attrs.values() if isinstance(v, gs.Constant)] if node is not None else []
        for constant in given:
            if is_float(constant) and constant.shape is not None:
                values = np.abs(np.asarray(as_weight(constant).load(), np.float32))
                if np.isinf(values).any():
                    return False
                found = found or bool((values > largest).any())
        stack.extend(t for t in node.inputs if is_float(t)) if node is not None else None
    return found
