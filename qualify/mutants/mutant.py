"""A copy of a model that mutations change, and what they look up and do in it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from .facts import Facts, Kind


class Mutant:
    """A model to change in place. `kinds` are types and shapes of tensors, as far as they are known."""

    def __init__(self, model: onnx.ModelProto, facts: Facts) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.facts = facts
        self.kinds: dict[str, Kind | None] = dict(facts.kinds)
        self.changes: list[str] = []
        self._made = 0
        for node in self.model.graph.node:  # their weights are looked up by output
            if not node.name and node.output:
                node.name = f"node_of_{node.output[0]}"

    @property
    def nodes(self) -> Any:
        return self.model.graph.node

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
        name = self._name("constant")
        self.model.graph.initializer.append(
            numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        )
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.kinds[name] = Kind(element, tuple((d, d) for d in array.shape))
        return name

    # ---- nodes

    def _name(self, stem: str) -> str:
        self._made += 1
        return f"mutant_{stem}_{self._made}"

    def insert_before(self, node: onnx.NodeProto, op: str, inputs: list[str], **attributes: Any) -> str:
        """A new node just before another; returns its output."""
        output = self._name(op.lower())
        made = helper.make_node(op, inputs, [output], name=f"node_{output}", **attributes)
        at = next(i for i, n in enumerate(self.nodes) if n.output == node.output and n.name == node.name)
        self.nodes.insert(at, made)
        return output

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
