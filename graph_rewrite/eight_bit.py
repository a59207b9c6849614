"""Weights that a model has as 8-bit numbers, while it is fused as if they were floats, and the ops' inputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs
from onnx import TensorProto

from .dialect.quantized import INT8
from .graph import FusionGraph, as_weight
from .ops import OPS
from .spec import DOMAIN, OpSpec, TensorSpec
from .weights import Weight, cast_array, concatenated

NO_ZERO = 128  # what x's 0 becomes where an op is given no x_zero


@dataclass(frozen=True)
class Rounding:
    """How what a weight multiplies is rounded: to INT8 or FLOAT8, with one scale for the tensor.

    `scale` is None where it follows from the tensor's ends, as DynamicQuantizeLinear has it, and `zero` with it. `zero`
    is the integer, of 0 to 255, that 0 becomes.
    """

    data_type: int
    scale: float | None
    zero: int = NO_ZERO

    def __str__(self) -> str:
        if self.scale is None:
            return "by its own ends"
        return f"by {self.scale:.6g}" + ("" if self.zero == NO_ZERO else f" around {self.zero}")


class QuantizedWeight(Weight):
    """(integers - zero) * scales, the scales being along `axis`, in a float type; `integers` may be 8-bit floats.

    `rounding` is that of the product; None: what it multiplies stays as it is.
    """

    def __init__(
        self,
        integers: Weight,
        scales: np.ndarray,
        axis: int,
        rounding: Rounding | None = None,
        zero: int = 0,
        data_type: int = TensorProto.FLOAT,
    ) -> None:
        self.integers, self.scales, self.axis, self.rounding, self.zero = integers, scales, axis, rounding, zero
        super().__init__(data_type, integers.shape, self._floats)

    def _floats(self) -> np.ndarray:
        numbers = np.asarray(self.integers.load()).astype(np.float32) - np.float32(self.zero)
        return cast_array(numbers * np.expand_dims(self.scales, 1 - self.axis), self.data_type)

    def _with(self, integers: Weight, scales: np.ndarray, axis: int, data_type: int | None = None) -> QuantizedWeight:
        return QuantizedWeight(integers, scales, axis, self.rounding, self.zero, data_type or self.data_type)

    def transposed(self) -> QuantizedWeight:
        return self._with(self.integers.transposed(), self.scales, 1 - self.axis)

    def rows(self, index: np.ndarray) -> QuantizedWeight:
        scales = self.scales[index] if self.axis == 0 else self.scales
        return self._with(self.integers.rows(index), scales, self.axis)

    def cast(self, data_type: int) -> QuantizedWeight:
        return self._with(self.integers, self.scales, self.axis, data_type)


def rounding_of(weight: Weight) -> Rounding | None:
    return weight.rounding if isinstance(weight, QuantizedWeight) else None


def rows_together(weights: Sequence[Weight]) -> Weight:
    """Weights [N, K] that multiply one tensor, which they round alike, as one."""
    if rounding_of(weights[0]) is None:
        return concatenated(weights, 0)
    integers = concatenated([weight.integers for weight in weights], 0)
    scales = np.concatenate([weight.scales for weight in weights])
    return weights[0]._with(integers, scales, 0)


def weight_of(spec: OpSpec) -> TensorSpec | None:
    """The input that may be quantised."""
    return next((tensor for tensor in spec.inputs if tensor.dtype == "W"), None)


def write(graph: FusionGraph) -> None:
    """Give every fused node with a QuantizedWeight the inputs of its op's quantised form."""
    made = _Made(graph)
    for node in [n for n in graph.gs.nodes if n.domain == DOMAIN and n.outputs]:
        spec = OPS[node.op]
        tensor = weight_of(spec)
        constant = node.inputs[spec.input_index(tensor.name)] if tensor is not None else None
        weight = constant._values if isinstance(constant, gs.Constant) else None
        if not isinstance(weight, QuantizedWeight):
            continue
        if tensor.name == "word_table":
            given = _table(graph, node, spec, constant, weight, made)
        elif weight.rounding is not None:
            given = _product(graph, node, constant, weight, made)
        else:
            continue  # floats that were written as integers
        for name, value in given.items():
            place = spec.input_index(name)
            while len(node.inputs) <= place:
                node.inputs.append(gs.Variable.empty())
            node.inputs[place] = value


class _Made:
    """Constants and nodes that several fused nodes share."""

    def __init__(self, graph: FusionGraph) -> None:
        self._graph = graph
        self._constants: dict[tuple[int, str], gs.Constant] = {}
        self._ends: dict[int, tuple[gs.Variable, gs.Variable]] = {}

    def constant(self, like: gs.Constant, suffix: str, values: Weight | np.ndarray) -> gs.Constant:
        key = (id(like), suffix)
        if key not in self._constants:
            self._constants[key] = self._graph.constant(f"{like.name}_{suffix}", values)
        return self._constants[key]

    def ends(self, x: gs.Tensor) -> tuple[gs.Variable, gs.Variable]:
        """The scale and the zero that DynamicQuantizeLinear finds for a tensor, the latter as int32."""
        if id(x) not in self._ends:
            types = {"quantized": np.uint8, "scale": np.float32, "zero_point": np.uint8}
            shapes = {"quantized": x.shape, "scale": [], "zero_point": []}
            outputs = [self._graph.variable(f"{x.name}_{n}", t, shapes[n]) for n, t in types.items()]
            self._graph.add_node("DynamicQuantizeLinear", [x], outputs)
            zero = self._graph.variable(f"{x.name}_zero", np.int32, [])
            self._graph.add_node("Cast", outputs[2:], [zero], to=TensorProto.INT32)
            self._ends[id(x)] = (outputs[1], zero)
        return self._ends[id(x)]


def _product(
    graph: FusionGraph, node: gs.Node, constant: gs.Constant, weight: QuantizedWeight, made: _Made
) -> dict[str, gs.Tensor]:
    rounding = weight.rounding
    kind = "int8" if rounding.data_type == INT8 else "fp8"
    given = {
        "weight": made.constant(constant, kind, weight.integers),
        "weight_scale": made.constant(constant, "scale", weight.scales.astype(np.float32)),
    }
    if rounding.scale is None:
        given["x_scale"], given["x_zero"] = made.ends(node.inputs[0])
        return given
    given["x_scale"] = made.constant(constant, "x_scale", np.array(rounding.scale, np.float32))
    if rounding.zero != NO_ZERO:
        given["x_zero"] = made.constant(constant, "x_zero", np.array(rounding.zero, np.int32))
    return given


def _table(
    graph: FusionGraph, node: gs.Node, spec: OpSpec, constant: gs.Constant, weight: QuantizedWeight, made: _Made
) -> dict[str, gs.Tensor]:
    """The table of words as integers. What its zero would take off every word is taken off every position instead.

    Words alone keep it: the LayerNorm takes off what is the same in all columns.
    """
    if weight.integers.data_type != INT8:  # there are no kernels for words of 8-bit floats
        return {}
    given = {
        "word_table": made.constant(constant, "int8", weight.integers),
        "word_scale": made.constant(constant, "scale", weight.scales.astype(np.float32)),
    }
    positions = node.inputs[spec.input_index("position_table")]
    if weight.zero and not positions.is_empty():
        moved = as_weight(positions).plus(-weight.zero * float(weight.scales[0]))
        given["position_table"] = graph.constant(f"{positions.name}_moved", moved)
    return given


def check_same_rounding(weights: Mapping[str, Weight]) -> tuple[str, str] | None:
    """Of weights that are to be one: which of them, and how, rounds otherwise than the first; None where none does."""
    first_name, first_weight = next(iter(weights.items()))
    for name, weight in weights.items():
        mine, first = rounding_of(weight), rounding_of(first_weight)
        if mine != first:
            words = ["not at all" if r is None else str(r) for r in (mine, first)]
            return name, f"rounds its input {words[0]}, and {first_name.upper()} {words[1]}"
    return None
