"""Models of float32 computed in float64: how far an original is off by itself, and what float32 has no room for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, TensorProto, helper, inliner, numpy_helper

from bertfuse.measuring.differences import TOLERANCES

from .inputs import Feed
from .sessions import run, session

_MARGIN_OF_OWN_ERROR = 4.0  # the fused model may be as far off on the other side, and a little further


@dataclass
class Doubles:
    """A model without functions, as it is and computed in float64; each with all of its tensors as outputs."""

    single: onnxruntime.InferenceSession
    double: onnxruntime.InferenceSession
    outputs: list[str]

    def run(self, feed: Feed) -> list[np.ndarray] | None:
        """The outputs in float64; None where it does not run."""
        found = _all(self.double, _wide(feed))
        return None if found is None else [found[name] for name in self.outputs]

    def overflows(self, feed: Feed) -> bool:
        """Whether some tensor is finite in float64 and not in float32."""
        single, double = _all(self.single, feed), _all(self.double, _wide(feed))
        if single is None or double is None:
            return False
        pairs = [(a, double[name]) for name, a in single.items() if isinstance(a, np.ndarray)]
        pairs = [(a, b) for a, b in pairs if a.dtype == np.float32 and b.dtype == np.float64]
        return any(a.shape == b.shape and (~np.isfinite(a) & np.isfinite(b)).any() for a, b in pairs)

    def largest(self, feed: Feed) -> float:
        """The largest number on the way; what hides scores is the least."""
        found = (_all(self.double, _wide(feed)) or {}).values()
        floats = [a for a in found if isinstance(a, np.ndarray) and a.dtype == np.float64]
        return max((float(a.max(where=np.isfinite(a), initial=0.0)) for a in floats), default=0.0)


def in_doubles(model: onnx.ModelProto) -> Doubles | None:
    """The model in float64, but for Erf, which ONNX Runtime has not. None where it cannot be computed so.

    A model's own functions take the place of their calls: their bodies cast to float32, too.
    """
    try:
        single = inliner.inline_local_functions(model) if model.functions else deepcopy(model)
        del single.graph.value_info[:]
        double = deepcopy(single)
        _widen(double.graph)
        return Doubles(*map(_session_of_all, (single, double)), [value.name for value in model.graph.output])
    except Exception:  # of a kernel that has no double, or a function of another opset, which is not inlined
        return None


def own_error(expected: list[np.ndarray], exact: list[np.ndarray]) -> list:
    """How far each output may be off, by how far float32 took the original itself from what float64 gives.

    Roundings between the weights and the output (a mask of 9e18 added to scores) show in no moved weight. The numbers
    of a row, along the last axis, come from one another, so the largest error of a row is each number's.
    """
    slack = []
    for a, wide in zip(expected, exact, strict=True):
        error = np.zeros(a.shape)
        if a.dtype == np.float32 and a.shape == wide.shape and a.ndim:
            with np.errstate(invalid="ignore"):
                gap = np.abs(a.astype(np.float64) - wide)
            error = np.broadcast_to(
                np.nan_to_num(gap, nan=0.0, posinf=0.0).max(axis=-1, keepdims=True, initial=0.0), a.shape
            )
        slack.append(_MARGIN_OF_OWN_ERROR * error)
    return slack


def same_numbers(exact: list[np.ndarray], fused: list[np.ndarray]) -> list:
    """Infinity for each number that both models give in float64, 0 for others: what they may differ by in float32.

    Of models that overflow there alone. A fusion that computes something else differs in any type.
    """
    atol, rtol = TOLERANCES["float32"]
    slack = []
    for a, b in zip(exact, fused, strict=True):
        same = np.zeros(a.shape, bool)
        if a.dtype == np.float64 and a.shape == b.shape:
            with np.errstate(invalid="ignore", over="ignore"):
                same = np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= atol + rtol * np.abs(a))
        slack.append(np.where(same, np.inf, 0.0))
    return slack


def _wide(feed: Feed) -> Feed:
    return {name: a.astype(np.float64) if a.dtype == np.float32 else a for name, a in feed.items()}


def _all(runner: onnxruntime.InferenceSession, feed: Feed) -> dict[str, np.ndarray] | None:
    """Every tensor of the model."""
    found = run(runner, feed)
    if found is None:
        return None
    return dict(zip((output.name for output in runner.get_outputs()), found, strict=True))


def _session_of_all(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    given = {value.name for value in model.graph.output}
    for node in model.graph.node:
        model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in node.output if n and n not in given)
    return session(model)


def _widen(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        for attribute in node.attribute:
            _widen_attribute(node, attribute)
        graph.node.extend(_in_singles(node) if node.op_type in _WITHOUT_DOUBLES else [node])


def _widen_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    if attribute.type == AttributeProto.TENSOR:
        _widen_tensor(attribute.t)
    elif attribute.type == AttributeProto.GRAPH:
        _widen(attribute.g)
    elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
        attribute.i = TensorProto.DOUBLE
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(np.asarray(value, np.float64))))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


# Operators that ONNX Runtime has for float32 alone: what they give is between -1 and 1, or follows from what is.
_WITHOUT_DOUBLES = ("Erf", "Gelu")


def _in_singles(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    x, y = node.input[0], node.output[0]
    approximate = next((a.s for a in node.attribute if a.name == "approximate"), b"none")
    if node.op_type == "Gelu" and approximate != b"none":
        yield node  # by Tanh, of which there is one
        return
    argument, curve = x, y
    if node.op_type == "Gelu":
        argument, curve = f"{y} scaled", f"{y} erf"
        yield _number(f"{y} root", math.sqrt(2))
        yield helper.make_node("Div", [x, f"{y} root"], [argument])
    yield helper.make_node("Cast", [argument], [f"{y} single"], to=TensorProto.FLOAT)
    yield helper.make_node("Erf", [f"{y} single"], [f"{y} of single"])
    yield helper.make_node("Cast", [f"{y} of single"], [curve], to=TensorProto.DOUBLE)
    if node.op_type == "Gelu":
        yield _number(f"{y} one", 1.0)
        yield _number(f"{y} half", 0.5)
        yield helper.make_node("Add", [curve, f"{y} one"], [f"{y} sum"])
        yield helper.make_node("Mul", [x, f"{y} half"], [f"{y} halved"])
        yield helper.make_node("Mul", [f"{y} halved", f"{y} sum"], [y])


def _number(name: str, value: float) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value, np.float64)))
