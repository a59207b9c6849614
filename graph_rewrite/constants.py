"""What a tensor made of constants is: evaluated by ONNX Runtime, node by node, in the types that the graph declares.

A Cast to INT64 cuts off, one to BOOL makes everything but 0 true, unsigned numbers wrap: none of it is computed here by
hand. What depends on an input of the model has no value; of a Shape the sizes that are known count as constants.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import helper
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter

from .nodes import DEFAULT_DOMAINS, producer
from .weights import Weight

_MAX_ELEMENTS = 1 << 22  # of any tensor on the way: position and mask buffers, not weights
_MAX_NODES = 20_000  # run for one graph

# Operators whose output is elements of their data, which is the first input, of Concat all of them.
_MOVES = (
    "Gather", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Concat", "Identity", "Flatten", "Transpose", "Expand",
    "Split", "Tile", "GatherElements", "GatherND",
)  # fmt: skip
_COMPUTES = (
    "Abs", "Add", "And", "ArgMax", "ArgMin", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast",
    "CastLike", "Ceil", "Clip", "ConstantOfShape", "Cos", "CumSum", "Div", "Equal", "Erf", "Exp", "EyeLike", "Floor",
    "Greater", "GreaterOrEqual", "HardSigmoid", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max",
    "Mean", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "OneHot", "Or", "Pad", "Pow", "PRelu", "Range", "Reciprocal",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Round", "ScatterElements", "ScatterND",
    "Shrink", "Sigmoid", "Sign", "Sin", "Size", "Sqrt", "Sub", "Sum", "Tanh", "ThresholdedRelu", "Trilu", "Where",
    "Xor",
)  # fmt: skip
_OPERATORS = frozenset((*_MOVES, *_COMPUTES))
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class _Value:
    """An array of which only the elements in `known` are constants; None for all of them."""

    array: np.ndarray
    known: np.ndarray | None = None


class Constants:
    """Values of the constant tensors of one graph, each computed once."""

    def __init__(self, opset: int, ir_version: int | None = None) -> None:
        self.runner = Runner(opset, ir_version)
        self._values: dict[int, tuple[gs.Tensor, _Value | None]] = {}  # by id; the tensor is held so that it lasts
        self._left = _MAX_NODES

    def value(self, tensor: gs.Tensor) -> np.ndarray | None:
        """The tensor, not to be changed, in its own dtype; None where it depends on an input or costs too much."""
        found = self._value(tensor)
        return None if found is None or found.known is not None else found.array

    def run(self, node: gs.Node, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """What the node makes of these inputs, None for those left out. Raises ValueError where it cannot be run."""
        return self.runner.run(node, inputs)

    def _value(self, tensor: gs.Tensor) -> _Value | None:
        stack = [tensor]
        while stack:
            current = stack[-1]
            if id(current) in self._values:
                stack.pop()
                continue
            waits = self._waits_for(current)
            if waits is not None:
                stack.append(waits)
                continue
            self._values[id(current)] = (current, self._evaluate(current))
            stack.pop()
        return self._values[id(tensor)][1]

    def _waits_for(self, tensor: gs.Tensor) -> gs.Tensor | None:
        """An input of the tensor's node that must be known before it."""
        node = producer(tensor)
        if isinstance(tensor, gs.Constant) or node is None or not _may_fold(node):
            return None
        for given in node.inputs:
            if not given.is_empty():
                if id(given) not in self._values:
                    return given
                if self._values[id(given)][1] is None:
                    return None
        return None

    def _evaluate(self, tensor: gs.Tensor) -> _Value | None:
        if isinstance(tensor, gs.Constant):
            return _initial(tensor)
        node = producer(tensor)
        if node is None or node.domain not in DEFAULT_DOMAINS:
            return None
        if node.op == "Shape":
            return _sizes(node)
        if node.op == "Constant":
            value = node.attrs.get("value")
            return _initial(value) if isinstance(value, gs.Constant) else None
        if not _may_fold(node):
            return None
        given = []
        for source in node.inputs:
            found = None if source.is_empty() else self._values.get(id(source), (source, None))[1]
            if found is None and not source.is_empty():
                return None
            given.append(found)
        self._left -= 1
        if self._left < 0:
            return None
        index = next(i for i, output in enumerate(node.outputs) if output is tensor)
        try:
            return self._folded(node, given, index)
        except ValueError:
            return None

    def _folded(self, node: gs.Node, given: list[_Value | None], index: int) -> _Value | None:
        arrays = [None if value is None else value.array for value in given]
        if all(value is None or value.known is None for value in given):
            return _Value(self.run(node, arrays)[index])
        data = range(len(given)) if node.op == "Concat" else range(1)
        if node.op == "Cast" and np.dtype(helper.tensor_dtype_to_np_dtype(node.attrs["to"])).kind in "iu":
            array, known = self.run(node, arrays)[index], given[0].known
        elif node.op in _MOVES and all(v is None or v.known is None for i, v in enumerate(given) if i not in data):
            array = self.run(node, arrays)[index]
            marks = [_marks(v) if i in data else arrays[i] for i, v in enumerate(given)]
            known = self.run(node, marks)[index].astype(bool)
        else:
            return None
        return _Value(array, None if known.all() else known)


def _may_fold(node: gs.Node) -> bool:
    return node.op in _OPERATORS and node.domain in DEFAULT_DOMAINS and bool(node.inputs) and _makes_numbers(node)


def _makes_numbers(node: gs.Node) -> bool:
    """Whether no attribute names a type that is not computed with."""
    types = [value.dtype for value in node.attrs.values() if isinstance(value, gs.Constant)]
    try:
        types += [helper.tensor_dtype_to_np_dtype(node.attrs[name]) for name in ("to", "dtype") if name in node.attrs]
    except (KeyError, TypeError):  # a number that stands for no type
        return False
    return all(not isinstance(dtype, int) and _is_computed_with(np.dtype(dtype)) for dtype in types)


def _initial(constant: gs.Constant) -> _Value | None:
    if math.prod(constant.shape) > _MAX_ELEMENTS:
        return None
    values = constant._values
    array = np.asarray(values.load() if isinstance(values, Weight) else constant.values)
    return _Value(array) if _is_computed_with(array.dtype) else None


def _is_computed_with(dtype: np.dtype) -> bool:
    """Whether elements of this type are numbers of NumPy's, or bfloat16: float8 and the like are bytes to it."""
    return dtype == _BFLOAT16 or (dtype.kind in "biuf" and dtype.isbuiltin == 1)


def _sizes(node: gs.Node) -> _Value | None:
    """Of a Shape, the sizes that are numbers."""
    dims = node.inputs[0].shape if node.inputs else None
    if dims is None:
        return None
    dims = dims[node.attrs.get("start", 0) : node.attrs.get("end", len(dims))]
    known = np.array([isinstance(dim, int) for dim in dims], bool)
    sizes = np.array([dim if isinstance(dim, int) else 0 for dim in dims], np.int64)
    return _Value(sizes, None if known.all() else known)


def _marks(value: _Value) -> np.ndarray:
    known = np.ones(value.array.shape, bool) if value.known is None else value.known
    return known.astype(np.int64)


class _Sessions:
    """Sessions of single nodes, of all models: making one takes longer than most of what is run in it."""

    _MOST = 512

    def __init__(self) -> None:
        self._made: dict[tuple, ort.InferenceSession | None] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple, make: Callable[[], ort.InferenceSession | None]) -> ort.InferenceSession | None:
        with self._lock:
            if key not in self._made:
                if len(self._made) >= self._MOST:
                    self._made.clear()
                self._made[key] = make()
            return self._made[key]


_SESSIONS = _Sessions()


class Runner:
    """Single nodes run by ONNX Runtime, a session for each operator, attributes and types."""

    def __init__(self, opset: int, ir_version: int | None = None) -> None:
        self._opset, self._ir_version = opset, ir_version or 8

    def run(self, node: gs.Node, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        """What the node makes of these inputs. Raises ValueError where it cannot be run, or costs much."""
        try:
            _check_cost(node, inputs)
            return self.apply(node.op, node.attrs, inputs, len(node.outputs))
        except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"{node.op} is not as ONNX has it: {error}") from error

    def apply(
        self, op: str, attributes: Mapping[str, Any], inputs: Sequence[np.ndarray | None], outputs: int = 1
    ) -> list[np.ndarray]:
        """Run one standard operator, whatever it costs; bfloat16, which the CPU lacks, is rounded float32."""
        _check_division(op, inputs)
        rounded = _results_in_bfloat16(op, attributes, inputs)
        given = [x.astype(np.float32) if x is not None and x.dtype == _BFLOAT16 else x for x in inputs]
        types = tuple(None if x is None else x.dtype.str for x in given)
        key = (self._opset, self._ir_version, op, _comparable(attributes), types, outputs)
        session = _SESSIONS.get(key, lambda: self._session(op, attributes, given, outputs))
        if session is None:
            raise ValueError(f"ONNX Runtime has no {op} of these types")
        try:
            results = session.run(None, {f"x{i}": x for i, x in enumerate(given) if x is not None})
        except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
            raise ValueError(" ".join(str(error).split())) from error
        return [r.astype(_BFLOAT16) if rounded and r.dtype == np.float32 else r for r in results]

    def _session(
        self, op: str, attributes: Mapping[str, Any], inputs: Sequence[np.ndarray | None], outputs: int
    ) -> ort.InferenceSession | None:
        proto = OnnxExporter.export_node(gs.Node(op, attrs=_without_bfloat16(op, attributes)))
        proto.input.extend("" if x is None else f"x{i}" for i, x in enumerate(inputs))
        proto.output.extend(f"y{i}" for i in range(outputs))
        given = [
            helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype), None)
            for i, x in enumerate(inputs)
            if x is not None
        ]
        graph = helper.make_graph([proto], "node", given, [onnx.ValueInfoProto(name=name) for name in proto.output])
        opset = helper.make_opsetid("", self._opset)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=self._ir_version)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:  # a type or form that it does not know
            return None


def _comparable(attributes: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Attributes as something to look up by: 1 is another attribute than 1.0 is, and 0.0 than -0.0."""
    return tuple((name, repr(_bytes_of(value))) for name, value in sorted(attributes.items()))


def _bytes_of(value: Any) -> Any:
    if isinstance(value, gs.Constant):
        array = np.asarray(value.values)
        return array.dtype.str, array.shape, array.tobytes()
    return value


def _check_division(op: str, inputs: Sequence[np.ndarray | None]) -> None:
    """Whole numbers divided by 0, or the smallest by -1, end the process."""
    if op not in ("Div", "Mod") or inputs[1].dtype.kind not in "iu":
        return
    overflows = np.any(inputs[1] == -1) and np.any(inputs[0] == np.iinfo(inputs[0].dtype).min)
    if np.any(inputs[1] == 0) or overflows:
        raise ValueError(f"{op} of whole numbers by 0, or beyond their type")


def _check_cost(node: gs.Node, inputs: Sequence[np.ndarray | None]) -> None:
    """Raise ValueError where the output would be large: a small constant can be expanded to any size."""
    given = [x for x in inputs if x is not None]
    elements = max((x.size for x in given), default=0)
    if node.op in ("ConstantOfShape", "Expand"):
        elements = math.prod(int(n) for n in given[-1].reshape(-1)) * (elements if node.op == "Expand" else 1)
    elif node.op == "Tile":
        elements = given[0].size * math.prod(int(n) for n in given[1].reshape(-1))
    elif node.op == "Range":
        start, limit, delta = (float(x.reshape(-1)[0]) for x in given)
        elements = math.inf if delta == 0 or not math.isfinite(limit - start) else (limit - start) / delta
    elif node.op == "OneHot":
        elements = given[0].size * float(given[1].reshape(-1)[0])
    elif node.op == "Pad":
        elements = given[0].size * math.prod(1 + abs(int(n)) for n in given[1].reshape(-1))
    elif node.op in ("Gather", "GatherND", "GatherElements"):
        elements = max(given[0].size, 1) * max(given[1].size, 1)
    elif node.op not in _MOVES:
        with_shapes = [x.shape for x in given]
        try:
            elements = math.prod(np.broadcast_shapes(*with_shapes))
        except ValueError:
            elements = sum(x.size for x in given)
    if not elements <= _MAX_ELEMENTS:
        raise ValueError(f"{node.op} gives more than {_MAX_ELEMENTS} elements")


def _results_in_bfloat16(op: str, attributes: Mapping[str, Any], inputs: Sequence[np.ndarray | None]) -> bool:
    if op == "Cast":
        return attributes["to"] == onnx.TensorProto.BFLOAT16
    value = attributes.get("value")
    if isinstance(value, gs.Constant):
        return value.dtype == _BFLOAT16
    return any(x is not None and x.dtype == _BFLOAT16 for x in inputs)


def _without_bfloat16(op: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(attributes)
    if op == "Cast" and changed["to"] == onnx.TensorProto.BFLOAT16:
        changed["to"] = onnx.TensorProto.FLOAT
    value = changed.get("value")
    if isinstance(value, gs.Constant) and value.dtype == _BFLOAT16:
        changed["value"] = gs.Constant(value.name, np.asarray(value.values).astype(np.float32))
    return changed
