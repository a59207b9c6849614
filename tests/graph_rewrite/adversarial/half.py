"""A model fused and converted to half precision, beside itself in float32."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import onnx

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse
from bertfuse.measuring.differences import TOLERANCES
from bertfuse.qualify.mutants.inputs import MASKS
from bertfuse.qualify.mutants.sessions import session
from bertfuse.qualify.mutants.verdict import Feed, Verdict, one_line

from .build import Case

_RARELY = 2e-3  # of a few values in thousands the weights moved by chance less than float16 rounds


def judge_in_half(case: Case, feeds: Mapping[str, Feed]) -> Verdict:
    """As `judge`, of `fuse(..., dtype="fp16")`: outputs are of order 1, and keep two digits."""
    original = session(case.model)
    try:
        result = fuse(case.model, dtype=case.dtype)
    except BertfuseError as error:
        return Verdict("refused", one_line(error))
    except Exception as error:
        return Verdict("crashed", f"fuse: {type(error).__name__}: {one_line(error)}")
    if not result.fused:
        return Verdict("refused", str(result.misses[:1]), result=result)
    verdict = Verdict("equal", fused=dict(result.fused), complete=result.complete, result=result)
    try:
        converted = session(result.model)
    except Exception as error:
        return Verdict("wrong", f"the converted model does not load: {one_line(error)}", result=result)
    atol, rtol = TOLERANCES["float16"]
    rounded = [session(_rounded(case.model, seed)) for seed in range(3)]
    for name, feed in feeds.items():
        if name.rsplit(" ", 2)[0] not in MASKS or name.startswith("empty"):
            continue  # what a float16 model does with odd masks is another question
        try:
            wanted = original.run(None, {v.name: feed[v.name] for v in original.get_inputs()})
        except Exception:
            continue
        verdict.ran += 1
        taken = {v.name: _typed(feed[v.name], v.type) for v in converted.get_inputs()}
        try:
            given = converted.run(None, taken)
        except Exception as error:
            text = f"the converted model does not run: {one_line(error)}"
            return Verdict("wrong", text, name, fused=verdict.fused, ran=verdict.ran, result=result)
        for outputs, (a, b) in enumerate(zip(wanted, given, strict=True)):
            gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
            wrong = ~(gap <= atol + rtol * np.abs(a) + 8 * _moves(rounded, feed, a, outputs))
            if wrong.mean() > _RARELY:
                at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
                text = f"{a[at]:.5g} is {b[at]:.5g} in float16 at {[int(i) for i in at]}; {wrong.sum()} of {a.size}"
                return Verdict("wrong", text, name, fused=verdict.fused, ran=verdict.ran, result=result)
    if not verdict.ran:
        verdict.outcome = "invalid"
    return verdict


def _rounded(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with its large weights moved by a rounding of float16; frequencies and slopes are as they were."""
    random = np.random.default_rng(seed)
    copy = deepcopy(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) >= 64:
            values = onnx.numpy_helper.to_array(tensor)
            moved = values * (1 + random.uniform(-1, 1, values.shape) * 2.0**-11)
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved.astype(np.float32), tensor.name))
    return copy


def _moves(rounded, feed: Feed, wanted: np.ndarray, output: int) -> np.ndarray:
    """How far the output moves with roundings of weights and inputs: that much is float16's, and no fault."""
    gaps, random = np.zeros(wanted.shape), np.random.default_rng(0)
    for runner in rounded:
        moved = {
            n: (a * (1 + random.uniform(-1, 1, a.shape) * 2.0**-11)).astype(a.dtype) if a.dtype == np.float32 else a
            for n, a in feed.items()
        }
        result = runner.run(None, {v.name: moved[v.name] for v in runner.get_inputs()})[output]
        gaps = np.maximum(gaps, np.abs(result.astype(np.float64) - wanted))
    return gaps


def _typed(array: np.ndarray, kind: str) -> np.ndarray:
    return array.astype(np.float16) if kind == "tensor(float16)" else array
