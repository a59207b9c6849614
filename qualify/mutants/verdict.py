"""One model, fused and not, on the same inputs: equal, refused, or wrong."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from bertfuse.analysis.differences import TOLERANCES
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS, FusionResult, fuse
from bertfuse.graph_rewrite.dialect.reference import MASKED_SCORE
from bertfuse.graph_rewrite.spec import DOMAIN

from .inputs import Feed

Feeds = Mapping[str, Feed]

# How often the original is computed again with its weights moved by a rounding of their type, and how many times what
# moves then a fused model may differ: a graph that amplifies a rounding says nothing of the fusion. Half precision
# rounds every intermediate result, in the original as in the fused model, and needs no sixteenfold margin: both were
# 0.03 to 0.05 from the float64 result where weights moved by a rounding made 0.02.
_MOVED = 4
_MARGIN = {"float16": 4.0, "bfloat16": 4.0}
_MARGIN_OF_SINGLES = 16.0
_ROUNDINGS = {
    onnx.TensorProto.FLOAT: 2.0**-23,
    onnx.TensorProto.DOUBLE: 2.0**-23,
    onnx.TensorProto.FLOAT16: 2.0**-11,
    onnx.TensorProto.BFLOAT16: 2.0**-8,
}
# Scores that are rounded by this are none any more.
_LOST = 0.1


@dataclass
class Verdict:
    """What became of one model.

    outcome   "equal": fused, and the same; "refused": nothing was fused, or fuse() says why it cannot be; "invalid":
              the model itself does not load, or runs with none of the inputs; "wrong": it differs, does not load or
              does not run once fused; "crashed": fuse() raised something else than a BertfuseError
    complete  whether everything that fuse() expected was fused
    text      one line: what is wrong, or why the model is invalid or was refused
    feed      the name of the inputs that show it
    excused   inputs whose difference is a documented one, and why
    """

    outcome: str
    text: str = ""
    feed: str = ""
    complete: bool = False
    fused: dict[str, int] = field(default_factory=dict)
    ran: int = 0
    excused: dict[str, str] = field(default_factory=dict)
    result: FusionResult | None = None

    @property
    def bad(self) -> bool:
        """Whether this is a defect of bertfuse."""
        return self.outcome in ("wrong", "crashed")


_NOTHING = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def session(model: onnx.ModelProto, optimised=_NOTHING) -> onnxruntime.InferenceSession:
    """A session with one thread and, unless asked for, without optimisations: what the file says, and nothing else."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = optimised
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def judge(model: onnx.ModelProto, feeds: Feeds, level: str = "full", invalid: bool = True) -> Verdict:
    """Fuses `model` and compares both in ONNX Runtime, the fused one by its op bodies, over all of `feeds`.

    A model that does not run is fused, too, for what fuse() may raise; without `invalid` it is left at that.
    """
    try:
        original = session(model)
    except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
        text = f"does not load: {one_line(error)}"
        return _of_an_invalid(model, level, text) if invalid else Verdict("invalid", text)
    wanted = {name: outputs for name, feed in feeds.items() if (outputs := _run(original, feed)) is not None}
    if not wanted:
        text = "runs with none of the inputs"
        return _of_an_invalid(model, level, text) if invalid else Verdict("invalid", text)
    try:
        result = fuse(model, level=level)
    except BertfuseError as error:
        outcome = "wrong" if "fused model is not valid" in str(error) else "refused"
        return Verdict(outcome, one_line(error), ran=len(wanted))
    except Exception as error:
        return Verdict("crashed", f"fuse: {type(error).__name__}: {one_line(error)}", ran=len(wanted))
    verdict = Verdict("equal", "", "", result.complete, dict(result.fused), len(wanted), {}, result)
    if not result.fused:
        verdict.outcome, verdict.text = "refused", "; ".join(map(str, result.misses[:1]))
        return verdict
    try:
        fused = session(result.model)
    except Exception as error:
        verdict.outcome, verdict.text = "wrong", f"the fused model does not load: {one_line(error)}"
        return verdict
    moved: list[onnxruntime.InferenceSession] = []
    for name, expected in wanted.items():
        text = _compared(model, result.model, original, fused, feeds[name], expected, moved)
        if text.startswith(_NOT_RUN) and fails_optimised(model, feeds[name]):
            text = _EXCUSED + "the original fails, too, once ONNX Runtime optimises it"
        elif text and not text.startswith(_EXCUSED) and misdeclares(model, feeds[name]):
            text = _EXCUSED + "shapes that the model declares are not those that it computes"
        if text.startswith(_EXCUSED):
            verdict.excused[name] = text.removeprefix(_EXCUSED)
        elif text:
            verdict.outcome, verdict.feed, verdict.text = "wrong", name, text
            return verdict
    return verdict


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _of_an_invalid(model: onnx.ModelProto, level: str, text: str) -> Verdict:
    """Nothing can be compared; fuse() has to survive it all the same."""
    try:
        fuse(model, level=level)
    except BertfuseError:
        pass
    except Exception as error:
        return Verdict("crashed", f"fuse: {type(error).__name__}: {one_line(error)} (the model {text})")
    return Verdict("invalid", text)


def _run(runner: onnxruntime.InferenceSession, feed: Feed) -> list[np.ndarray] | None:
    try:
        return runner.run(None, {name: feed[name] for name in _taken(runner) if name in feed})
    except Exception:
        return None


def _taken(runner: onnxruntime.InferenceSession) -> list[str]:
    """Inputs, and initialisers that are inputs, too."""
    return [value.name for value in (*runner.get_inputs(), *runner.get_overridable_initializers())]


_EXCUSED = "excused: "
_NOT_RUN = "the fused model does not run: "


def _compared(model, fused_model, original, fused, feed, expected, moved) -> str:
    """What differs; "" for nothing; "excused: why" where it is documented to."""
    try:
        # What overrides an initialiser, the fused model must take as well.
        given = fused.run(None, {name: feed[name] for name in _taken(original) if name in feed})
    except Exception as error:
        return f"{_NOT_RUN}{one_line(error)}"
    names = [output.name for output in model.graph.output]
    text = _difference(names, expected, given, [0.0] * len(names))
    if not text or "is now" in text:
        return text
    lost, hidden = _lost_of_scores(model, fused_model, feed), _rows_without_keys(model, fused_model, feed)
    removed = lost >= _LOST if hidden is None or len(lost) != len(hidden) else (lost >= _LOST) | hidden
    removed = hidden if hidden is not None and len(removed) == 1 else removed
    if removed.any() or lost.any():
        finite = hidden is None or not hidden.any() or _is_finite(_without(given, lost >= _LOST))
        first, second = (_without(arrays, removed) for arrays in (expected, given))
        rounded = [_by_row(a, lost[~removed] if len(lost) == len(removed) else lost) for a in first]
        # An output need not have a row for each text: with no other row, all of it comes from such rows.
        if finite and (removed.all() or not _difference(names, first, second, rounded)):
            why = "a mask of more than 1 rounds the scores" if lost.any() else "whose mask hides every key"
            return f"{_EXCUSED}rows {'in which ' if lost.any() else ''}{why}"
        if _agree_on_the_rest(names, original, fused, feed, removed):
            return _EXCUSED + "rows whose mask hides every key, in a model that joins rows"
        expected, given = first, second
    if not moved:
        moved.extend(_moved(model))
    slack = _slack(moved, feed, expected, removed if removed.any() else None)
    if slack is not None and not _difference(names, expected, given, slack):
        return _EXCUSED + "the model amplifies roundings"
    return _difference(names, expected, given, [0.0] * len(names))


def fails_optimised(model: onnx.ModelProto, feed: Feed) -> bool:
    """Whether the model fails on inputs with which it runs where ONNX Runtime does not optimise it.

    Of a Concat with an empty input it does not compare the other dimensions; what the result has too much of is
    whatever was in that memory. An index from there is out of range in one run and not in another. (Values that differ
    are no excuse: ONNX Runtime's own fusions may be what is wrong, in the same place as ours.)
    """
    try:
        runner = session(model, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL)
    except Exception:
        return True
    return _run(runner, feed) is None


def misdeclares(model: onnx.ModelProto, feed: Feed) -> bool:
    """Whether a tensor of the graph has another shape with these inputs than the file says, as fuse() takes it."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    made = {name for node in probe.graph.node for name in node.output} - {value.name for value in probe.graph.output}
    declared = [v for v in probe.graph.value_info if v.name in made and v.type.tensor_type.HasField("shape")]
    probe.graph.output.extend(declared)
    try:
        found = session(probe).run([value.name for value in declared], feed) if declared else []
    except Exception:
        return False
    sizes = {
        dim.dim_param: size
        for value in model.graph.input
        if value.name in feed
        for dim, size in zip(value.type.tensor_type.shape.dim, feed[value.name].shape, strict=False)
        if dim.dim_param
    }
    for value, array in zip(declared, found, strict=True):
        dims = value.type.tensor_type.shape.dim
        said = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param) for d in dims]
        if len(said) != array.ndim or any(n not in (None, size) for n, size in zip(said, array.shape, strict=True)):
            return True
    return False


def _agree_on_the_rest(names, original, fused, feed, removed: np.ndarray) -> bool:
    """Whether both models give the same where the removed rows are not fed at all."""
    if not removed.any() or removed.all():
        return False
    rest = {name: a[~removed] if a.ndim and len(a) == len(removed) else a for name, a in feed.items()}
    expected, given = _run(original, rest), _run(fused, rest)
    return expected is not None and given is not None and not _difference(names, expected, given, [0.0] * len(names))


def _is_finite(arrays: list[np.ndarray]) -> bool:
    return all(np.isfinite(a).all() for a in arrays if a.dtype.kind == "f")


def _difference(names: list[str], expected: list[np.ndarray], given: list[np.ndarray], slack: list) -> str:
    for name, a, b, more in zip(names, expected, given, slack, strict=True):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            continue  # sequences and optionals: no output that fusion touches
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"'{name}' is now {b.dtype} {list(b.shape)}, was {a.dtype} {list(a.shape)}"
        if a.dtype.kind not in "fV" or not a.size:
            if not np.array_equal(a, b):
                return f"'{name}' differs: {np.count_nonzero(a != b)} of {a.size} values"
            continue
        atol, rtol = TOLERANCES.get(str(a.dtype), TOLERANCES["float32"])
        x, y = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf))
        allowed = atol + rtol * np.where(np.isfinite(x), np.abs(x), 0.0) + more
        wrong = ~(gap <= allowed)
        if wrong.any():
            at = np.unravel_index(int(np.argmax(np.where(wrong, np.nan_to_num(gap, nan=np.inf), -1))), gap.shape)
            place = [int(i) for i in at]
            return f"'{name}' differs at {place}: {x[at]:.6g} and fused {y[at]:.6g}; {wrong.sum()} of {x.size} values"
    return ""


def _lost_of_scores(model: onnx.ModelProto, fused_model: onnx.ModelProto, feed: Feed) -> np.ndarray:
    """[B]: by how much a row's scores are rounded, of which the mask is more than 1 and lifts keys.

    The original adds them to so large a number; beside 1e9 nothing of them is left. The fused model keeps them.
    """
    known = {node.name for node in model.graph.node}
    reduces = [n for n in fused_model.graph.node if n.op_type in ("ReduceMax", "ReduceMin") and n.name not in known]
    divisors = {node.input[1] for node in model.graph.node if node.op_type == "Div"}
    factors = [1.0, 1.0]
    for tensor in model.graph.initializer if reduces else ():
        if np.prod(tensor.dims) == 1 and (value := numpy_helper.to_array(tensor)).dtype.kind == "f" and value.any():
            number = abs(float(value.reshape(())))
            factors.append(1 / number if tensor.name in divisors else number)
    largest = math.prod(sorted(factors)[-2:])  # of the mask, and of the scores with it
    lost = np.zeros(1)
    for mask in _inner(fused_model, {node.input[0] for node in reduces}, feed) or ():
        if mask.size and lost.size in (1, len(mask)):
            mask = mask.reshape(len(mask), -1).astype(np.float64)
            numbers, lifts = np.abs(mask).max(axis=1), (mask.max(axis=1) > 1) | (mask.min(axis=1) < 0)
            lost = np.maximum(lost, np.where(lifts, numbers * largest * _ROUNDINGS[onnx.TensorProto.FLOAT], 0.0))
    return lost


def _inner(model: onnx.ModelProto, names: Collection[str], feed: Feed) -> list[np.ndarray] | None:
    """Inner tensors of a model that is run on these inputs; None where it does not run, or nothing is asked for."""
    inputs = {value.name for value in model.graph.input}
    asked = [name for name in names if name not in inputs]
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
    found = _run(session(copy), feed) if asked else []
    return None if found is None else [*found, *(feed[name] for name in names if name in inputs)]


def _by_row(expected: np.ndarray, lost: np.ndarray) -> np.ndarray | float:
    """What an output may differ by where weights are wrong by `lost` [B]."""
    if expected.ndim == 0 or len(expected) != len(lost) or expected.dtype.kind != "f":
        return 0.0
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0)))
    return (_MARGIN_OF_SINGLES * scale * lost).reshape(-1, *[1] * (expected.ndim - 1))


def _rows_without_keys(model: onnx.ModelProto, fused_model: onnx.ModelProto, feed: Feed) -> np.ndarray | None:
    """[B] of bool: rows in which what some fused attention is given for a mask hides every key. None without one."""
    index = OPS["FusedAttention"].input_index("mask")
    masks = {
        node.input[index]
        for node in fused_model.graph.node
        if node.domain == DOMAIN and node.op_type == "FusedAttention" and len(node.input) > index and node.input[index]
    }
    # Attention behind AddQKVBias is spelled out, its mask a condition of a Where that the model did not have.
    known = {name for node in model.graph.node for name in node.output}
    least = {t.name for t in fused_model.graph.initializer if not t.dims and numpy_helper.to_array(t) == MASKED_SCORE}
    for node in fused_model.graph.node:
        if node.op_type == "Where" and node.input[2] in least and node.output[0] not in known:
            masks.add(node.input[0])
    if not masks:
        return None
    found = _inner(fused_model, masks, feed)
    if found is None or len({len(mask) for mask in found}) != 1:
        return None
    return np.any([~(mask != 0).any(axis=tuple(range(1, mask.ndim))) for mask in found], axis=0)


def _without(arrays: list[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    """Without these rows of the batch; a row of an array may be several of the mask's (sequences cut in pieces)."""
    kept = []
    for a in arrays:
        fits = a.ndim > 0 and len(a) > 0 and len(rows) % len(a) == 0
        kept.append(a[~rows.reshape(len(a), -1).any(axis=1)] if fits else a)
    return kept


def _moved(model: onnx.ModelProto) -> Iterator[onnxruntime.InferenceSession]:
    """The model with every weight moved by about one rounding, each time another way."""
    for seed in range(_MOVED):
        random = np.random.default_rng(seed)
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for tensor in copy.graph.initializer:
            if tensor.data_type in _ROUNDINGS and np.prod(tensor.dims) >= 8:
                values = numpy_helper.to_array(tensor)
                factors = 1 + _ROUNDINGS[tensor.data_type] * random.choice([-2, -1, 1, 2], values.shape)
                tensor.CopyFrom(numpy_helper.from_array((values * factors).astype(values.dtype), tensor.name))
        yield session(copy)


def _slack(moved, feed: Feed, expected: list[np.ndarray], rows: np.ndarray | None) -> list | None:
    """How far each output may be off, by how it moves with the weights.

    Infinitely where it is no longer the same kind of number, and in a row of which not one digit stays: what is left of
    h - h by rounding, brought to length 1, is anything, or NaN.
    """
    slack = [np.zeros(a.shape) for a in expected]
    for runner in moved:
        outputs = _run(runner, feed)
        if outputs is None:
            return None
        outputs = outputs if rows is None else _without(outputs, rows)
        for index, (a, b) in enumerate(zip(expected, outputs, strict=True)):
            if a.dtype.kind != "f":
                continue
            margin = _MARGIN.get(str(a.dtype), _MARGIN_OF_SINGLES)
            x, y = a.astype(np.float64), b.astype(np.float64)
            with np.errstate(invalid="ignore"):
                gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
            slack[index] = np.maximum(slack[index], margin * np.nan_to_num(gap, nan=np.inf))
    return [_without_digits(a, more) for a, more in zip(expected, slack, strict=True)]


_ROW = 8  # numbers, at least: one or two that are nearly 0 say nothing of those beside them


def _without_digits(expected: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """The slack, infinite in each row (along the last axis) that may be off by as much as its largest number."""
    if expected.dtype.kind != "f" or expected.ndim == 0 or expected.shape[-1] < _ROW:
        return slack
    sizes = np.abs(expected.astype(np.float64)).max(axis=-1, keepdims=True, initial=0.0)
    most = slack.max(axis=-1, keepdims=True, initial=0.0)
    return np.where((most >= sizes) & (most > 0), np.inf, slack)
