"""The graph under rewriting: an onnx-graphsurgeon graph whose nodes can be swapped for dialect nodes, and swapped back.

A normalisation replaces a region by one dialect node: the region's nodes are unhooked (their inputs taken away), not
deleted, so that whatever is not fused in the end is put back exactly as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import numpy_helper

from . import branches, domains, known_attributes
from . import weights as w
from .constants import Constants
from .elements import Elements
from .nodes import DEFAULT_DOMAINS, DIALECT, NoMatch, data_type, is_float_cast, node_name, producer
from .order import names_in_bodies, read_by_bodies, topological
from .shape_uses import donor, drop_what_only_gives_sizes
from .shapes import Dim, axes_of_tokens, element_types, name_axes
from .spec import DOMAIN

_ELEMENTWISE = ("Add", "Sub", "Mul", "Div", "Pow", "Where")
_WIDTHS = {
    onnx.TensorProto.FLOAT16: 1,
    onnx.TensorProto.BFLOAT16: 1,
    onnx.TensorProto.FLOAT: 2,
    onnx.TensorProto.DOUBLE: 3,
}


class FusionGraph:
    """`gs` is the graph; `opset` its default-domain opset; `weights` are found as values of its Constants.

    `defaults` are the values of graph inputs that need not be fed. `families` says to write the ops of families beyond
    BERT.
    """

    families = False

    def __init__(self, skeleton: onnx.ModelProto, weights: dict[str, w.Weight]) -> None:
        skeleton, self.defaults = _without_defaults(skeleton, weights)
        self.gs = gs.import_onnx(skeleton)
        domains.qualify(self.gs.nodes)
        self.opset = next((o.version for o in skeleton.opset_import if o.domain in ("", "ai.onnx")), 0)
        # The model's own that are left; what calls one is an operator of another domain.
        self.functions = {name for f in skeleton.functions for name in domains.called(f.domain, f.name)}
        types = element_types(skeleton, weights)
        initializers = {tensor.name for tensor in skeleton.graph.initializer}
        self._find_captured(initializers)
        tensors = self.gs.tensors() | self.captured_constants
        _give_types(tensors, weights, types)
        self.constants = Constants(self.opset, self.gs.ir_version)
        self.unnamed_axes = name_axes(self.gs.inputs)
        tokens = axes_of_tokens(self.gs.nodes, self.gs.inputs)
        self.elements = Elements(self.gs.inputs, self.constants, tokens)
        self._names = set(tensors) | {name for node in self.gs.nodes for name in names_in_bodies(node)}
        if branches.take(self.gs, self.elements, initializers | set(tensors), self.name):
            self._find_captured(initializers)
            _give_types(self.gs.tensors(), weights, types)
        self.elements.infer(self.gs.nodes)
        drop_what_only_gives_sizes(self.gs, self.elements, self.name)
        self.worked_out: dict[type, Any] = {}  # what others found out of this graph, by their class
        self._output_ids = {id(tensor) for tensor in self.gs.outputs}
        self.interface_changed = False
        self._unhooked: dict[int, tuple[gs.Node, list[gs.Tensor]]] = {}
        self._replaced: dict[int, tuple[gs.Node, list[gs.Tensor]]] = {}  # dialect node -> the node it stands for
        self._anchors: dict[int, int] = {}  # dialect node -> the original node it was found at
        self._anchor: int | None = None
        self._failures: dict[tuple[int, str, bool], NoMatch] = {}
        self._replacements: dict[int, int] = {}  # unhooked node -> what took its place, or its consumer's
        self._replacement: int | None = None
        self._transposed: dict[str, gs.Constant] = {}
        self._zeros: dict[tuple[int, Any], gs.Constant] = {}

    def _find_captured(self, initializers: Container[str]) -> None:
        """What the bodies of If, Loop and Scan read lives on, under its name, though no node of the outer graph uses
        it.
        """
        captured = [tensor for node in self.gs.nodes for tensor in read_by_bodies(node)]
        self._captured = {id(tensor) for tensor in captured}
        self.captured_constants = {t.name: t for t in captured if t.name in initializers}

    # ---- reading

    def nodes(self, *ops: str, domain: str | None = None) -> list[gs.Node]:
        """Live nodes of these types, in graph order. `domain` None: ONNX's own."""
        wanted = DEFAULT_DOMAINS if domain is None else (domain,)
        return [
            n for n in self.gs.nodes if n.op in ops and n.domain in wanted and id(n) not in self._unhooked and n.outputs
        ]

    def is_output(self, tensor: gs.Tensor) -> bool:
        return id(tensor) in self._output_ids or id(tensor) in self._captured

    def is_read_by_body(self, tensor: gs.Tensor) -> bool:
        """Whether the body of an If, a Loop or a Scan reads the tensor, by its name."""
        return id(tensor) in self._captured

    def is_live(self, node: gs.Node) -> bool:
        return id(node) not in self._unhooked

    def check_private(self, nodes: Sequence[gs.Node], inputs: Sequence[gs.Tensor]) -> None:
        """Raise NoMatch if what any but the first of `nodes` computes is used by a node that is not among them.

        A shape that one of `inputs` has too is no such use.
        """
        inside = {id(node) for node in nodes}
        for node in nodes[1:]:
            users = [c for t in node.outputs for c in t.outputs if id(c) not in inside]
            if any(map(self.is_output, node.outputs)) or any(donor(c, inputs) is None for c in users):
                raise _needed(node, self._user(node, inside))

    def change_interface(self, inputs: list[gs.Variable], outputs: list[gs.Variable]) -> None:
        """Give the model other inputs and outputs than it was declared with."""
        self.gs.inputs, self.gs.outputs = inputs, outputs
        self._output_ids = {id(tensor) for tensor in outputs}
        self.interface_changed = True

    # ---- who was found where, and what failed

    @contextlib.contextmanager
    def anchored(self, node: gs.Node) -> Iterator[None]:
        """Dialect nodes made inside are put down to this original node."""
        self._anchor = self._anchors.get(id(node), id(node))
        try:
            yield
        finally:
            self._anchor = None

    def anchor(self, node: gs.Node) -> int | None:
        return self._anchors.get(id(node))

    def note_failure(self, node: gs.Node, miss: NoMatch, op: str = "", alone: bool = False) -> None:
        """Remember why `op` ("": normalisation for any) failed at a node, the first reason of several.

        `alone`: the node is that op's alone, so that what is wrong with it for others is no reason.
        """
        key = self._anchors.get(id(node), id(node))
        self._failures.setdefault((key, op, alone), miss)

    def failure(self, node: gs.Node, op: str = "") -> NoMatch | None:
        """Why fusing `op` failed at an original node: normalising, or after that, matching."""
        order = ((op, True), ("", False), (op, False))
        found = (self._failures.get((id(node), *reason)) for reason in order)
        return next((miss for miss in found if miss is not None), None)

    # ---- making

    def name(self, base: str) -> str:
        """A tensor or node name that nothing else has."""
        name, count = base, 1
        while name in self._names:
            name, count = f"{base}_{count}", count + 1
        self._names.add(name)
        return name

    def constant(self, base: str, values: np.ndarray | w.Weight) -> gs.Constant:
        if isinstance(values, np.ndarray) and values.nbytes >= w.MIN_BYTES:
            values = w.Weight.of_array(values)
        return gs.Constant(self.name(base), values)

    def variable(self, base: str, dtype: Any, shape: Sequence[Dim] | None) -> gs.Variable:
        return gs.Variable(self.name(base), dtype=dtype, shape=shape)

    def add_node(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        outputs: Sequence[gs.Tensor],
        domain: str | None = None,
        **attrs: Any,
    ) -> gs.Node:
        node = gs.Node(op, self.name(f"{op}_{outputs[0].name}"), attrs, list(inputs), list(outputs), domain)
        self.gs.nodes.append(node)
        if self._anchor is not None:
            self._anchors[id(node)] = self._anchor
        return node

    def transposed(self, weight: gs.Constant) -> gs.Constant:
        """The transpose of a matrix, made once however often it is asked for."""
        if weight.name not in self._transposed:
            source = as_weight(weight)
            self._transposed[weight.name] = self.constant(f"{weight.name}_transposed", source.transposed())
        return self._transposed[weight.name]

    def cast(self, constant: gs.Constant, dtype: Any) -> gs.Constant:
        """The constant in another float type; itself where it has that already, or where that type is not known."""
        if dtype is None or constant.dtype == dtype:
            return constant
        return self.constant(f"{constant.name}_cast", as_weight(constant).cast(data_type(dtype)).load())

    def zeros(self, size: int, dtype: Any) -> gs.Constant:
        """A zero vector: the bias of a projection that has none."""
        key = (size, np.dtype(dtype))
        if key not in self._zeros:
            self._zeros[key] = self.constant(f"zeros_{size}", np.zeros(size, dtype))
        return self._zeros[key]

    # ---- swapping

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """A NoMatch that leaves the block takes with it the nodes that were added inside and that nothing reads."""
        begin = len(self.gs.nodes)
        try:
            yield
        except NoMatch:
            for node in reversed(self.gs.nodes[begin:]):
                self.remove(node)
            raise

    def replace(
        self,
        old: gs.Node,
        op: str,
        inputs: Sequence[gs.Tensor],
        interior: Iterable[gs.Node] = (),
        domain: str = DIALECT,
        donors: Sequence[gs.Tensor] | None = None,
        **attrs: Any,
    ) -> gs.Node:
        """Let a new node produce the outputs of `old`; what only fed `old` is unhooked.

        `interior` are the nodes whose work the new node takes over. When one of them is still needed elsewhere, nothing
        is changed and NoMatch says by whom. A need of its shape alone is met by one of `donors`, tensors of the model
        itself; None takes `inputs`.
        """
        interior = list(interior)
        for node in (old, *interior):
            known_attributes.check(node, self.opset)
            _check_precision(node, old.outputs[0].dtype)
            _check_axes(node)
        outputs, name = list(old.outputs), node_name(old)
        old.outputs.clear()
        new = self.add_node(op, inputs, outputs, domain, **attrs)
        if domain != DOMAIN:
            new.name = name  # never written to a file, but named in messages, which are about the user's nodes
        elif id(old) in self._anchors:
            self._anchors[id(new)] = self._anchors[id(old)]
        self._replaced[id(new)] = (old, outputs)
        self._replacement = id(new)
        self._unhook(old)
        left = [node for node in interior if node is not old and self.is_live(node)]
        if left:
            for shape in [c for n in left for t in n.outputs for c in t.outputs if c.op == "Shape"]:
                self.forward_shape(shape, inputs if donors is None else donors)
            for node in left:
                self._unhook(node)
        for node in left:
            if self.is_live(node):
                user = self._user(node)
                self.restore(new)
                raise _needed(node, user)
        return new

    def hand_over(self, old: gs.Node, new: gs.Node) -> None:
        """Let `new` produce what `old` does, too, behind its own outputs."""
        known_attributes.check(old, self.opset)
        outputs = list(old.outputs)
        old.outputs.clear()
        new.outputs.extend(outputs)
        self._replacement = id(new)
        self._unhook(old)

    def forward_shape(self, shape: gs.Node, others: Sequence[gs.Tensor]) -> None:
        """Let the Shape node read the first of `others` that has its tensor's shape, or all of it but the last number.

        Where none has, it stays as it is.
        """
        tensor, given = shape.inputs[0], donor(shape, others)
        if given is None:
            return
        if len(given.shape) == len(tensor.shape):
            shape.inputs[0] = given
            return
        # [B, S] of ids in place of [B, S, H] of their rows.
        leading = self.variable(f"{given.name}_shape", np.int64, [len(given.shape)])
        self.add_node("Shape", [given], [leading])
        last = self.constant(f"{tensor.name}_size", np.array(tensor.shape[-1:], np.int64))
        outputs = list(shape.outputs)
        shape.outputs.clear()
        shape.inputs.clear()
        self.add_node("Concat", [leading, last], outputs, axis=0)

    def restore(self, node: gs.Node) -> None:
        """Put back what `replace` took away for this dialect node."""
        old, outputs = self._replaced.pop(id(node))
        node.outputs.clear()
        _cut(node)
        self._unhooked[id(node)] = (node, [])
        self._replacements.pop(id(node), None)
        old.outputs = outputs
        self._hook(old)

    def is_normalisation(self, node: gs.Node) -> bool:
        """Whether the node stands for original ones and is not a fused op."""
        return id(node) in self._replaced and node.domain != DOMAIN

    def _unhook(self, node: gs.Node) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            if id(node) in self._unhooked or any(t.outputs or self.is_output(t) for t in node.outputs):
                continue
            inputs = list(node.inputs)
            self._unhooked[id(node)] = (node, inputs)
            self._replacements[id(node)] = self._replacement
            _cut(node)
            stack.extend(p for t in inputs if (p := producer(t)) is not None)

    def _hook(self, node: gs.Node) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            if id(node) not in self._unhooked:
                continue
            _link(node, self._unhooked.pop(id(node))[1])
            self._replacements.pop(id(node), None)
            stack.extend(p for t in node.inputs if (p := producer(t)) is not None)

    def _user(self, node: gs.Node, inside: Container[int] = ()) -> str:
        for tensor in node.outputs:
            if self.is_output(tensor):
                return f"'{tensor.name}' is an output of the graph"
            for consumer in tensor.outputs:
                if id(consumer) not in inside:
                    return f"'{tensor.name}' feeds {node_name(consumer)}"
        return "by a subgraph"

    def remove(self, node: gs.Node) -> None:
        """Take out a node whose outputs nothing uses, and what only fed it."""
        stack = [node]
        while stack:
            node = stack.pop()
            if any(t.outputs or self.is_output(t) for t in node.outputs):
                continue
            stack.extend(p for t in node.inputs if (p := producer(t)) is not None)
            _cut(node)
            node.outputs.clear()

    # ---- finishing

    def taken(self) -> dict[int, list[gs.Node]]:
        """The nodes, in graph order, that gave way to what was made at an original node, by that node's id."""
        found: dict[int, list[gs.Node]] = {}
        for node in self.gs.nodes:
            replacement = self._replacements.get(id(node))
            while replacement in self._replacements:
                replacement = self._replacements[replacement]
            if replacement in self._anchors:
                found.setdefault(self._anchors[replacement], []).append(node)
        return found

    def finish(self) -> None:
        """Drop everything unhooked or unused and put the nodes in topological order, stable against the old one."""
        live = self._live_nodes()
        self.gs.nodes[:] = topological([node for node in self.gs.nodes if id(node) in live])

    def _live_nodes(self) -> set[int]:
        live: set[int] = set()
        stack = [p for t in self.gs.outputs if (p := producer(t)) is not None]
        stack += [n for n in self.gs.nodes if any(id(t) in self._captured for t in n.outputs)]
        while stack:
            node = stack.pop()
            if id(node) not in live:
                live.add(id(node))
                stack.extend(p for t in node.inputs if (p := producer(t)) is not None)
        return live


def _cut(node: gs.Node) -> None:
    """Take a node's inputs away. Constants go on listing it as a consumer, which nobody asks them for.

    As onnx-graphsurgeon does it, every consumer of a constant that layers share is compared, by value.
    """
    for tensor in node.inputs:
        if not isinstance(tensor, gs.Constant):
            index = next(i for i, consumer in enumerate(tensor.outputs) if consumer is node)
            list.pop(tensor.outputs, index)
    list.clear(node.inputs)


def _link(node: gs.Node, inputs: list[gs.Tensor]) -> None:
    """Undo `_cut`."""
    list.extend(node.inputs, inputs)
    for tensor in inputs:
        if not isinstance(tensor, gs.Constant):
            list.append(tensor.outputs, node)


def _check_precision(node: gs.Node, dtype: Any) -> None:
    """Raise NoMatch for a Cast, among nodes that give `dtype`, to a type of less precision or range: it rounds."""
    if is_float_cast(node) and dtype is not None and node.attrs["to"] != data_type(dtype):
        to, given = (_WIDTHS.get(t, 0) for t in (node.attrs["to"], data_type(dtype)))
        if to <= given:
            name = onnx.helper.tensor_dtype_to_string(node.attrs["to"]).removeprefix("TensorProto.")
            raise NoMatch(node, f"rounds to {name}", wanted=f"at least the precision of {np.dtype(dtype).name}")


def _check_axes(node: gs.Node) -> None:
    """Raise NoMatch where a constant has more axes than what an element-wise node joins it with: the result has them.

    A number [1, 1, 1, 1] and x [B, S, H] make [1, B, S, H].
    """
    if node.op not in _ELEMENTWISE or node.domain not in DEFAULT_DOMAINS:
        return
    constants = [t for t in node.inputs if isinstance(t, gs.Constant)]
    others = [t for t in node.inputs if not isinstance(t, gs.Constant) and not t.is_empty()]
    rank = max((1 if t.shape is None else len(t.shape) for t in others), default=0)
    for constant in constants if others else ():
        if len(constant.shape) > rank:
            what = f"joins a constant {list(constant.shape)} with '{others[0].name}' of {rank} axes"
            raise NoMatch(node, what, wanted="a result of no more axes")


def _needed(node: gs.Node, user: str) -> NoMatch:
    is_sum = node.op == "Add" and not any(isinstance(t, gs.Constant) for t in node.inputs)
    hint = "a pre-LayerNorm layer passes its sums on: they cannot go" if is_sum else ""
    return NoMatch(node, f"its output is needed elsewhere too ({user})", hint, wanted="no other consumer")


def _without_defaults(
    skeleton: onnx.ModelProto, weights: dict[str, w.Weight]
) -> tuple[onnx.ModelProto, dict[str, gs.Constant]]:
    """Initialisers that are graph inputs too are only defaults, which a feed may override: no constants to fuse."""
    inputs = {value.name for value in skeleton.graph.input}
    defaults = [tensor for tensor in skeleton.graph.initializer if tensor.name in inputs]
    if not defaults:
        return skeleton, {}
    bare = onnx.ModelProto()
    bare.CopyFrom(skeleton)
    del bare.graph.initializer[:]
    bare.graph.initializer.extend(t for t in skeleton.graph.initializer if t.name not in inputs)
    found = {t.name: gs.Constant(t.name, weights.get(t.name) or numpy_helper.to_array(t)) for t in defaults}
    return bare, found


def as_weight(constant: gs.Constant) -> w.Weight:
    values = constant._values
    return values if isinstance(values, w.Weight) else w.Weight.of_array(np.asarray(constant.values))


def _give_types(tensors: Mapping[str, gs.Tensor], weights: Mapping[str, w.Weight], types: Mapping[str, int]) -> None:
    """Gives Constants their weights, and Variables the element types that follow from the graph."""
    for name, tensor in tensors.items():
        if isinstance(tensor, gs.Constant) and name in weights:
            tensor.values = weights[name]
        elif isinstance(tensor, gs.Variable) and name in types:
            tensor.dtype = _numpy_dtype(types[name])
        # onnx-graphsurgeon has ONNX's number in place of bfloat16; a small constant's goes when it is loaded.
        if isinstance(tensor, gs.Constant) and not isinstance(tensor._values, w.Weight):
            tensor.values  # noqa: B018
        elif isinstance(tensor, gs.Variable) and isinstance(tensor.dtype, int):
            tensor.dtype = _numpy_dtype(tensor.dtype)


def _numpy_dtype(data_type: int) -> Any:
    """None for what is not known; ONNX's number stays for what NumPy has no type for."""
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(data_type) if data_type else None
    except KeyError:
        return data_type
