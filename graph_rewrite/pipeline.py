"""The fusion pass: normalise, fuse by the op descriptions, put back what is left, attach functions."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
import onnx_graphsurgeon as gs

from bertfuse.errors import BertfuseError, FusionError
from bertfuse.files import check_target
from bertfuse.garbage import only_new_garbage

from . import (
    eight_bit,
    functions,
    io,
    local_functions,
    lower,
    passes,
    precision,
    quantization,
    residual_norms,
    rms_norms,
    same_shapes,
    validate,
)
from .account import Credit, Survey, credit, in_order
from .dialect.pattern import patterns
from .expected import expectations
from .graph import FusionGraph
from .match import Match, is_op, match
from .nodes import NoMatch
from .normalize import NORMALIZERS, clutter, quantized
from .ops import FAMILY_OPS, OPS
from .options import LEVELS, FuseOptions
from .result import FusionResult
from .spec import DOMAIN, NODE_MARKERS, PADDING_KEY, OpSpec
from .to_onnx import to_model
from .weights import Weight

MIN_OPSET = 13

Progress = Callable[[str], None]


@only_new_garbage()
def fuse(
    model: onnx.ModelProto | str | os.PathLike[str],
    options: FuseOptions | None = None,
    progress: Progress | None = None,
    **given: Any,
) -> FusionResult:
    """Fuse a model in memory, or one read from a path; the model given is not changed.

    `options` may be given by name: fuse(model, dtype="fp16"). `progress` is called with the name of each step as it
    begins.

    Raises FusionError for a file or model that cannot be read or comes out invalid, BertfuseError for a wrong option.
    """
    options = replace(options or FuseOptions(), **given)
    original = model if isinstance(model, onnx.ModelProto) else io.load_model(model)
    skeleton, weights = io.split(original)
    result, fused_weights = _fuse(skeleton, weights, options, progress or (lambda step: None))
    result.model = original if fused_weights is None else io.join(result.model, fused_weights)
    return result


@only_new_garbage()
def fuse_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    options: FuseOptions | None = None,
    progress: Progress | None = None,
    **given: Any,
) -> FusionResult:
    """Fuse file to file; `model` of the result has no weights. Each large weight is in memory once, and written once.

    A model in which nothing is fused is written as it was. Options and errors as for `fuse`.
    """
    options = replace(options or FuseOptions(), **given)
    check_target(target, onnx_file=True)
    report = progress or (lambda step: None)
    report("read")
    skeleton, weights = io.open_model(source)
    result, fused_weights = _fuse(skeleton, weights, options, report)
    if fused_weights is not None:
        # Transposed and packed weights hold what they are made of; nothing else may, the graph's cycles neither.
        weights = fused_weights
        gc.collect()
    report("write")
    io.write(result.model, weights, target)
    return result


@only_new_garbage()
def explain(
    model: onnx.ModelProto | str | os.PathLike[str],
    options: FuseOptions | None = None,
    progress: Progress | None = None,
    **given: Any,
) -> FusionResult:
    """What fusing a model in memory or at a path would do, op by op; nothing is written, `model` has no weights.

    Options and errors as for `fuse`; the model's types stay.
    """
    options = FuseOptions(**given) if options is None else replace(options, **given)
    options = replace(options, functions=False, dtype=None)
    skeleton, weights = io.split(model) if isinstance(model, onnx.ModelProto) else io.open_model(model)
    return _fuse(skeleton, weights, options, progress or (lambda step: None))[0]


def _fuse(
    skeleton: onnx.ModelProto,
    weights: dict[str, Weight],
    options: FuseOptions,
    progress: Progress,
) -> tuple[FusionResult, dict[str, Weight] | None]:
    """The fused skeleton and its weights; None for the weights when nothing was fused and the skeleton is unchanged."""
    before = count_nodes(skeleton)
    padding = options.padding
    untouched = "left as it is" + (f", not converted to {options.dtype}" if options.dtype else "")
    present = Counter(node.op_type for node in skeleton.graph.node if node.domain == DOMAIN)
    if present:
        message = f"the model holds bertfuse ops already: {untouched}"
        found = {op: count for op, count in present.items() if op not in OPS or not OPS[op].by_pass}
        reports = passes.nothing_done(padding, "the model holds bertfuse ops already")
        return FusionResult(skeleton, found, dict(found), [], (before, before), [message], passes=reports), None
    opset = next((o.version for o in skeleton.opset_import if o.domain in ("", "ai.onnx")), 0)
    if opset < MIN_OPSET:
        message = f"opset {opset} is older than {MIN_OPSET}: {untouched}; export the model again with a newer opset"
        reports = passes.nothing_done(padding, f"opset {opset} is older than {MIN_OPSET}")
        return FusionResult(skeleton, {}, {}, [], (before, before), [message], passes=reports), None
    validate.check(skeleton, weights)
    if function := local_functions.ambiguous(skeleton):
        message = f"the model defines {function} itself, which runtimes may have, too: {untouched}; rename the function"
        reports = passes.nothing_done(padding, f"the model defines {function} itself")
        return FusionResult(skeleton, {}, {}, [], (before, before), [message], passes=reports), None
    given, skeleton = skeleton, local_functions.inlined(skeleton)
    progress("infer shapes")
    graph = _import(skeleton, weights)
    graph.families = options.level == "full"
    clutter.remove(graph)
    quantized.fold_vectors(graph)
    survey = Survey(graph, expectations(graph, options.level))
    progress("normalise")
    _normalize(graph)
    progress("fuse")
    credits = _fuse_ops(graph, [*_variants(graph), *(OPS[name] for name in LEVELS[options.level])])
    if graph.families:
        credits |= residual_norms.write(graph)
        credits |= rms_norms.write(graph)
    fused = in_order(Counter(credit.spec.name for credit in credits.values()))
    expected, parts, layers = survey.account(graph, credits)
    result = FusionResult(
        given, fused, expected, [part.miss for part in parts if part.miss], parts=parts, layers=layers
    )
    theirs = _optimized_already(skeleton)
    if theirs:
        result.messages.append(
            f"ONNX Runtime's optimizer was here and fused {theirs} for itself, which cannot be fused again; "
            "give the model from before, or one optimised at the basic level"
        )
    if not fused:
        result.nodes = (before, before)
        result.passes = passes.nothing_done(padding, "nothing was fused")
        why = "nothing matched" if sum(expected.values()) else "nothing to fuse: no BERT-like encoder layer found"
        result.messages.append(f"{why}, {untouched}")
        return result, None
    lower.leftovers(graph)
    eight_bit.write(graph)
    graph.finish()
    result.passes = passes.run(graph, options.level, padding, options.output_rows)
    if options.dtype is not None:
        precision.convert(graph, options.dtype)
    if not graph.interface_changed:
        same_shapes.check(graph)
    progress("write functions")
    model, fused_weights, data_types = to_model(graph, skeleton)
    if any(report.changes_padding and report.done for report in result.passes):
        onnx.helper.set_model_props(
            model, {entry.key: entry.value for entry in model.metadata_props} | {PADDING_KEY: padding}
        )
    quantization.say_what_is(model)
    functions.import_domain(model)
    whole = model
    if not options.functions:  # onnx would take every fused op for an error
        whole = onnx.ModelProto()
        whole.CopyFrom(model)
    functions.attach(whole, data_types)
    validate.check_fused(whole, skeleton, lambda: _folded(skeleton, weights))
    result.model, result.nodes = model, (before, count_nodes(model))
    return result, fused_weights


def _variants(graph: FusionGraph) -> list[OpSpec]:
    later = (residual_norms.OP, rms_norms.OP)
    found = [spec for spec in FAMILY_OPS.values() if spec not in later and not spec.by_pass]
    return found if graph.families else []


def _import(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> FusionGraph:
    try:
        return FusionGraph(skeleton, weights)
    except BertfuseError:
        raise
    except Exception as error:  # onnx-graphsurgeon asserts and indexes its way through a graph that contradicts itself
        raise FusionError(f"the graph cannot be read: {error}; run onnx.checker on it") from error


def _folded(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> onnx.ModelProto:
    """The original without its clutter, nothing fused."""
    graph = _import(skeleton, weights)
    clutter.remove(graph)
    graph.finish()
    return to_model(graph, skeleton)[0]


def _optimized_already(skeleton: onnx.ModelProto) -> str:
    """ONNX Runtime's own fused ops in the graph, in words."""
    found = {node.op_type for node in skeleton.graph.node if node.domain == "com.microsoft"}
    return ", ".join(sorted(found - {"Gelu", "FastGelu"}))


def _normalize(graph: FusionGraph) -> None:
    for module in NORMALIZERS:
        for node in module.anchors(graph):
            if graph.is_live(node):
                with graph.anchored(node):
                    try:
                        module.rewrite(graph, node)
                    except NoMatch as miss:
                        op = getattr(module, "OF_OP", "")
                        graph.note_failure(node, miss, op, alone=bool(op))


def _fuse_ops(graph: FusionGraph, specs: list[OpSpec]) -> dict[int, Credit]:
    """Fuse each op wherever it matches; returns what came out at which original node, by that node's id."""
    credits: dict[int, Credit] = {}
    for spec in specs:
        roots = {pattern.root.op for pattern in patterns(spec)}
        for root in [node for node in graph.gs.nodes if any(is_op(node, op) for op in roots)]:
            if not graph.is_live(root) or not root.outputs:
                continue
            found = _first_match(graph, spec, root)
            if found is not None:
                anchor = graph.anchor(root)
                try:
                    made = _replace(graph, spec, found)
                except NoMatch as miss:
                    graph.note_failure(root, miss, spec.name)
                    continue
                if anchor is not None:
                    credits[anchor] = credit(spec, found, made)
    return credits


def _first_match(graph: FusionGraph, spec: OpSpec, root: gs.Node) -> Match | None:
    nearest: NoMatch | None = None
    for pattern in patterns(spec):
        if not is_op(root, pattern.root.op):
            continue
        try:
            return match(graph, spec, pattern, root)
        except NoMatch as miss:
            if nearest is None or miss.depth > nearest.depth:
                nearest = miss
    if nearest is not None:
        graph.note_failure(root, nearest, spec.name)
    return None


def _replace(graph: FusionGraph, spec: OpSpec, found: Match) -> gs.Node:
    inputs = [found.inputs.get(t.name) or gs.Variable.empty() for t in spec.inputs]
    while inputs and inputs[-1].is_empty():
        inputs.pop()
    attributes = {a.name: found.attributes[a.name] for a in spec.found_attributes}
    return graph.replace(found.nodes[0], spec.name, inputs, found.nodes, domain=DOMAIN, **attributes, **NODE_MARKERS)


def count_nodes(model: onnx.ModelProto) -> int:
    """Nodes of the graph that compute something."""
    return sum(node.op_type != "Constant" for node in model.graph.node)
