"""ONNX Runtime's symbolic shape inference, without what it takes for granted.

Where two axes of different names are broadcast, it takes them for one size. They are not when one of them is 1: here
the result has a size of its own, of which nothing else is known.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
from collections.abc import Callable
from functools import reduce
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
        inference = _Inference()
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


class _Inference(SymbolicShapeInference):
    """Gives an axis that may be one of several sizes a new name, and never renames one."""

    def __init__(self) -> None:
        super().__init__(2**31 - 1, True, False, 0)
        self._new_names = 0
        self.dispatcher_ = {op: self._naming(rule) for op, rule in self.dispatcher_.items()}

    def _naming(self, rule: Callable[[onnx.NodeProto], Any]) -> Callable[[onnx.NodeProto], None]:
        def infer_and_name(node: onnx.NodeProto) -> None:
            rule(node)
            self._name_axes(node)

        return infer_and_name

    def _onnx_infer_single_node(self, node: onnx.NodeProto) -> None:
        super()._onnx_infer_single_node(node)
        if node.op_type not in self.dispatcher_:
            self._name_axes(node)

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
