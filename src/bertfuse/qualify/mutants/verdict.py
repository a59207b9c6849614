"""One model, fused and not, on the same inputs: equal, refused, or wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np
import onnx
import onnxruntime

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import FusionResult, fuse
from bertfuse.measuring.differences import TOLERANCES

from .doubles import Doubles, in_doubles, own_error, same_numbers
from .excuses import (
    by_row,
    differs_from_declared_sizes,
    either,
    fails_optimised,
    lost_of_scores,
    moved_weights,
    rows_without_keys,
    slack_of,
    without,
    wrapped_products,
)
from .inputs import Feed
from .sessions import run, session, taken

Feeds = Mapping[str, Feed]

# Scores that are rounded by this are none any more.
_LOST = 0.1
# How often the original is computed again with its weights moved by a rounding of their type: more often where the
# first few say too little. Of h - h brought to length 1, four may all give what the original gave by chance; where
# there are a thousand such rows, so may sixteen.
_MOVED = (4, 16, 64)
_LARGE = 1e15  # its square is 1e30, and sums of products of such numbers with others need not fit in float32


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


def judge(model: onnx.ModelProto, feeds: Feeds, level: str = "full", invalid: bool = True) -> Verdict:
    """Fuses `model` and compares both in ONNX Runtime, the fused one by its op bodies, over all of `feeds`.

    `level` is one of fuse(). A model that does not run is fused, too, for what fuse() may raise; without `invalid` it
    is left at that.
    """
    try:
        original = session(model)
    except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
        text = f"does not load: {one_line(error)}"
        return _of_an_invalid(model, level, text) if invalid else Verdict("invalid", text)
    wanted = {name: outputs for name, feed in feeds.items() if (outputs := run(original, feed)) is not None}
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
    references = _References(model, result.model)
    for name, expected in wanted.items():
        text = _compared(model, result.model, original, fused, feeds[name], expected, references)
        if text.startswith(_NOT_RUN):
            if fails_optimised(model, feeds[name]):
                text = _EXCUSED + "the original fails, too, once ONNX Runtime optimises it"
            elif differs_from_declared_sizes(model, feeds[name]):
                text = _EXCUSED + "ended, because axes of one name are of two sizes"  # docs/design.md, "Sizes"
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


_EXCUSED = "excused: "
_NOT_RUN = "the fused model does not run: "


def _compared(model, fused_model, original, fused, feed, expected, references) -> str:
    """What differs; "" for nothing; "excused: why" where it is documented to."""
    try:
        # What overrides an initialiser, the fused model must take as well.
        given = fused.run(None, {name: feed[name] for name in taken(original) if name in feed})
    except Exception as error:
        return f"{_NOT_RUN}{one_line(error)}"
    names = [output.name for output in model.graph.output]
    text = _difference(names, expected, given, [0.0] * len(names))
    if not text or "is now" in text:
        # docs/design.md, "Of names": nothing is compared where an axis is of size 0.
        nothing = text and not any(array.size for array in (*expected, *given))
        return f"{_EXCUSED}no elements" if nothing and differs_from_declared_sizes(model, feed) else text
    wrapped = wrapped_products(model, feed)
    if wrapped.any():
        first, second = (without(arrays, wrapped) for arrays in (expected, given))
        if wrapped.all() or not _difference(names, first, second, [0.0] * len(names)):
            return f"{_EXCUSED}rows in which a mask's numbers times each other are beyond their type"
    lost, hidden = lost_of_scores(model, fused_model, feed), rows_without_keys(model, fused_model, feed)
    removed = lost >= _LOST if hidden is None or len(lost) != len(hidden) else (lost >= _LOST) | hidden
    removed = hidden if hidden is not None and len(removed) == 1 else removed
    removed = either(removed, wrapped)
    if removed.any() or lost.any():
        finite = hidden is None or not hidden.any() or _is_finite(without(given, either(lost >= _LOST, wrapped)))
        first, second = (without(arrays, removed) for arrays in (expected, given))
        rounded = [by_row(a, lost[~removed] if len(lost) == len(removed) else lost) for a in first]
        # An output need not have a row for each text: with no other row, all of it comes from such rows.
        if finite and (removed.all() or not _difference(names, first, second, rounded)):
            why = "a mask of more than 1 rounds the scores" if lost.any() else "whose mask hides every key"
            return f"{_EXCUSED}rows {'in which ' if lost.any() else ''}{why}"
        if _agree_on_the_rest(names, original, fused, feed, removed):
            return _EXCUSED + "rows whose mask hides every key, in a model that joins rows"
        expected, given = first, second

    def kept(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return without(arrays, removed) if removed.any() else arrays

    for count in _MOVED:
        slack = slack_of(references.moved(count), feed, expected, removed if removed.any() else None)
        if slack is not None and not _difference(names, expected, given, slack):
            return _EXCUSED + "the model amplifies roundings"
    exact = references.original.run(feed) if references.original is not None else None
    if exact is not None and not _difference(names, expected, given, own_error(expected, kept(exact))):
        return _EXCUSED + "the original is as far from float64's results"
    if exact is not None and references.overflow(feed):
        fused_exact = references.fused.run(feed)
        if not _difference(names, expected, given, same_numbers(kept(exact), kept(fused_exact))):
            return _EXCUSED + "float32 overflows on the way, and both are the same in float64"
    return _difference(names, expected, given, [0.0] * len(names))


class _References:
    """What tells whether an original says anything; made when it is first asked for."""

    def __init__(self, model: onnx.ModelProto, fused_model: onnx.ModelProto) -> None:
        self._models = model, fused_model
        self._moves: Iterator[onnxruntime.InferenceSession] = moved_weights(model)
        self._moved: list[onnxruntime.InferenceSession] = []

    def moved(self, count: int) -> list[onnxruntime.InferenceSession]:
        self._moved.extend(islice(self._moves, max(0, count - len(self._moved))))
        return self._moved[:count]

    @cached_property
    def original(self) -> Doubles | None:
        return in_doubles(self._models[0])

    @cached_property
    def fused(self) -> Doubles | None:
        return in_doubles(self._models[1])

    def overflow(self, feed: Feed) -> bool:
        """Whether both models run in float64, and float32 has no room for some number of theirs.

        Of the fused model's alone only where the original's are large, too: a softmax without its maximum taken off
        overflows on inputs like any.
        """
        if self.original is None or self.fused is None or self.fused.run(feed) is None:
            return False
        large = self.original.largest(feed) >= _LARGE
        return self.original.overflows(feed) or (large and self.fused.overflows(feed))


def _agree_on_the_rest(names, original, fused, feed, removed: np.ndarray) -> bool:
    """Whether both models give the same where the removed rows are not fed at all."""
    if not removed.any() or removed.all():
        return False
    rest = {name: a[~removed] if a.ndim and len(a) == len(removed) else a for name, a in feed.items()}
    expected, given = run(original, rest), run(fused, rest)
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
            gap = np.where(
                (x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.nan_to_num(np.abs(x - y), nan=np.inf, posinf=np.inf)
            )
        allowed = atol + rtol * np.where(np.isfinite(x), np.abs(x), 0.0) + more
        wrong = ~(gap <= allowed)
        if wrong.any():
            at = np.unravel_index(int(np.argmax(np.where(wrong, np.nan_to_num(gap, nan=np.inf), -1))), gap.shape)
            place = [int(i) for i in at]
            return f"'{name}' differs at {place}: {x[at]:.6g} and fused {y[at]:.6g}; {wrong.sum()} of {x.size} values"
    return ""
