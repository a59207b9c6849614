"""A copy of a model that mutations change, and what they look up and do in it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .facts import Facts, Kind


class Mutant:
    """A model to change in place. `kinds` are types and shapes of tensors, as far as they are known."""

    def __init__(self, model: onnx.ModelProto, facts: Facts) -> None:
        self.model = deepcopy(model)
        self.facts = facts
        self.kinds: dict[str, Kind | None] = dict(facts.kinds)
        self.changes: list[str] = []
        self._made = 0
        self._last: list[Callable[[], None]] = []
        for node in self.model.graph.node:  # their weights are looked up by output
            if not node.name and node.output:
                node.name = f"node_of_{node.output[0]}"

    @property
    def nodes(self) -> Any:
        return self.model.graph.node

    @property
    def opset(self) -> int:
        return next((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), 1)

    def at_last(self, change: Callable[[], None]) -> None:
        """What must come after every other mutation: names, by which those find nodes and tensors."""
        self._last.append(change)

    def finish(self) -> None:
        for change in self._last:
            change()
        self._last.clear()

    def called(self, node: onnx.NodeProto) -> str:
        return f"{node.op_type} '{node.name}'"

    # ---- choosing

    def weight(self, node: onnx.NodeProto) -> float:
        return self.facts.weights.get(node.output[0], 1.0) if node.output else 0.0

    def node(self, r: Random, fits: Callable[[onnx.NodeProto], bool] = lambda n: True) -> onnx.NodeProto | None:
        """A node that fits, by weight."""
        found = [n for n in self.nodes if n.op_type != "Constant" and n.output and fits(n)]
        return r.choices(found, [self.weight(n) for n in found])[0] if found else None

    def edge(self, r: Random, steering: bool = False) -> tuple[onnx.NodeProto | None, int]:
        """A node and the number of one of its inputs; `steering`: only what decides masks, positions and scores."""
        node = self.node(r, lambda n: any(n.input) and (not steering or self.weight(n) >= 3))
        if node is None:
            return None, 0
        return node, r.choice([i for i, name in enumerate(node.input) if name])

    def constant_input(self, r: Random) -> tuple[onnx.NodeProto | None, int]:
        """A node and the number of an input that is a constant."""
        constants = self.constants()
        node = self.node(r, lambda n: any(name in constants for name in n.input))
        if node is None:
            return None, 0
        return node, r.choice([i for i, name in enumerate(node.input) if name in constants])

    def before(self, node: onnx.NodeProto, kind: Kind | None) -> list[str]:
        """Tensors of that kind that exist before the node runs."""
        if kind is None:
            return []
        found = [v.name for v in self.model.graph.input] + [t.name for t in self.model.graph.initializer]
        for other in self.nodes:
            if other is node or other.output == node.output:
                break
            found += other.output
        return [name for name in found if self.kinds.get(name) == kind]

    def comes_before(self, name: str, node: onnx.NodeProto) -> bool:
        return name in self.before(node, self.kinds.get(name))

    # ---- constants

    def constants(self) -> set[str]:
        made = {
            n.output[0] for n in self.nodes if n.op_type == "Constant" and n.attribute and n.attribute[0].HasField("t")
        }
        return made | {t.name for t in self.model.graph.initializer}

    def _tensor(self, name: str) -> onnx.TensorProto:
        for tensor in self.model.graph.initializer:
            if tensor.name == name:
                return tensor
        return next(n.attribute[0].t for n in self.nodes if n.op_type == "Constant" and n.output[0] == name)

    def constant(self, name: str) -> np.ndarray:
        return np.asarray(numpy_helper.to_array(self._tensor(name)))

    def set_constant(self, name: str, values: np.ndarray) -> None:
        self._tensor(name).CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name))

    def add_constant(self, values: Any) -> str:
        array = np.asarray(values)
        name = self.new_name("constant")
        self.model.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.kinds[name] = Kind(element, tuple((d, d) for d in array.shape))
        return name

    # ---- nodes

    def new_name(self, stem: str) -> str:
        self._made += 1
        return f"mutant_{stem}_{self._made}"

    def insert_before(
        self,
        node: onnx.NodeProto | None,
        op: str,
        inputs: list[str],
        *,
        outputs: int = 1,
        unnamed: bool = False,
        **attributes: Any,
    ) -> Any:
        """A new node just before another, or behind all; returns its output, or the tuple of several."""
        made = [self.new_name(op.lower()) for _ in range(outputs)]
        name = "" if unnamed else f"node_{made[0]}"
        new = helper.make_node(op, inputs, made, name=name, **attributes)
        at = next(
            (i for i, n in enumerate(self.nodes) if node is not None and n.output == node.output), len(self.nodes)
        )
        self.nodes.insert(at, new)
        return made[0] if outputs == 1 else tuple(made)

    def reshaped(self, node: onnx.NodeProto | None, op: str, x: str, axes: list[int], **attributes: Any) -> str:
        """A Squeeze, an Unsqueeze or a Reduce: axes are an input, or an attribute as the opset has it."""
        as_input = op in ("Squeeze", "Unsqueeze", "ReduceSum") or self.opset >= 18
        if not as_input:
            return self.insert_before(node, op, [x], axes=axes, **attributes)
        return self.insert_before(node, op, [x, self.add_constant(np.asarray(axes, np.int64))], **attributes)

    def remove(self, node: onnx.NodeProto, instead: str) -> None:
        """Takes a node away; what used its first output uses `instead`."""
        output = node.output[0]
        self.nodes.remove(node)
        for other in self.nodes:
            for i, name in enumerate(other.input):
                if name == output:
                    other.input[i] = instead

    def output_names(self) -> set[str]:
        return {value.name for value in self.model.graph.output}

    def expose(self, name: str) -> None:
        kind = self.kinds[name]
        shape = [a if a == b else None for a, b in kind.shape]
        self.model.graph.output.append(helper.make_tensor_value_info(name, kind.element, shape))
