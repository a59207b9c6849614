"""A model fused with padding removed, and with tokens in a row, beside itself with its padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import FusionResult, fuse
from bertfuse.measuring.differences import TOLERANCES
from bertfuse.qualify.mutants.sessions import session
from bertfuse.qualify.mutants.verdict import Feed, Verdict, one_line

if TYPE_CHECKING:
    from .build import Case

SIZES = ((1, 1), (2, 4), (3, 16), (4, 4), (5, 7), (2, 20), (1, 9))
TOKENS, FIRST, POOLED = "a row for each token", "of the first token", "a row for each text"


@dataclass
class Padded:
    """What a model takes and gives, apart from the graph.

    feed     makes the inputs of a mask [B, S] of 0 and 1; `odd` asks for other values
    visible  which tokens [B, S] attention sees
    outputs  what each output is
    mixes    whether texts of a batch see each other: one without a token is then left out
    """

    feed: Callable[[np.ndarray, np.random.Generator, bool], Feed]
    visible: Callable[[Feed], np.ndarray]
    outputs: tuple[str, ...]
    mixes: bool = False


def judge_padded(case: Case, seed: int) -> Verdict:
    """Both paddings: what comes of real tokens must be what it was, or fusing says why it is not possible."""
    random = np.random.default_rng(seed)
    print(f"seed {seed}")
    feeds = {f"{batch}x{length}": _masked(case, batch, length, random) for batch, length in SIZES}
    verdicts = [_judge(case, feeds, padding) for padding in ("remove", "ragged")]
    return next((v for v in verdicts if v.bad), next((v for v in verdicts if v.outcome == "equal"), verdicts[0]))


def _masked(case: Case, batch: int, length: int, random: np.random.Generator) -> tuple[Feed, bool]:
    """Inputs, and whether they are 0/1 masks with padding on the right."""
    mask = np.zeros((batch, length), np.int64)
    right = random.random() < 0.5
    for number, row in enumerate(mask):
        # One text without padding: what hangs on the length of the batch sees the same length in both.
        end = int(random.integers(1, length + 1)) if number else length
        kind = "right" if right else random.choice(["right", "left", "holes", "empty"])
        row[:] = np.arange(length) < end
        if kind == "left":
            row[:] = row[::-1].copy()
        elif kind == "holes":
            row[:] = random.integers(0, 2, length)
        elif kind == "empty":
            row[:] = 0
    odd = not right and random.random() < 0.5
    return case.padded.feed(mask, random, odd), right


def _judge(case: Case, feeds: dict[str, tuple[Feed, bool]], padding: str) -> Verdict:
    try:
        original = session(case.model)
    except Exception as error:
        return Verdict("invalid", one_line(error))
    try:
        result = fuse(case.model, padding=padding)
    except BertfuseError as error:
        known = padding == "ragged" and "padding 'ragged' is not possible" in str(error)
        return Verdict("refused" if known else "wrong", one_line(error))
    except Exception as error:
        return Verdict("crashed", f"fuse: {type(error).__name__}: {one_line(error)}")
    done = [report for report in result.passes if report.changes_padding and report.done]
    verdict = Verdict("equal" if done else "refused", fused=dict(result.fused), result=result)
    if not done and not any(report.left for report in result.passes if report.changes_padding):
        return Verdict("wrong", f"padding is kept without a reason ({padding})", result=result)
    try:
        packed = session(result.model)
    except Exception as error:
        return Verdict("wrong", f"padding '{padding}': the model does not load: {one_line(error)}", result=result)
    for name, (feed, right) in feeds.items():
        if padding == "ragged" and not right:
            continue
        try:
            wanted = original.run(None, feed)
        except Exception:
            continue
        visible = case.padded.visible(feed)
        if case.padded.mixes and not visible.any(axis=1).all():
            continue
        verdict.ran += 1
        try:
            given = packed.run(None, _in_a_row(result, feed, visible) if padding == "ragged" else feed)
        except Exception as error:
            verdict.outcome, verdict.text, verdict.feed = "wrong", f"padding '{padding}': {one_line(error)}", name
            return verdict
        if text := _difference(case, wanted, given, visible, padding if done else "keep"):
            verdict.outcome, verdict.text, verdict.feed = "wrong", f"padding '{padding}': {text}", name
            return verdict
    if not verdict.ran:
        verdict.outcome = "invalid"
    return verdict


def _in_a_row(result: FusionResult, feed: Feed, visible: np.ndarray) -> Feed:
    types = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in _inputs(result)}
    whole = {name: array for name, array in feed.items() if name in types and array.shape == visible.shape}
    made = bertfuse.ragged({"input_ids": visible, **whole, "attention_mask": visible})
    return {name: made[name].astype(dtype) for name, dtype in types.items()}


def _inputs(result: FusionResult) -> list[onnx.ValueInfoProto]:
    return list(result.model.graph.input)


def _difference(case: Case, wanted, given, visible: np.ndarray, padding: str) -> str:
    atol, rtol = TOLERANCES["float32"]
    for number, (want, got, kind) in enumerate(zip(wanted, given, case.padded.outputs, strict=True)):
        if kind == TOKENS:
            want = want[visible]
            got = got if padding == "ragged" else got[visible]
        else:
            rows = visible[:, 0] if kind == FIRST else visible.any(axis=1)
            want, got = want[rows], got[rows]
        if want.shape != got.shape:
            return f"output {number} is {got.shape}, not {want.shape}"
        largest = max(1.0, float(np.abs(want).max(initial=0)) / 10)  # sums of large numbers round as these do
        if not np.allclose(got, want, rtol, atol * largest):
            return f"output {number} ({kind}) differs by {np.abs(got - want).max():.3g} of {np.abs(want).max():.3g}"
    return ""
