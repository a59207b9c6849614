"""Attention beyond BERT's: which variant it is, as far as that is proven of scores, queries and keys."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_graphsurgeon as gs

from .. import gammas
from ..dialect.pattern import EMBEDDING, LINEAR, RMS_NORM, Recorder
from ..graph import FusionGraph
from ..nodes import NoMatch, data_type, producer
from ..ops.attention_variant import OP
from ..ops.rotary_tables import OP as TABLES
from ..proof import prover
from ..proof.key_range import EVERY_KEY
from ..proof.rotary import Heads, Rotary, heads
from ..proof.rule import HIDING
from ..proof.score_terms import ScoreTerms
from ..spec import DOMAIN, NODE_MARKERS
from .emit import emit
from .heads import packed
from .positions import Positions, is_sum_of_positions
from .positions import find as find_positions
from .scores import Core, ScoreMask, core, merge, reshaped
from .sources import base_of

_LEAST_SCALE, _LARGEST_SCALE = 1e-4, 1e4


@dataclass(frozen=True, eq=False)
class HeadNorm:
    """Heads are divided by the root of their mean square, and scaled by `gamma` [size]."""

    gamma: gs.Constant
    epsilon: float


@dataclass(frozen=True, eq=False)
class _Source:
    """The heads of Q, K or V: columns of a projection, normalised and rotated."""

    linear: gs.Node
    heads: Heads
    norm: HeadNorm | None


@dataclass(frozen=True, eq=False)
class Variant:
    """softmax(scale q kᵀ + terms) v, q and k being normalised by head and rotated; `root` gives the merged heads.

    With `positions` q and k are also multiplied with vectors by distance, and the products added. With `zeroed` the
    heads of a token that the mask hides are 0.
    """

    root: gs.Node
    sources: dict[str, _Source]
    scale: float
    terms: ScoreTerms
    positions: Positions | None
    zeroed: bool
    interior: list[gs.Node] = field(repr=False)

    @property
    def rotary(self) -> Rotary | None:
        return self.sources["q"].heads.rotary

    def __str__(self) -> str:
        q, k = (self.sources[name] for name in "qk")
        parts = [f"{len(q.heads.columns)} heads of {q.heads.columns.shape[1]} columns"]
        if k.heads.shared > 1:
            parts[0] += f" over {len(k.heads.columns)} of keys and values"
        if q.norm is not None:
            parts.append("RMS norm of each head of Q and K")
        parts += [str(self.rotary)] if self.rotary is not None else []
        parts.append(str(self.terms.keys))
        parts += [f"key mask '{self.terms.mask.name}'"] if self.terms.mask is not None else []
        if (bias := self.terms.bias) is not None:
            parts.append(f"bias by head and distance, from {-bias.left} to {bias.right}, the last ones beyond")
        parts += [str(self.positions)] if self.positions is not None else []
        if self.terms.hides_queries:
            parts.append("0 for hidden tokens" if self.zeroed else "hidden tokens attend to all alike")
        return "; ".join(parts)


def find(graph: FusionGraph, node: gs.Node) -> Variant:
    """The variant at this Softmax. Raises NoMatch where it is not shown to be one."""
    found = core(graph, node, views=True)
    if found.heads:
        raise NoMatch(node, "takes heads side by side", wanted="[batch, heads, sequence, size]")
    sources, interior = {}, []
    for name, tensor in zip("qkv", (found.q, found.k, found.v), strict=True):
        layout = "bhds" if name == "k" and found.k_transposed else "bhsd"
        sources[name], nodes = _source(graph, tensor, layout, name.upper())
        interior += nodes
    q, k, v = (sources[name] for name in "qkv")
    _check(sources, found)
    base = q.linear.outputs[0]
    root, after = merge(graph, found, v.linear.outputs[0], (len(q.heads.columns), q.heads.columns.shape[1]))
    scale = found.scale * q.heads.scale * k.heads.scale
    masks, positions = _positions(graph, found, sources)
    terms, outermost = ScoreTerms(), ScoreTerms()
    for mask in masks:
        if mask.kind != "added" and mask.hidden * mask.factor > HIDING:
            raise NoMatch(mask.node, f"puts {mask.hidden * mask.factor:g} in place of a score", wanted=f"{HIDING:g}")
        ask = prover(graph).score_terms
        more = ask(mask.tensor, mask.kind, mask.factor, *base.shape[:2], len(q.heads.columns))
        terms = terms.and_also(more, mask.node)
        outermost = more if mask is found.masks[-1] else ScoreTerms()
        if terms.rule is not None and terms.rule.lifting and terms.keys != EVERY_KEY:
            # The greatest number of a text may lie outside of the window, and of no use to who is inside.
            raise NoMatch(mask.node, "raises scores by a mask of more than 1, beside a window", wanted="one of both")
    if terms.hides_queries and not outermost.hides_queries:
        # A hidden token's scores are all alike only until something else is done to some of them.
        raise NoMatch(found.masks[-1].node, "changes scores that a mask has made all alike", wanted="the mask last")
    unique = {id(n): n for n in (*found.nodes, *after, *interior, *(positions.nodes if positions is not None else ()))}
    zeroed = terms.hides_queries and found.zeroed
    return Variant(root, sources, scale, terms, positions, zeroed, list(unique.values()))


def _positions(
    graph: FusionGraph, found: Core, sources: dict[str, _Source]
) -> tuple[list[ScoreMask], Positions | None]:
    """The masks that are left, and what else is added to scores: products with vectors by distance."""
    added = [mask for mask in found.masks if mask.kind == "added" and is_sum_of_positions(mask.tensor)]
    masks = [mask for mask in found.masks if not any(mask is one for one in added)]
    views = [view for view in found.views if view is not None]
    if len(added) > 1:
        raise NoMatch(added[1].node, "adds products with positions twice", wanted="once")
    if views and (not added or any(mask.merged for mask in masks)):
        raise reshaped(views[0])
    for name, tensor in zip("QKV", (found.q, found.k, found.v), strict=True):
        axes = len(graph.elements.shape(tensor))
        if axes != (3 if added and added[0].merged else 4):
            raise NoMatch(producer(tensor), f"{name} has {axes} axes", wanted="[batch, heads, sequence, size]")
    if not added:
        return masks, None
    of_heads = {name: sources[name].heads for name in "qk"}
    if any(source.norm is not None for source in sources.values()):
        raise NoMatch(added[0].node, "adds products with positions to those of normalised heads", wanted="plain heads")
    return masks, find_positions(graph, found, added[0], of_heads)


def rewrite(graph: FusionGraph, node: gs.Node, miss: NoMatch) -> None:
    """Put the variant at this Softmax in place, where the ops of families beyond BERT are written; else say what it is.

    Raises NoMatch where nothing is put in place: `miss`, why no other op takes it, with what is shown of the attention.
    """
    try:
        found = _found(graph, node)
    except NoMatch as reason:
        same = (reason.node, reason.found) == (miss.node, miss.found)
        hint = miss.hint if same else f"{miss.hint or 'as a variant'}: {reason.node}: {reason.reason}"
        raise NoMatch(miss.at or miss.node, miss.found, hint, wanted=miss.wanted) from reason
    if not graph.families:
        hint = f"shown to be attention with {found}; FusedAttentionVariant takes it at level full"
        raise NoMatch(miss.at or miss.node, miss.found, hint, wanted=miss.wanted)
    _write(graph, found)


def _found(graph: FusionGraph, node: gs.Node) -> Variant:
    try:
        return find(graph, node)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Types and attributes that contradict each other come to light in many places.
        raise NoMatch(node, f"cannot be followed ({error})") from error


def _write(graph: FusionGraph, found: Variant) -> None:
    output, terms = found.root.outputs[0], found.terms
    sources = found.sources
    linears = {name: source.linear for name, source in sources.items()}
    weight, bias = packed(linears, {name: source.heads.columns for name, source in sources.items()})
    x, base = linears["q"].inputs[0], linears["q"].outputs[0]
    if output.dtype != base.dtype:
        raise NoMatch(found.root, f"the context is {output.dtype}", wanted=f"{base.dtype}, as Q's projection")
    stem = base.name
    given: dict[str, gs.Tensor | None] = dict.fromkeys(tensor.name for tensor in OP.inputs)
    given["qkv"] = qkv = graph.variable(f"{stem}_qkv", output.dtype, [*base.shape[:2], weight.shape[0]])
    bias = bias + _added(sources).astype(bias.dtype)
    if bias.any():
        given["bias"] = graph.constant(f"{stem}_qkv_bias_values", bias)
    if terms.mask is not None:
        given["mask"] = prover(graph).visible(terms.mask, terms.rule)
    norms = {name: sources[name].norm for name in "qk"}
    offset: dict[str, float] = {}
    if norms["q"] is not None:
        scales = {f"{name}_gamma": norm.gamma for name, norm in norms.items()}
        scales, offset = gammas.stored(graph, scales, output.dtype)
        given |= scales
    if terms.bias is not None:
        values = terms.bias.values[None].astype(output.dtype)
        given["distance_bias"] = graph.constant(f"{stem}_distance_bias", values)
    if found.positions is not None:
        vectors = found.positions.vectors / found.scale
        given["positions"] = graph.constant(f"{stem}_positions", vectors.astype(output.dtype))
    settings = {
        "num_heads": len(sources["q"].heads.columns),
        "kv_num_heads": len(sources["k"].heads.columns),
        "scale": float(found.scale),
        "pairs": "neighbours" if found.rotary is not None and found.rotary.interleaved else "halves",
        "epsilon": norms["q"].epsilon if norms["q"] is not None else 1e-6,
        "window_left": -1 if terms.keys.left is None else terms.keys.left,
        "window_right": -1 if terms.keys.right is None else terms.keys.right,
        "bias_left": 0 if terms.bias is None else terms.bias.left,
        "positions_left": 0 if found.positions is None else found.positions.left,
        "hidden_queries": "alike" if terms.hides_queries else "as_others",
        "gamma_offset": offset.get("gamma_offset", 0.0),
    }
    if found.rotary is not None:
        given["cos"], given["sin"] = angles(graph, found.rotary, x)
    column = _column(graph, given["mask"], output) if found.zeroed else None
    with graph.transaction():
        # One of ours although nothing is fused into it, as before FusedAttention.
        packed_weight = graph.constant(f"{stem}_qkv_weight", weight)
        graph.add_node("FusedGemm", [x, packed_weight], [qkv], DOMAIN, **NODE_MARKERS)
        written = OP.body(Recorder(), *given.values(), **settings)
        with contextlib.nullcontext() if column is None else _times(graph, found.root, column):
            emit(graph, written, found.root, found.interior, [x])


@contextlib.contextmanager
def _times(graph: FusionGraph, root: gs.Node, column: gs.Tensor) -> Iterator[None]:
    """Multiplies what `root` gives by the column; a NoMatch that leaves the block takes that back."""
    output = root.outputs[0]
    before = graph.variable(f"{output.name}_of_all", output.dtype, output.shape)
    root.outputs = [before]
    product = graph.add_node("Mul", [before, column], [output])
    try:
        yield
    except NoMatch:
        # Not by `remove`: what feeds the column is for other attentions, too.
        product.inputs.clear()
        product.outputs.clear()
        root.outputs = [output]
        raise


class _Columns(dict):
    """1 for tokens that a mask shows and 0 for others, [B, S, 1], which attentions of one graph share."""


def _column(graph: FusionGraph, mask: gs.Tensor, like: gs.Tensor) -> gs.Tensor:
    made = graph.worked_out.setdefault(_Columns, _Columns())
    key = (mask.name, str(like.dtype))
    if key not in made:
        shown = graph.variable(f"{mask.name}_shown", np.dtype(bool), mask.shape)
        graph.add_node("Cast", [mask], [shown], to=data_type(np.dtype(bool)))
        factors = graph.variable(f"{mask.name}_factors", like.dtype, mask.shape)
        graph.add_node("Cast", [shown], [factors], to=data_type(like.dtype))
        made[key] = graph.variable(f"{mask.name}_column", like.dtype, [*mask.shape, 1])
        graph.add_node("Unsqueeze", [factors, graph.constant("column_axes", np.array([2]))], [made[key]])
    return made[key]


def _added(sources: dict[str, _Source]) -> np.ndarray:
    """What is added to the columns of Q, K and V behind their projections, packed as these are."""
    parts = (np.zeros(s.heads.columns.shape) if s.heads.added is None else s.heads.added for s in sources.values())
    return np.concatenate([part.ravel() for part in parts])


class _Angles(dict):
    """Cosines and sines that attentions of one graph share."""


def angles(graph: FusionGraph, rotary: Rotary, x: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor]:
    """Cosine and sine [S, size / 2] of the angles of each place in x [B, S, width], computed in float32."""
    made = graph.worked_out.setdefault(_Angles, _Angles())
    source = rotary.frequencies if rotary.tables is None else np.stack(rotary.tables)
    key = (
        x.shape[1] or x.name,
        source.tobytes(),
        rotary.tables is None,
        rotary.divided,
        rotary.amplitude,
        str(x.dtype),
    )
    # An attention that was given up took the tables with it, where no other had read them yet.
    if key not in made or any(producer(t) is None and not isinstance(t, gs.Constant) for t in made[key]):
        tokens = _tokens(graph, x)
        by_op = tokens is not None and rotary.tables is None and abs(rotary.amplitude) <= _LARGEST_SCALE
        made[key] = _tables(graph, rotary, x, tokens) if by_op else _angles(graph, rotary, x)
    return made[key]


def _tokens(graph: FusionGraph, x: gs.Tensor) -> gs.Tensor | None:
    """An input that holds an integer for each token of x [B, S, width], ids rather than a mask; None where none does.

    None, too, where S is a number: then runtimes compute tables once, when they read the model.
    """
    if x.shape is None or len(x.shape) != 3 or not isinstance(x.shape[1], str):
        return None
    found = [
        tensor
        for tensor in graph.gs.inputs
        if tensor.shape is not None
        and list(tensor.shape) == list(x.shape[:2])
        and np.dtype(tensor.dtype) in (np.int32, np.int64)
    ]
    return next((tensor for tensor in found if _is_looked_up(tensor)), found[0] if found else None)


def _is_looked_up(tensor: gs.Tensor) -> bool:
    return any(node.op in ("Gather", EMBEDDING) and node.inputs[1] is tensor for node in tensor.outputs)


def _tables(graph: FusionGraph, rotary: Rotary, x: gs.Tensor, tokens: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor]:
    """By an op of ours: one launch, where standard operators take seven."""
    shape = [x.shape[1], len(rotary.frequencies)]
    made = tuple(graph.variable(f"rotary_{name}", x.dtype, shape) for name in ("cos", "sin"))
    frequencies = graph.constant("rotary_frequencies", rotary.frequencies.astype(np.float32))
    like = graph.cast(graph.constant("rotary_type", np.zeros((), np.float32)), x.dtype)
    angle = {"angle": "quotient" if rotary.divided else "product", "scaling": float(rotary.amplitude)}
    graph.add_node(TABLES.name, [tokens, frequencies, like], list(made), DOMAIN, **angle, **NODE_MARKERS)
    return made


def _angles(graph: FusionGraph, rotary: Rotary, x: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor]:
    length, half = x.shape[1], len(rotary.frequencies)

    def node(op: str, inputs: list[gs.Tensor], dtype, shape, **attributes) -> gs.Tensor:
        result = graph.variable(f"rotary_{op.lower()}", np.dtype(dtype), shape)
        graph.add_node(op, inputs, [result], **attributes)
        return result

    def number(value, dtype=np.int64) -> gs.Tensor:
        return graph.constant("rotary_value", np.array(value, dtype))

    sizes = node("Shape", [x], np.int64, [3])
    if rotary.tables is None:
        size = node("Gather", [sizes, number(1)], np.int64, [], axis=0)
        places = node("Range", [number(0), size, number(1)], np.int64, [length])
        column = node("Cast", [places], np.float32, [length], to=data_type(np.dtype(np.float32)))
        column = node("Unsqueeze", [column, number([1])], np.float32, [length, 1])
        angle = node(
            "Div" if rotary.divided else "Mul",
            [column, number(rotary.frequencies[None], np.float32)],
            np.float32,
            [length, half],
        )
        found = [node(op, [angle], np.float32, [length, half]) for op in ("Cos", "Sin")]
    else:
        end = node("Gather", [sizes, number([1])], np.int64, [1], axis=0)
        tables = [number(table, np.float32) for table in rotary.tables]
        found = [node("Slice", [t, number([0]), end, number([0])], np.float32, [length, half]) for t in tables]
    if rotary.amplitude != 1:
        found = [node("Mul", [f, number(rotary.amplitude, np.float32)], np.float32, [length, half]) for f in found]
    if x.dtype != np.float32:
        found = [node("Cast", [f], x.dtype, [length, half], to=data_type(x.dtype)) for f in found]
    return tuple(found)


def _check(sources: dict[str, _Source], found: Core) -> None:
    q, k, v = (sources[name] for name in "qkv")
    x = q.linear.inputs[0]
    for name, source in sources.items():
        if source.linear.inputs[0] is not x:
            raise NoMatch(source.linear, f"{name.upper()} projects another tensor", wanted=f"'{x.name}', as Q does")
        scale = abs(source.heads.scale)
        if not _LEAST_SCALE <= scale <= _LARGEST_SCALE or not _LEAST_SCALE <= abs(found.scale) <= _LARGEST_SCALE:
            raise NoMatch(source.linear, f"scales of {scale:g} and {found.scale:g}", wanted="1e-4 to 1e4")
    if found.scale * q.heads.scale * k.heads.scale < 0:
        raise NoMatch(found.nodes[0], "scales the scores by a negative number", wanted="a positive one")
    if v.heads.scale != 1 or v.heads.rotary is not None or v.norm is not None:
        raise NoMatch(v.linear, "V is scaled, rotated or normalised", wanted="V as it is projected")
    if (k.norm is None) != (q.norm is None) or (q.norm is not None and k.norm.epsilon != q.norm.epsilon):
        raise NoMatch(k.linear, "Q and K are normalised in two ways", wanted="one")
    if q.norm is not None and not 0 <= q.norm.epsilon <= 1:
        raise NoMatch(q.linear, f"epsilon of Q's norm is {q.norm.epsilon:g}", wanted="0 to 1")
    rotary = q.heads.rotary
    if (rotary is None) != (k.heads.rotary is None) or (rotary is not None and not rotary.same_as(k.heads.rotary)):
        raise NoMatch(k.linear, f"Q and K are rotated in two ways: {rotary} and {k.heads.rotary}", wanted="one")
    if q.heads.shared != 1 or k.heads.shared != v.heads.shared or k.heads.columns.shape != v.heads.columns.shape:
        raise NoMatch(k.linear, "heads of Q, K and V do not go together", wanted="as many of K as of V")
    if q.heads.columns.shape != (k.heads.shared * len(k.heads.columns), k.heads.columns.shape[1]):
        raise NoMatch(k.linear, f"K has heads x size {k.heads.columns.shape}", wanted=f"{q.heads.columns.shape}, as Q")
    columns = Counter((id(s.linear), int(c)) for s in sources.values() for c in s.heads.columns.flat)
    if max(columns.values()) > 1:
        raise NoMatch(q.linear, "Q, K and V share columns of a projection", wanted="three projections")


def _source(graph: FusionGraph, tensor: gs.Tensor, layout: str, what: str) -> tuple[_Source, list[gs.Node]]:
    base, nodes = base_of(tensor, what)
    node, norm, outer = producer(base), None, None
    if node.op == RMS_NORM:
        outer = heads(graph.elements, tensor, base, layout, what)
        size = outer.columns.shape[1]
        if not np.array_equal(outer.columns.ravel(), np.arange(outer.columns.size)):
            raise NoMatch(node, f"arranges {what} anew behind its norm", wanted="heads as they are normalised")
        norm = HeadNorm(node.inputs[1], node.attrs["epsilon"])
        by_sequence = base.shape is not None and base.shape[1] != len(outer.columns)
        tensor, layout = node.inputs[0], "bshd" if by_sequence else "bhsd"
        below, more = base_of(tensor, what)
        nodes, base, node = [*nodes, node, *more], below, producer(below)
        if node.op != LINEAR or norm.gamma.shape != (size,):
            raise NoMatch(node, f"{what} is normalised twice", wanted="one norm of each head")
    found = heads(graph.elements, tensor, base, layout, what)
    if outer is not None:
        if found.rotary is not None or found.scale != 1 or found.shared != 1 or outer.added is not None:
            raise NoMatch(node, f"{what} is rotated or scaled before its norm", wanted="the projection normalised")
        found = Heads(base, found.columns, outer.scale, outer.rotary, outer.shared, found.added)
    return _Source(node, found, norm), [*nodes, node]
