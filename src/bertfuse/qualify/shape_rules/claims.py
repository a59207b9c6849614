"""What the graph's rules say of a model's tensors, against what ONNX Runtime computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import numpy_helper

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.graph import FusionGraph
from bertfuse.graph_rewrite.io import split

from .draw import free_names
from .runtime import Bench, Refused, Value, kind_of_array, one_line, run, session

_MOST_TERMS = 200


@dataclass(frozen=True)
class Claim:
    """One that does not hold. `what` is "rank", "size", "type" or "value", or "raises" where nothing could be said.

    said, true  what the rules say, and what ONNX Runtime gives, in words
    """

    what: str
    tensor: str
    op: str
    said: str
    true: str
    sizes: str = ""

    def __str__(self) -> str:
        if self.what == "raises":
            return f"importing it raises {self.said}"
        where = f" with {self.sizes}" if self.sizes else ""
        return f"{self.op} '{self.tensor}': {self.what} said to be {self.said}, is {self.true}{where}"


@dataclass
class Checked:
    """`at` is the number of the run in which a claim is `wrong`. `counts`: tensors, and those whose rank or value is
    known; axes, and those whose size is known."""

    wrong: Claim | None = None
    at: int = 0
    runs: int = 0
    refused: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    known: dict[str, int] = field(default_factory=dict)  # axes said of the outputs of each operator


def check(
    model: onnx.ModelProto,
    feeds: Sequence[Mapping[str, Value]],
    hidden: frozenset[str] = frozenset(),
    stage: Any = None,
) -> Checked:
    """Imports the model and compares every claim in every run; the first one that does not hold ends it.

    `stage` is set to 1 while it is imported, to 2 while it is run.
    """
    checked = Checked()
    _set(stage, 2)
    try:
        whole, names = _with_all_outputs(model, hidden)
        runner = session(whole)
    except Refused as error:
        checked.refused = str(error)
        runner = None
    _set(stage, 1)
    try:
        graph = FusionGraph(*split(model))
        rules = Rules(graph, model)
    except BertfuseError:
        checked.refused = checked.refused or "refused by fusion"
        return checked
    except Exception as error:
        checked.wrong = Claim("raises", "", "", f"{type(error).__name__}: {one_line(error)}", "")
        return checked
    if runner is None:
        return checked
    checked.counts.update(rules.counts)
    checked.known = rules.known
    _set(stage, 2)
    for checked.at, feed in enumerate(feeds):
        try:
            values = dict(zip(names, run(runner, feed), strict=True))
        except Refused as error:
            checked.refused = checked.refused or str(error)
            continue
        if _is_forbidden(model, {**feed, **values}):
            continue
        checked.runs += 1
        checked.wrong = rules.compare(values, feed)
        if checked.wrong is not None:
            return checked
    if checked.runs:
        checked.refused = ""
    return checked


def _is_forbidden(model: onnx.ModelProto, values: Mapping[str, Value]) -> bool:
    """Whether a run is of a model that ONNX forbids and ONNX Runtime computes: a computed 0 beside -1 in the shape of a
    Reshape with allowzero, of which a rule may say what follows from sizes that are not 0."""
    for node in model.graph.node:
        if node.op_type != "Reshape" or not any(a.name == "allowzero" and a.i for a in node.attribute):
            continue
        shape = values.get(node.input[1])
        if isinstance(shape, np.ndarray) and 0 in shape and -1 in shape:
            return True
    return False


def _set(stage: Any, value: int) -> None:
    if stage is not None:
        stage.value = value


def _with_all_outputs(model: onnx.ModelProto, hidden: frozenset[str]) -> tuple[onnx.ModelProto, list[str]]:
    whole = deepcopy(model)
    outputs = {value.name for value in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in outputs and name not in hidden:
                outputs.add(name)
                whole.graph.output.append(onnx.ValueInfoProto(name=name))
    return whole, [value.name for value in whole.graph.output]


class Rules:
    """What is said of one graph's tensors: their types, ranks, sizes and values."""

    def __init__(self, graph: FusionGraph, model: onnx.ModelProto) -> None:
        self._elements, self._model = graph.elements, model
        self.inputs = [(tensor.name, tensor.shape) for tensor in graph.gs.inputs]
        self.tensors: list[tuple[str, str, Any, list | None, np.ndarray | None]] = []
        self.counts: Counter[str] = Counter()
        self.known: dict[str, int] = {}
        given = {tensor.name for tensor in graph.gs.inputs}
        for name, tensor in graph.gs.tensors().items():
            if not isinstance(tensor, gs.Variable) or name in given or not tensor.inputs:
                continue
            node, shape = tensor.inputs[0], tensor.shape
            value = graph.constants.value(tensor)
            op = f"{node.domain}::{node.op}" if node.domain not in (None, "", "ai.onnx") else node.op
            self.tensors.append((name, op, tensor.dtype, shape, value))
            known = sum(dim is not None for dim in shape or ())
            self.counts["tensors"] += 1
            self.counts["ranks"] += shape is not None
            self.counts["axes"] += len(shape or ())
            self.counts["known axes"] += known
            self.counts["values"] += value is not None
            self.known[op] = self.known.get(op, 0) + known + (shape is not None)

    def compare(self, values: Mapping[str, Value], feed: Mapping[str, Value]) -> Claim | None:
        """The first claim that these values contradict."""
        bound: dict[str, int] = {}
        for name, shape in self.inputs:
            for dim, size in zip(shape or (), feed[name].shape, strict=False):
                if isinstance(dim, str) and bound.setdefault(dim, size) != size:
                    return None  # two inputs that the fused model takes for ones of one shape, and checks
        if any(bound.get(axis) == 0 for axis in self._elements.nonempty):
            return None  # no tokens: the rules say nothing of such a batch
        said: dict[str, tuple[str, int]] = {}
        for name, op, dtype, shape, value in self.tensors:
            true = values.get(name)
            if not isinstance(true, np.ndarray):
                continue
            wrong = self._of_tensor(name, op, dtype, shape, value, true, bound, said)
            if wrong is None or (wrong.what == "value" and _same_values(value, self._alone(name, values, feed))):
                continue
            return wrong
        return None

    def _alone(self, name: str, values: Mapping[str, Value], feed: Mapping[str, Value]) -> np.ndarray | None:
        """What its operator gives in a model of its own, of what is said of its inputs. None where that cannot be run.

        ONNX Runtime computes float16 in float32 on CPUs, and rounds no result between two such operators, not even one
        that is an output as well: a difference of two quotients is then another number than by ONNX's own rule.
        """
        model = self._model
        node = next((node for node in model.graph.node if name in node.output), None)
        if node is None:
            return None
        known = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        known.update({**feed, **values})
        known.update((tensor, value) for tensor, _, _, _, value in self.tensors if value is not None)
        inputs = {read: known.get(read) for read in free_names(node)}
        if not all(isinstance(value, np.ndarray) for value in inputs.values()):
            return None
        given = {read: (kind_of_array(value), value) for read, value in inputs.items()}
        domains = {imported.domain: imported.version for imported in model.opset_import}
        opset = domains.pop("", None) or domains.pop("ai.onnx")
        try:
            return Bench(opset, model.ir_version, domains).run([node], given, [name], model.functions)[name][1]
        except Refused:
            return None

    def _of_tensor(self, name, op, dtype, shape, value, true, bound, said) -> Claim | None:
        sizes = ", ".join(f"{axis} = {size}" for axis, size in bound.items())
        if dtype is not None and not _same_type(dtype, true.dtype):
            return Claim("type", name, op, str(dtype), str(true.dtype))
        if shape is not None:
            if len(shape) != true.ndim:
                return Claim("rank", name, op, f"{list(shape)}", f"{list(true.shape)}", sizes)
            for place, (dim, size) in enumerate(zip(shape, true.shape, strict=True)):
                claimed = self._elements.evaluate(dim, bound)
                if claimed is None and isinstance(dim, str):
                    other, claimed = said.setdefault(dim, (name, size))
                    if claimed != size:
                        text = f"{list(shape)}, with '{dim}' the {claimed} that it is in '{other}'"
                        return Claim("size", name, op, text, f"{size} on axis {place}", sizes)
                elif claimed is not None and claimed != size:
                    return Claim("size", name, op, f"{list(shape)}", f"{list(true.shape)}", sizes)
        if value is not None and not _same_values(value, true):
            return Claim("value", name, op, _text(value), _text(true), sizes)
        return None


def _text(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)} {np.array2string(array.reshape(-1)[:12], separator=', ')}"


def _same_type(said: Any, true: np.dtype) -> bool:
    if isinstance(said, int):  # ONNX's number of a type that NumPy lacks
        return True
    said = np.dtype(said)
    return said == true or (said.kind in "OUST" and true.kind in "OUST") or said.kind == "V"


def _same_values(said: np.ndarray, true: Value) -> bool:
    if not isinstance(true, np.ndarray) or said.shape != true.shape or said.dtype != true.dtype:
        return False
    if said.dtype.kind == "f":
        return bool(np.allclose(said, true, rtol=1e-3, atol=1e-5, equal_nan=True))
    return bool(np.array_equal(said, true))
