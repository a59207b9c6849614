"""What an integer subgraph computes, found by running it: how attention masks and position ids are recognised.

Exporters build the additive mask from the model's 0/1 mask in a dozen ways (unsqueeze and subtract; index grids with
GatherND; flattened gathers; broadcast comparisons), new ones with every release. They all compute the same function of
a small tensor, so the subgraph is run on random masks of several shapes and its result compared. Behaviour that changes
with length (a sliding window, a maximum) shows at some length: one probe is longer than every constant that could say
where, or, of position ids, as long as their table allows.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import helper
from onnx_graphsurgeon.exporters.onnx_exporter import OnnxExporter, dtype_to_onnx

from . import masks
from .nodes import DEFAULT_DOMAINS, NoMatch, producer
from .shapes import monomial
from .weights import Weight

if TYPE_CHECKING:
    from .graph import FusionGraph

_MAX_NODES = 400
_MAX_LENGTH = 2048
_MAX_ELEMENTS = 1 << 26
_MAX_CANDIDATES = 16
_INTEGERS = (np.int32, np.int64)
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
_SAME_VALUES = ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Expand", "Slice")


@dataclass
class Subgraph:
    """Everything that `target` is computed from. `inputs` are graph inputs; `cuts` only lend their shape."""

    target: gs.Tensor
    inputs: list[gs.Tensor]
    cuts: list[gs.Tensor]
    interior: list[gs.Tensor]  # every computed tensor, the nearest to `target` first
    longest: int  # the largest constant that could be a length

    def read(self) -> list[gs.Tensor]:
        """The inputs of which it depends on more than the shape."""
        given, found, seen, stack = {id(t) for t in self.inputs}, [], set(), [self.target]
        while stack:
            tensor = stack.pop()
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            node = producer(tensor)
            if id(tensor) in given:
                found.append(tensor)
            elif node is not None and node.op != "Shape":
                stack.extend(node.inputs)
        return found

    def run(self, session: ort.InferenceSession, feeds: dict[str, np.ndarray], sizes: dict[str, int]) -> np.ndarray:
        feeds = dict(feeds)
        for tensor in self.cuts:
            feeds[tensor.name] = np.zeros(_shape(tensor, sizes), np.float32)
        wanted = {i.name for i in session.get_inputs()}
        try:
            return session.run(None, {name: value for name, value in feeds.items() if name in wanted})[0]
        except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
            raise _not_evaluated(self.target, error) from error


class _NotRun(NoMatch):
    """ONNX Runtime does not run the subgraph, or not for these inputs."""


class Prober:
    """Answers questions about tensors of one graph, each computed once."""

    def __init__(self, graph: FusionGraph) -> None:
        self._graph = graph
        self._answers: dict[tuple[str, str], gs.Tensor | NoMatch | bool] = {}

    def mask_source(self, target: gs.Tensor, kind: str, factor: float = 1.0) -> gs.Tensor | None:
        """The [B, S] tensor of integers, 0 where a key is hidden, that `target` hides keys by; None if it hides none.

        `target` broadcasts to [B, heads, S, S]. By `kind` it is "added" to scores, 0 where the key is visible and at
        most -1000 / factor where not, or a condition, "kept" or "hidden" where true. The result is a graph input, or
        made of the first tensor above `target` that says which keys to hide: a comparison of ids with padding or of
        places with lengths. Raises NoMatch with what `target` is instead.
        """
        key = (target.name, f"mask {kind} {factor}")
        if key not in self._answers:
            try:
                self._answers[key] = self._find_mask(target, kind, factor)
            except NoMatch as miss:
                self._answers[key] = miss
        answer = self._answers[key]
        if isinstance(answer, NoMatch):
            raise answer
        return answer

    def counts_up(self, index: gs.Tensor, ids: gs.Tensor, longest: int) -> bool:
        """Whether `index` is 0, 1, ..., S-1 in every row, S <= longest being the length of `ids` [B, S]."""
        runs = self._runs(index, ids, longest)
        return bool(runs) and all(r.shape[-1:] == (length,) and np.all(r == np.arange(length)) for length, r in runs)

    def _find_mask(self, target: gs.Tensor, kind: str, factor: float) -> gs.Tensor | None:
        where = producer(target) or target.name
        whole = self._subgraph(target)
        if any(target is t for t in whole.inputs) and kind == "added":
            raise NoMatch(
                where,
                f"'{target.name}', which is added to the scores, is an input of the model",
                "export the model with its 0/1 mask as input",
                wanted="a [B, S] mask of keys",
            )
        if not whole.read() and self._shows_all(whole, kind):
            return None
        given = [t for t in whole.inputs if _is_mask(t)]
        # A computed number may be more than 0 and 1 (ids behind a Cast), and a probe with these would not notice.
        computed = [t for t in whole.interior if _is_mask(t) and t.dtype == bool][:_MAX_CANDIDATES]
        for candidate in (*given, *computed):
            with contextlib.suppress(NoMatch):
                subgraph = self._subgraph(target, stop=candidate)
                # What another input may do to the mask, probes need not bring to light: one id of many is padding.
                if any(t is not candidate for t in subgraph.read()):
                    continue
                session = self._session(subgraph)
                for inverted in (False, True):
                    if self._hides_keys(subgraph, session, candidate, kind, factor, inverted):
                        return masks.integers(self._graph, candidate, inverted)
        names = ", ".join(f"'{t.name}'" for t in whole.inputs) or "no input"
        if not given and not computed:
            raise NoMatch(where, f"the mask '{target.name}' comes from {names}", wanted="a [B, S] mask of keys")
        raise NoMatch(
            where,
            f"'{target.name}', made of {names}, is more than a key mask (causal, windowed, by query, or with a bias)",
            wanted="a mask that hides padded keys and nothing else",
        )

    def _shows_all(self, subgraph: Subgraph, kind: str) -> bool:
        """Whether a mask that depends on lengths alone hides nothing, as one that an exporter makes up."""
        ids = next((t for t in self._graph.gs.inputs if t.shape is not None and len(t.shape) >= 2), None)
        if isinstance(subgraph.target, gs.Constant):
            results = [np.asarray(subgraph.target.values)]
        elif ids is None:
            return False
        else:
            session, random = self._session(subgraph), np.random.default_rng(0)
            shapes = [self._sizes(ids, *shape) for shape in self._probe_shapes(subgraph, ids)]
            results = [subgraph.run(session, self._feeds(subgraph, sizes, random), sizes) for sizes in shapes]
        return all(np.all(result == (kind == "kept")) for result in results)

    def _hides_keys(self, subgraph, session, mask, kind, factor, inverted) -> bool:
        random = np.random.default_rng(0)
        for batch, length in self._probe_shapes(subgraph, mask):
            sizes = self._sizes(mask, batch, length)
            feeds = self._feeds(subgraph, sizes, random)
            value = random.integers(0, 2, (batch, length))
            value[0, 0] = int(not inverted)
            value *= random.integers(1, _rows_indexed(mask) + 1, (batch, length))
            feeds[mask.name] = value.astype(mask.dtype).reshape(batch, *mask.shape[1:-1], length)
            try:
                result = subgraph.run(session, feeds, sizes)
                result = np.broadcast_to(result, np.broadcast_shapes(result.shape, (batch, 1, length, length)))
            except (NoMatch, ValueError):  # it cannot be run, or does not broadcast, for a mask of that shape
                return False
            visible = np.broadcast_to((value[:, None, None, :] != 0) != inverted, result.shape)
            if kind == "added":
                right = np.all(result[visible] == 0) and np.all(result[~visible] * factor <= -1000)
            else:
                right = np.array_equal(result.astype(bool) == (kind == "kept"), visible)
            if not right:
                return False
        return True

    def _runs(self, index: gs.Tensor, ids: gs.Tensor, longest: int) -> list[tuple[int, np.ndarray]]:
        """Lengths of `ids` and what `index` is for them; nothing where it depends on more than lengths."""
        key = (index.name, f"runs {ids.name} {longest}")
        if key not in self._answers:
            self._answers[key] = []
            with contextlib.suppress(NoMatch):
                self._answers[key] = self._run_lengths(index, ids, longest)
        return self._answers[key]

    def _run_lengths(self, index: gs.Tensor, ids: gs.Tensor, longest: int) -> list[tuple[int, np.ndarray]]:
        if index.dtype not in _INTEGERS or ids.shape is None or len(ids.shape) != 2:
            return []
        if isinstance(index, gs.Constant):
            values = np.asarray(index.values)
            return [(ids.shape[1], values)] if values.shape[-1:] == (ids.shape[1],) else []
        subgraph = self._subgraph(index)
        if subgraph.read():
            return []
        session = self._session(subgraph)
        random = np.random.default_rng(0)

        def run(batch: int, length: int) -> np.ndarray:
            sizes = self._sizes(ids, batch, length)
            return subgraph.run(session, self._feeds(subgraph, sizes, random), sizes)

        def too_long(length: int) -> bool:
            """Whether the model cannot run for that length: there is no index, or none to add to rows of words."""
            try:
                return run(1, length).shape[-1:] not in ((), (1,), (length,))
            except _NotRun:
                return True

        shapes = self._probe_shapes(subgraph, ids, longest)
        if not isinstance(ids.shape[1], int) and too_long(longest):
            # The table has rows that a shorter buffer of positions never reaches.
            longest = bisect_left(range(1, longest), True, key=too_long)
            shapes = self._probe_shapes(subgraph, ids, longest)
        return [(length, run(batch, length)) for batch, length in shapes]

    def _subgraph(self, target: gs.Tensor, stop: gs.Tensor | None = None) -> Subgraph:
        """What `target` is computed from, up to graph inputs and `stop`."""
        inputs, cuts, longest, interior = {}, {}, 0, []
        ends = {id(t) for t in self._graph.gs.inputs} | {id(stop)}
        seen, queue = set(), deque([target])
        while queue:
            tensor = queue.popleft()
            if id(tensor) in seen or tensor.is_empty():
                continue
            seen.add(id(tensor))
            if isinstance(tensor, gs.Constant):
                if isinstance(tensor._values, Weight):
                    raise NoMatch(
                        producer(target) or target.name,
                        f"'{target.name}' depends on the weight '{tensor.name}'",
                        wanted="a function of the inputs alone",
                    )
                longest = max(longest, _length(tensor))
            elif id(tensor) in ends:
                inputs[tensor.name] = tensor
            else:
                node = producer(tensor)
                interior.append(tensor)
                if node is None or node.domain not in DEFAULT_DOMAINS or len(interior) > _MAX_NODES:
                    raise NoMatch(
                        node or tensor.name,
                        f"'{target.name}' is computed by operators that are not ONNX's, or by more than {_MAX_NODES}",
                        wanted="a small subgraph of standard operators",
                    )
                values = [value for value in node.attrs.values() if isinstance(value, gs.Constant)]
                longest = max([longest, *map(_length, values)])
                if node.op == "Shape" and id(node.inputs[0]) not in ends and node.inputs[0].shape is not None:
                    cuts[node.inputs[0].name] = node.inputs[0]
                else:
                    queue.extend(node.inputs)
        only_shapes = [t for t in cuts.values() if id(t) not in seen]
        return Subgraph(target, list(inputs.values()), only_shapes, interior, longest)

    def _session(self, subgraph: Subgraph) -> ort.InferenceSession:
        """The subgraph as a model of its own. Cuts become float inputs: nothing but their shape is read."""
        nodes, constants, seen = [], {}, set()
        stops = {t.name for t in (*subgraph.inputs, *subgraph.cuts)}

        def visit(tensor: gs.Tensor) -> None:
            stack = [(tensor, False)]
            while stack:
                current, done = stack.pop()
                node = producer(current)
                if done:
                    nodes.append(OnnxExporter.export_node(node))
                elif isinstance(current, gs.Constant):
                    constants[current.name] = current
                elif node is not None and current.name not in stops and id(node) not in seen:
                    seen.add(id(node))
                    stack.append((current, True))
                    stack.extend((t, False) for t in node.inputs if not t.is_empty())

        visit(subgraph.target)
        inputs = [helper.make_tensor_value_info(t.name, dtype_to_onnx(t.dtype), _ranks(t)) for t in subgraph.inputs]
        inputs += [helper.make_tensor_value_info(t.name, onnx.TensorProto.FLOAT, _ranks(t)) for t in subgraph.cuts]
        output = onnx.ValueInfoProto(name=subgraph.target.name)
        initializers = [OnnxExporter.export_tensor_proto(t) for t in constants.values()]
        _without_bfloat16(nodes, initializers)
        body = helper.make_graph(nodes, "probe", inputs, [output], initializers)
        opset = helper.make_opsetid("", self._graph.opset)
        model = helper.make_model(body, opset_imports=[opset], ir_version=self._graph.gs.ir_version or 8)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise _not_evaluated(subgraph.target, error) from error

    def _probe_shapes(self, subgraph: Subgraph, like: gs.Tensor, within: int | None = None) -> list[tuple[int, int]]:
        """Batch and length of the probes; a static axis keeps its size.

        Lengths go up to `within`, a table's rows; without it, beyond the longest constant, a threshold.
        """
        if within is None and subgraph.longest > _MAX_LENGTH:
            raise NoMatch(
                producer(subgraph.target) or subgraph.target.name,
                f"'{subgraph.target.name}' may change at length {subgraph.longest}",
                wanted=f"constants of at most {_MAX_LENGTH}, which can be tried out",
            )
        lengths = [3, 17, subgraph.longest + 5] if within is None else [min(n, within) for n in (3, 17, within)]
        shapes = [(2, lengths[0]), (1, 1), (3, lengths[1]), (1, lengths[2])]
        batch, length = like.shape[0], like.shape[-1]
        shapes = [
            (b if not isinstance(batch, int) else batch, s if not isinstance(length, int) else length)
            for b, s in shapes
        ]
        if not all(0 < b * s * s <= _MAX_ELEMENTS for b, s in shapes):
            raise NoMatch(like.name, f"'{like.name}' is {like.shape}", wanted="a size that can be tried out")
        return list(dict.fromkeys(shapes))

    def _sizes(self, like: gs.Tensor, batch: int, length: int) -> dict[str, int]:
        """A number for each symbol of the graph's inputs: those of `like` as given, others by their place."""
        sizes = {}
        for tensor in self._graph.gs.inputs:
            for index, dim in enumerate(tensor.shape or []):
                if isinstance(dim, str):
                    sizes[dim] = (batch, length)[index] if index < 2 else length
        for dim, size in ((like.shape[0], batch), (like.shape[-1], length)):
            if isinstance(dim, str):
                sizes[dim] = size
        return sizes

    def _feeds(self, subgraph: Subgraph, sizes: dict[str, int], random: np.random.Generator) -> dict[str, np.ndarray]:
        """Random zeros and ones: valid masks, token types and ids alike."""
        return {t.name: random.integers(0, 2, _shape(t, sizes)).astype(t.dtype) for t in subgraph.inputs}


def _without_bfloat16(nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto]) -> None:
    """ONNX Runtime computes no bfloat16 on the CPU; for masks float32 is the same."""
    bfloat16, float32 = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    tensors = [*initializers, *(a.t for n in nodes for a in n.attribute if a.HasField("t"))]
    for tensor in tensors:
        if tensor.data_type == bfloat16:
            values = onnx.numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for node in nodes:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == bfloat16:
                attribute.i = float32


def _not_evaluated(target: gs.Tensor, error: Exception) -> _NotRun:
    reason = " ".join(str(error).split())
    return _NotRun(producer(target) or target.name, f"'{target.name}' cannot be evaluated: {reason}")


def _is_mask(tensor: gs.Tensor) -> bool:
    """Whether the tensor could say of each key, [B, S] or [B, 1, 1, S], whether to hide it."""
    shape = tensor.shape
    if shape is None or tensor.dtype is None or len(shape) < 2 or any(dim != 1 for dim in shape[1:-1]):
        return False
    return np.dtype(tensor.dtype).kind in "biuf"


def _rows_indexed(tensor: gs.Tensor) -> int:
    """The largest value that a tensor takes: 1 for a mask, more for ids, which look up rows of a table."""
    rows, stack, seen = 1, [tensor], set()
    while stack:
        current = stack.pop()
        for node in current.outputs:
            if node.op == "Gather" and node.inputs[1] is current:
                table = node.inputs[0]
                rows = max(rows, table.shape[0] - 1 if isinstance(table, gs.Constant) and len(table.shape) == 2 else 1)
            elif node.op in _SAME_VALUES and node.inputs[0] is current and id(node) not in seen:
                seen.add(id(node))
                stack.extend(node.outputs)
    return rows


def _ranks(tensor: gs.Tensor) -> list[None]:
    return [None] * len(tensor.shape)


def _length(constant: gs.Constant) -> int:
    """The largest number that a constant holds or is long, if it could be a length: not INT64_MAX, "to the end"."""
    values = np.asarray(constant.values)
    longest = max(constant.shape, default=0)
    if values.dtype.kind not in "iuf":
        return longest
    magnitudes = np.abs(values.astype(np.float64))  # 1 << 20 is beyond float16
    largest = int(magnitudes.max(where=magnitudes <= 1 << 20, initial=0))
    if values.dtype.kind == "f" and not any(user.op in _COMPARISONS for user in constant.outputs):
        largest = min(largest, _MAX_LENGTH)  # rather what hides a key, -10000.0, than a length
    return max(longest, largest)


def _shape(tensor: gs.Tensor, sizes: dict[str, int]) -> list[int]:
    shape = [_size(dim, sizes, tensor) for dim in tensor.shape or []]
    if math.prod(shape) > _MAX_ELEMENTS or any(size < 0 for size in shape):
        raise NoMatch(tensor.name, f"'{tensor.name}' is {shape}", wanted="a size that can be tried out")
    return shape


def _size(dim: int | str | None, sizes: dict[str, int], tensor: gs.Tensor) -> int:
    factors = monomial(dim)
    if factors is None or any(symbol not in sizes for symbol in factors[1]):
        raise NoMatch(tensor.name, f"an axis of '{tensor.name}' is {dim}", wanted="a product of the inputs' axes")
    return int(factors[0] * np.prod([sizes[symbol] for symbol in factors[1]], dtype=np.int64))
