"""Which nodes compute each row of an activation from that row alone, and small edits that passes share."""

from __future__ import annotations

import re

import numpy as np
import onnx_graphsurgeon as gs

from ..graph import FusionGraph
from ..nodes import DEFAULT_DOMAINS, matrix, producer, scalar
from ..ops import OPS
from ..order import inputs_of
from ..spec import DOMAIN

# Standard operators that work element by element.
_UNARY = {
    "Abs", "Cast", "Celu", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Mish",
    "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh",
}  # fmt: skip
_BINARY = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"}
# Standard operators that work along one axis.
_ALONG_LAST = {"LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax"}

ATTENTIONS = ("FusedAttention", "FusedAttentionVariant")


def fused(graph: FusionGraph, *ops: str) -> list[gs.Node]:
    """The graph's nodes of these ops of ours, in its order."""
    return [node for node in graph.gs.nodes if node.domain == DOMAIN and node.op in ops]


def embeddings(graph: FusionGraph) -> list[gs.Node]:
    """The nodes that look ids up: EmbedLayerNorms, or where there is none what takes rows of a constant table."""
    return fused(graph, "EmbedLayerNorm") or [node for node in graph.gs.nodes if _looks_up(node)]


def _looks_up(node: gs.Node) -> bool:
    if node.op != "Gather" or node.domain not in DEFAULT_DOMAINS or node.attrs.get("axis", 0) != 0:
        return False
    table, ids = node.inputs
    is_table = isinstance(table, gs.Constant) and len(table.shape) == 2 and np.dtype(table.dtype).kind != "i"
    return is_table and isinstance(ids, gs.Variable) and ids.shape is not None and len(ids.shape) == 2


def ids_of(embedding: gs.Node) -> gs.Tensor:
    """The ids [B, S] that such a node looks up."""
    return get_input(embedding, "ids") if embedding.domain == DOMAIN else embedding.inputs[1]


def table_of(embedding: gs.Node) -> gs.Tensor:
    """What it looks them up in, [V, H]."""
    return get_input(embedding, "word_table") if embedding.domain == DOMAIN else embedding.inputs[0]


def row_inputs(node: gs.Node) -> list[int] | None:
    """Which inputs of a row-wise node hold rows [B, S, ...]; None where the node is not known to be row-wise.

    Every row of its one output depends on the same row of these inputs, and on constants. The rest of the contract is
    that the inputs named do hold rows, which the caller has to know.
    """
    if node.domain == DOMAIN:
        spec = OPS[node.op]
        if "row_count" not in spec.packed_inputs or {"token_index", "places"} & set(spec.packed_inputs):
            return None
        names = [t.name for t, tensor in zip(spec.inputs, node.inputs, strict=False) if not tensor.is_empty()]
        if "x_scale" in names and not isinstance(node.inputs[spec.input_index("x_scale")], gs.Constant):
            return None  # it is that of all rows
        return [spec.input_index(name) for name in names if name in ("x", "residual")]
    if node.domain not in DEFAULT_DOMAINS or len(node.outputs) != 1 or not node.inputs:
        return None
    shape = node.outputs[0].shape
    if shape is None:
        return None
    if node.op in _UNARY or (node.op in _ALONG_LAST and node.attrs.get("axis", -1) in (-1, len(shape) - 1)):
        return [0] if all(isinstance(t, gs.Constant) and _is_one_row(t, len(shape)) for t in node.inputs[1:]) else None
    if node.op == "Clip":
        ends = [tensor for tensor in node.inputs[1:] if not tensor.is_empty()]
        return [0] if all(isinstance(t, gs.Constant) and _is_one_row(t, len(shape)) for t in ends) else None
    if node.op in ("ReduceMean", "ReduceL2"):  # of each row, as in RMS norms and vectors of length 1
        given = node.inputs[1] if len(node.inputs) > 1 else None
        axes = (
            node.attrs.get("axes")
            if given is None
            else np.ravel(given.values).tolist()
            if isinstance(given, gs.Constant)
            else None
        )
        return [0] if axes in ([-1], [len(shape) - 1]) and node.attrs.get("keepdims", 1) == 1 else None
    if node.op == "MatMul":  # of rows, since a matrix alone is behind it
        return [0] if matrix(node.inputs[1]) is not None else None
    if node.op in _BINARY:
        rows = [i for i, t in enumerate(node.inputs) if not isinstance(t, gs.Constant)]
        same = all(t.shape is not None and len(t.shape) == len(shape) for t in (node.inputs[i] for i in rows))
        fits = all(_is_one_row(t, len(shape)) for t in node.inputs if isinstance(t, gs.Constant))
        return rows if same and fits else None
    return None


def factor_of_tokens(node: gs.Node, mask: gs.Tensor) -> int | None:
    """Which input of a product with rows [B, S, H] is the mask as a column [B, S, 1]; None where none is.

    So is what the mask is made of, where it shows the tokens of which that is 1. None also where something reads the
    product that is not row-wise, as a mean over tokens does.
    """
    shape = node.outputs[0].shape if node.outputs else None
    if node.op != "Mul" or node.domain not in DEFAULT_DOMAINS or shape is None or len(shape) != 3:
        return None
    if any(row_inputs(user) is None for user in node.outputs[0].outputs if user.op != "Shape"):
        return None
    sources = [uncast(mask)]
    if (above := producer(sources[0])) is not None and above.op == "Equal" and scalar(above.inputs[1]) == 1:
        sources.append(uncast(above.inputs[0]))
    for index, tensor in enumerate(node.inputs):
        column = tensor
        while (above := producer(column)) is not None and above.op in ("Cast", "Identity", "Unsqueeze"):
            column = above.inputs[0]
        if any(column is source for source in sources) and tensor.shape == [*column.shape, 1]:
            return index
    return None


def uncast(tensor: gs.Tensor) -> gs.Tensor:
    """What the tensor is but for its type."""
    while (above := producer(tensor)) is not None and above.op in ("Cast", "Identity"):
        tensor = above.inputs[0]
    return tensor


def _is_one_row(constant: gs.Constant, rank: int) -> bool:
    """Whether the constant meets each row of a tensor of that rank alike."""
    shape = constant.shape
    return len(shape) <= rank and all(size == 1 for size in shape[:-1])


def fresh_axes(graph: FusionGraph, *names: str) -> list[str]:
    """Names for axes that no size in the graph is made of: an axis of the model's own may be called the same."""
    taken: set[str] = set()
    for tensor in graph.gs.tensors().values():
        for size in tensor.shape or ():
            if isinstance(size, str):
                taken.update(re.findall(r"\w+", size))
    made = []
    for base in names:
        name, count = base, 1
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        made.append(name)
    return made


def consumers(graph: FusionGraph) -> dict[int, list[gs.Node]]:
    """The nodes of the graph that read a tensor, by the tensor's id. Constants are not followed."""
    found: dict[int, list[gs.Node]] = {}
    for node in graph.gs.nodes:
        for tensor in {id(t): t for t in node.inputs if not isinstance(t, gs.Constant)}.values():
            found.setdefault(id(tensor), []).append(node)
    return found


def roots(tensor: gs.Tensor) -> list[gs.Tensor]:
    """The inputs of the model that `tensor` is made of."""
    found, stack, seen = [], [tensor], set()
    while stack:
        top = stack.pop()
        if id(top) in seen or isinstance(top, gs.Constant) or top.is_empty():
            continue
        seen.add(id(top))
        above = producer(top)
        if above is None:
            found.append(top)
        else:
            stack += inputs_of(above)
    return found


def first_row(node: gs.Node) -> gs.Tensor | None:
    """The rows [B, S, H] of which `node` takes the first of each sequence, as [B, H]; None where it does not."""
    if node.op != "Gather" or node.domain not in DEFAULT_DOMAINS or node.attrs.get("axis", 0) != 1:
        return None
    rows, index = node.inputs
    if not isinstance(index, gs.Constant) or tuple(index.shape) != () or int(index.values) != 0:
        return None
    return rows if rows.shape is not None and len(rows.shape) == 3 else None


def counts_places(attention: gs.Node) -> bool:
    """Whether what an attention computes depends on how far apart tokens are, not on their order alone."""
    if attention.op != "FusedAttentionVariant":
        return False
    given = any(get_input(attention, name) is not None for name in ("cos", "distance_bias", "positions"))
    return given or any(attention.attrs.get(side, -1) > 0 for side in ("window_left", "window_right"))


def set_input(node: gs.Node, name: str, tensor: gs.Tensor) -> None:
    """Give an op of ours an optional input, with gaps before it where others are absent."""
    index = OPS[node.op].input_index(name)
    while len(node.inputs) <= index:
        node.inputs.append(gs.Variable.empty())
    node.inputs[index] = tensor


def drop_input(node: gs.Node, name: str) -> None:
    """Take an optional input away again."""
    index = OPS[node.op].input_index(name)
    if index < len(node.inputs):
        node.inputs[index] = gs.Variable.empty()
    while node.inputs and node.inputs[-1].is_empty():
        node.inputs.pop()


def get_input(node: gs.Node, name: str) -> gs.Tensor | None:
    """An input of an op of ours by name; None where it is absent."""
    index = OPS[node.op].input_index(name)
    tensor = node.inputs[index] if index < len(node.inputs) else None
    return None if tensor is None or tensor.is_empty() else tensor


def retarget(node: gs.Node, old: gs.Tensor, new: gs.Tensor) -> None:
    """Let `node` read `new` wherever it reads `old`."""
    for index, tensor in enumerate(node.inputs):
        if tensor is old:
            node.inputs[index] = new
