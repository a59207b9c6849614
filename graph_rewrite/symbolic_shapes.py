"""ONNX Runtime's symbolic shape inference, without what it takes for granted.

Where two axes of different names are broadcast, it takes them for one size. They are not when one of them is 1: here
the result has a size of its own, of which nothing else is known. And where it fails at a node (a Reshape to a shape
that it cannot work out, an Expand of what it knows nothing of) it would give up on the whole graph: here what ONNX's
own inference says of that node takes its place.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from collections.abc import Callable
from functools import cached_property, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnxruntime
import sympy


def _module() -> ModuleType:
    """onnxruntime.tools.symbolic_shape_infer, without its package: that imports torch where it is installed.

    PyTorch alone would take longer than fusing a small model.
    """
    name = "onnxruntime.tools.symbolic_shape_infer"
    if name in sys.modules:
        return sys.modules[name]
    path = Path(onnxruntime.__file__).parent / "tools" / "symbolic_shape_infer.py"
    spec = importlib.util.spec_from_file_location(f"{__name__}.of_onnxruntime", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


symbolic_shape_infer = _module()
SymbolicShapeInference = symbolic_shape_infer.SymbolicShapeInference


def infer(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with the shape of every tensor that can be worked out; None where the inference gives up."""
    level = symbolic_shape_infer.logger.level
    symbolic_shape_infer.logger.setLevel(logging.CRITICAL)
    try:
        # The steps of its infer_shapes(), which drops what it has inferred, and writes a file to the working folder,
        # when there is one operator that it does not know.
        inference = _Inference(model)
        inference._preprocess(model)
        while inference.run_:
            inference._infer_impl()
        inference._update_output_from_vi()
        return inference.out_mp_
    except Exception:  # of any kind, on graphs that it does not understand
        return None
    finally:
        symbolic_shape_infer.logger.setLevel(level)


_MINIMUM = re.compile(r"^Min\(\d+, (?P<dim>\w+)\)$")
_ELEMENTWISE = {
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
    "And", "Or", "Xor", "Min", "Max", "Sum", "Mean", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "PRelu",
}  # fmt: skip


_HOLD_SIZES = (onnx.TensorProto.INT32, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


def _is_within(bound: Any, size: Any) -> bool:
    """Whether a bound of a Slice is a number, or from 0 to the size of the axis whatever the sizes are."""
    if symbolic_shape_infer.is_literal(bound) or symbolic_shape_infer.is_literal(size):
        return True
    bound, size = sympy.sympify(bound), sympy.sympify(size)
    return bool(bound.is_nonnegative) and bool((size - bound).is_nonnegative)


def _lacks_shape(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


class _Inference(SymbolicShapeInference):
    """Gives an axis that may be one of several sizes a new name, and never renames one."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(2**31 - 1, True, False, 0)
        self._model = model
        self._new_names = 0
        self.dispatcher_ = {op: self._naming(rule) for op, rule in self.dispatcher_.items()}

    def _naming(self, rule: Callable[[onnx.NodeProto], Any]) -> Callable[[onnx.NodeProto], None]:
        def infer_and_name(node: onnx.NodeProto) -> None:
            try:
                rule(node)
            except Exception:  # asserts and indexes of every kind
                if not self._take_plain(node, list(node.output)):
                    raise
            self._complete(node)

        return infer_and_name

    def _onnx_infer_single_node(self, node: onnx.NodeProto) -> None:
        super()._onnx_infer_single_node(node)
        if node.op_type not in self.dispatcher_:
            self._complete(node)

    def _complete(self, node: onnx.NodeProto) -> None:
        unknown = [name for name in node.output if name and _lacks_shape(self.known_vi_[name])]
        if unknown:
            self._take_plain(node, unknown)
        self._name_axes(node)

    @cached_property
    def _plain(self) -> dict[str, onnx.ValueInfoProto]:
        """What ONNX's own inference says of the graph's tensors, by name."""
        bare = onnx.ModelProto()
        bare.CopyFrom(self._model)
        del bare.graph.value_info[:]
        for value in bare.graph.output:
            value.type.tensor_type.ClearField("shape")
        try:
            inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):  # a graph that contradicts itself
            return {}
        return {value.name: value for value in (*inferred.value_info, *inferred.output)}

    def _take_plain(self, node: onnx.NodeProto, names: list[str]) -> bool:
        """Take over what ONNX's own inference says of these outputs of the node; False where it knows no shape.

        Its sizes count where they are numbers or names of the model's; any other is one of which nothing is known.
        """
        found = {name: self._plain.get(name) for name in names if name}
        if not found or any(value is None or _lacks_shape(value) for value in found.values()):
            return False
        for name, value in found.items():
            self.known_vi_[name].CopyFrom(value)
            self.sympy_data_.pop(name, None)
            for dim in self.known_vi_[name].type.tensor_type.shape.dim:
                if dim.dim_param not in self.input_symbols_:
                    dim.ClearField("dim_param")
        return True

    def _name_axes(self, node: onnx.NodeProto) -> None:
        for name in filter(None, node.output):
            tensor = self.known_vi_[name].type.tensor_type
            dims = tensor.shape.dim if tensor.HasField("shape") else ()
            unknown = [
                index
                for index, dim in enumerate(dims)
                if not dim.HasField("dim_value") and (not dim.dim_param or self._is_none_dim(dim.dim_param))
            ]
            shapes = [self._try_get_shape(node, index) for index in range(len(node.input))] if unknown else []
            broadcast = node.op_type in _ELEMENTWISE and None not in shapes
            wanted = reduce(self._broadcast_shapes, shapes) if unknown and broadcast else [None] * len(dims)
            for index in unknown:
                size = wanted[index]
                if isinstance(size, int):
                    dims[index].dim_value = size
                else:
                    dims[index].dim_param = size or self._new_name()

    # What the inference settles by a guess is left open here.

    def _infer_Slice(self, node: onnx.NodeProto) -> None:
        """It takes axes that are computed for the first ones, and an end that may lie anywhere for that of the axis."""
        values = [self._try_get_value(node, index) for index in range(5)]
        given = [index < len(node.input) and bool(node.input[index]) for index in range(5)]
        sizes = self._get_sympy_shape(node, 0)
        super()._infer_Slice(node)
        if any(is_given and value is None for is_given, value in zip(given[3:], values[3:], strict=True)):
            unsure = list(range(len(sizes)))
            self.sympy_data_.pop(node.output[0], None)
        elif values[1] is not None and values[2] is not None:
            starts, ends = (symbolic_shape_infer.as_list(value, keep_none=True) for value in values[1:3])
            axes = symbolic_shape_infer.as_list(values[3], keep_none=True) if given[3] else range(len(starts))
            bounds = zip(axes, starts, ends, strict=False)
            unsure = [a for a, start, end in bounds if not _is_within(start, sizes[a]) or not _is_within(end, sizes[a])]
        else:
            unsure = []
        dims = self.known_vi_[node.output[0]].type.tensor_type.shape.dim
        for axis in unsure:
            dims[axis].dim_param = self._new_name()

    def _infer_symbolic_compute_ops(self, node: onnx.NodeProto) -> None:
        """It takes sizes that are written differently for different ones: S is 4 where S is 4."""
        super()._infer_symbolic_compute_ops(node)
        if node.op_type == "Equal" and node.output[0] in self.sympy_data_:
            values = self._get_int_or_float_values(node, broadcast=True)
            pairs = zip(*values, strict=False) if isinstance(values[0], list) else [values]
            if any(sympy.sympify(a - b).is_zero is None for a, b in pairs):
                del self.sympy_data_[node.output[0]]

    def _infer_Cast(self, node: onnx.NodeProto) -> None:
        """It takes a size for itself in any type."""
        if next(a.i for a in node.attribute if a.name == "to") in _HOLD_SIZES:
            super()._infer_Cast(node)

    def _new_name(self) -> str:
        self._new_names += 1
        name = f"axis_{self._new_names}"
        while name in self.symbolic_dims_:
            name += "_"
        self.symbolic_dims_[name] = sympy.Symbol(name, integer=True, nonnegative=True)
        return name

    def _add_suggested_merge(self, symbols: list[Any], apply: bool = False) -> None:
        pass

    def _broadcast_shapes(self, shape1: list[Any], shape2: list[Any]) -> list[Any]:
        rank = max(len(shape1), len(shape2))
        padded = [[1] * (rank - len(shape)) + list(shape) for shape in (shape1, shape2)]
        return [self._broadcast(*pair) for pair in zip(*padded, strict=True)]

    def _broadcast(self, first: Any, second: Any) -> Any:
        if first == 1 or first == second:
            return second
        if second == 1:
            return first
        # With a number other than 1 it is that, whatever the other is: else the model does not run.
        for dim, other in ((first, second), (second, first)):
            if not isinstance(dim, str):
                return dim
            # min(512, S) of a table's rows with S: they are the same, or the table has but one row.
            if (least := _MINIMUM.match(str(other))) and least["dim"] == dim:
                return dim
        return self._new_name()

    def _merge_symbols(self, dims: list[Any]) -> Any:
        """Of axes that are the same, or the model does not run: the sides of a Concat."""
        numbers = [dim for dim in dims if not isinstance(dim, str)]
        known = [dim for dim in dims if dim in self.symbolic_dims_]
        return numbers[0] if numbers else known[0] if known else self._new_name()
