"""Tactics are checked before they are measured, in processes of their own; wrong ones are never chosen."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bertfuse.analysis.tuning import choose
from bertfuse.graph_rewrite.ops import MODEL_OPS
from bertfuse.qualify.draw import Draw
from bertfuse.qualify.layout import Layout
from bertfuse.qualify.measure import Measurer, problem_of
from bertfuse.qualify.problem import parse
from bertfuse.qualify.worker import Settings
from bertfuse.runtime import native
from tests.qualify.faulty import library

PROBLEM = parse("FusedGemm float32 rows=8 K=16 N=32 tactic=-1.. constant seed=1")


def measured(fault: str, folder: Path):
    with Measurer(Settings(str(library(fault, folder)), "cpu", patience=1.0)) as measurer:
        return measurer.measure(PROBLEM)


def test_the_fastest_of_right_tactics_is_chosen(tmp_path: Path) -> None:
    found = measured("none", tmp_path)
    assert not found.rejected and len(found.timings) == 3
    assert choose("p", found.timings).tactic == "plain 1"


@pytest.mark.parametrize("fault", ["segfault", "nan", "wrong", "outside", "hang", "random", "cached"])
def test_a_tactic_that_is_wrong_or_faults_is_never_chosen(fault: str, tmp_path: Path) -> None:
    """Tactic 1 would be the fastest."""
    found = measured(f"{fault}@1", tmp_path)
    if fault == "cached":  # has no tactic of its own: all are wrong
        assert set(found.rejected) == {"plain 0", "plain 1", "plain 2"} and not found.timings
        return
    assert list(found.rejected) == ["plain 1"], found
    assert sorted(timing[0] for timing in found.timings) == ["plain 0", "plain 2"]
    assert choose("p", found.timings).tactic == "plain 2"


def test_where_the_default_is_wrong_another_is_chosen(tmp_path: Path) -> None:
    found = measured("segfault@0", tmp_path)
    assert set(found.rejected) == {"plain 0"}
    assert choose("p", found.timings).tactic == "plain 1"


@pytest.mark.parametrize(
    "text",
    [
        "FusedGemm float16 rows=4x64 K=32 N=48 tactic=-1.. constant packed=256 seed=1",
        "FusedGemmLayerNorm float32 rows=3x7 K=8 N=16 tactic=-1.. packed=21 seed=1",
        "FusedAttention float16 B=3 S=7 H=64 num_heads=2 scale=0.25 tactic=-1.. without=mask packed=7x3 seed=1",
        "FusedAttention float16 B=1 S=20 H=64 num_heads=2 scale=0.25 tactic=-1.. without=mask packed=6,7,7 seed=1",
    ],
)
def test_packed_rows_stay_packed(text: str) -> None:
    """Else what is measured is another kernel, under a name that sessions look up for the packed one."""
    problem = parse(text)
    call = native.Call.of(
        *Layout(problem).tensors(1 << 20),
        [problem.attribute(attr.name) for attr in problem.spec.attributes],
        constant_inputs=(1 << 16) - 1 if problem.constant else 0,
    )
    made = problem_of(problem.op, call)
    for name in ("dtype", "leading", "without", "constant", "packed", "capacity"):
        assert getattr(made, name) == getattr(problem, name), name
    assert all(made.shape(tensor) == problem.shape(tensor) for tensor in problem.spec.inputs if problem.has(tensor))
    assert parse(str(made)) == made


def test_a_call_becomes_the_problem_that_it_is() -> None:
    """For every op: sizes, dtypes, absent inputs and attributes survive the way there and back."""
    draw, seen = Draw(3, MODEL_OPS, budget_scale=0.05), set()
    for problem in itertools.islice((p for p in draw if p.packed is None), 400):
        inputs, outputs = Layout(problem).tensors(1 << 20)
        weights = [i for i, tensor in enumerate(problem.spec.inputs) if tensor.constant and problem.has(tensor)]
        call = native.Call.of(
            inputs,
            outputs,
            [problem.attribute(attr.name) for attr in problem.spec.attributes],
            constant_inputs=sum(1 << i for i in weights) if problem.constant else 0,
            flags=native.ALLOW_TF32 if problem.tf32 else 0,
        )
        made = problem_of(problem.op, call)
        # A call without weights does not tell whether they are constant.
        for name in ("dtype", "leading", "without", *(["constant"] if weights else []), "tf32", "writes"):
            assert getattr(made, name) == getattr(problem, name), (name, problem)
        for tensor in problem.spec.inputs:
            if problem.has(tensor):
                assert made.shape(tensor) == problem.shape(tensor)
        for attr in problem.spec.attributes:
            assert made.attribute(attr.name) == pytest.approx(problem.attribute(attr.name))
        assert parse(str(made)) == made
        seen.add(problem.op)
    assert seen == set(MODEL_OPS)
