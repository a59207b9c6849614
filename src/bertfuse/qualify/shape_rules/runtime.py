"""ONNX Runtime as the judge: what nodes and models really give, without any optimisation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

# Of a tensor an array, of a sequence a list of them, of an empty optional None.
Value = Any

_MOST_SESSIONS = 1500
# Types of which ONNX Runtime gives Python no array of the same type.
_WITHOUT_ARRAY = {
    TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ, TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1,
    *(getattr(TensorProto, name) for name in ("INT2", "UINT2", "FLOAT8E8M0") if hasattr(TensorProto, name)),
}  # fmt: skip
_ELEMENTS = {
    "float": TensorProto.FLOAT, "double": TensorProto.DOUBLE, "string": TensorProto.STRING, "bool": TensorProto.BOOL,
    "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    **{f"{u}int{n}": getattr(TensorProto, f"{u.upper()}INT{n}") for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip


class Refused(Exception):
    """ONNX Runtime does not load or run it; or it would be too large to be worth it."""


@dataclass(frozen=True)
class Kind:
    """The ONNX type of a value: "tensor", "sequence" or "optional" of elements of that type (ONNX's number)."""

    form: str
    element: int

    def value_info(self, name: str, shape: Sequence[int | str | None] | None = None) -> onnx.ValueInfoProto:
        if self.form == "tensor":
            return helper.make_tensor_value_info(name, self.element, shape)
        inner = helper.make_sequence_type_proto(helper.make_tensor_type_proto(self.element, None))
        if self.form == "optional sequence":
            return helper.make_value_info(name, helper.make_optional_type_proto(inner))
        if self.form == "sequence":
            return helper.make_value_info(name, inner)
        tensor = helper.make_tensor_type_proto(self.element, None)
        return helper.make_value_info(name, helper.make_optional_type_proto(tensor))


def kind_of(text: str) -> Kind | None:
    """From ONNX Runtime's own words: "seq(tensor(float))". None for types that Python gets no array of."""
    element = _ELEMENTS.get(re.sub(r".*\((\w+)\)+$", r"\1", text))
    if element is None or element in _WITHOUT_ARRAY:
        return None
    forms = {"optional(seq": "optional sequence", "optional(t": "optional", "seq": "sequence"}
    return Kind(next((form for begin, form in forms.items() if text.startswith(begin)), "tensor"), element)


def kind_of_array(array: np.ndarray) -> Kind:
    return Kind("tensor", element_of(array.dtype))


def element_of(dtype: Any) -> int:
    dtype = np.dtype(dtype)
    return TensorProto.STRING if dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(dtype)


def session(model: onnx.ModelProto | bytes) -> ort.InferenceSession:
    """Raises Refused where it does not load."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    data = model if isinstance(model, bytes) else model.SerializeToString()
    try:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
        raise Refused(one_line(error)) from error


def run(made: ort.InferenceSession, feed: Mapping[str, Value]) -> list[Value]:
    """Raises Refused where it does not run."""
    try:
        return made.run(None, dict(feed))
    except Exception as error:
        raise Refused(one_line(error)) from error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


class Bench:
    """Runs single nodes and small groups of nodes on given values. Sessions of single nodes are kept."""

    def __init__(self, opset: int, ir_version: int, domains: Mapping[str, int]) -> None:
        self._imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in domains.items())]
        self._ir_version = ir_version

    def run(
        self,
        nodes: Sequence[onnx.NodeProto],
        given: Mapping[str, tuple[Kind, Value]],
        outputs: Sequence[str],
        functions: Iterable[onnx.FunctionProto] = (),
    ) -> dict[str, tuple[Kind, Value]]:
        """The outputs with their types; one of a type without arrays is left out. Raises Refused."""
        functions = list(functions)
        plain = len(nodes) == 1 and not functions and not any(a.HasField("g") for a in nodes[0].attribute)
        names = {name: f"x{i}" for i, name in enumerate(given)} if plain else {name: name for name in given}
        made = {name: f"y{i}" for i, name in enumerate(outputs)} if plain else {name: name for name in outputs}
        if plain:
            node = onnx.NodeProto()
            node.CopyFrom(nodes[0])
            node.ClearField("name")
            node.input[:] = [names.get(name, "") for name in node.input]
            node.output[:] = [made.get(name, "") for name in node.output]
            nodes = [node]
        graph = helper.make_graph(
            nodes,
            "nodes",
            [kind.value_info(names[name]) for name, (kind, _) in given.items()],
            [onnx.ValueInfoProto(name=made[name]) for name in outputs],
        )
        model = helper.make_model(
            graph, opset_imports=self._imports, functions=functions, ir_version=self._ir_version
        ).SerializeToString()
        runner = _SESSIONS.get(model) if plain else None
        if runner is None:
            try:
                runner = session(model)
            except Refused as error:
                runner = error
            if plain:
                if len(_SESSIONS) >= _MOST_SESSIONS:
                    _SESSIONS.clear()
                _SESSIONS[model] = runner
        if isinstance(runner, Refused):
            raise Refused(str(runner))
        kinds = [kind_of(output.type) for output in runner.get_outputs()]
        if None in kinds:
            raise Refused("a type without arrays")
        values = run(runner, {names[name]: value for name, (_, value) in given.items()})
        return {name: (kind, value) for name, kind, value in zip(outputs, kinds, values, strict=True)}


_SESSIONS: dict[bytes, ort.InferenceSession | Refused] = {}
