"""The hunt finds fusions that were broken on purpose, survives crashes, and finds nothing in what is."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse, pipeline
from bertfuse.qualify.mutants import hunt, judge
from bertfuse.qualify.mutants.hunting import _account
from bertfuse.qualify.mutants.minimise import smaller
from bertfuse.qualify.mutants.mutant import Mutant
from bertfuse.qualify.mutants.mutations import MUTATIONS
from bertfuse.qualify.mutants.report import Report
from bertfuse.qualify.mutants.sessions import session
from bertfuse.qualify.mutants.trial import Subject, Trial
from bertfuse.qualify.mutants.worker import trials
from tests.mutant_hunt.exports import BEYOND_BERT, EXPORTS, Export
from tests.mutant_hunt.small import parsed

# Mutants of each export in `make test`, a few seconds' worth: a budget of seconds tries none on a busy machine.
COUNT = 40
BERT = Export("bert", "feature-extraction", "dynamo", "sdpa")


def made(export: Export) -> Path:
    return export.make(Path(os.environ["BERTFUSE_TEST_MODELS"]) / "mutants")


def test_mutants_of_real_exports() -> None:
    """Exports that change with the seed, which is printed: run it again with BERTFUSE_MUTANT_SEED."""
    seed = int(os.environ.get("BERTFUSE_MUTANT_SEED", secrets.randbelow(1 << 31)))
    print(f"BERTFUSE_MUTANT_SEED={seed}")
    chosen = np.random.default_rng(seed).choice(len(EXPORTS), 3, replace=False)
    stopped = 0
    for index in chosen:
        report = hunt(made(EXPORTS[index]), count=COUNT, seed=seed)
        said = [f"{f.changes}: {f.text}" for f in report.findings]
        assert not said, f"seed {seed}, {EXPORTS[index]}: {said}"
        # A hunt in which nothing is fused, or no mutation ever stops a fusion, hunts nothing.
        assert report.outcomes["equal"] + report.outcomes["partly"], report.summary()
        stopped += report.outcomes["partly"] + report.outcomes["refused"]
    assert stopped


def _edit(monkeypatch: pytest.MonkeyPatch, change: Callable) -> None:
    """Breaks the last step of fusion: `change` is given the op's name, and its inputs and attributes to change."""
    whole = pipeline._replace

    def broken(graph, spec, found):
        change(spec.name, found.inputs, found.attributes)
        return whole(graph, spec, found)

    monkeypatch.setattr(pipeline, "_replace", broken)


def _mask_ignored(op, inputs, attributes):
    if op == "FusedAttention":
        inputs.pop("mask", None)


def _epsilon_ignored(op, inputs, attributes):
    if "epsilon" in attributes:
        attributes["epsilon"] = 1e-12


def _scale_ignored(op, inputs, attributes):
    if "scale" in attributes:
        attributes["scale"] = 8**-0.5


def _gelu_ignored(op, inputs, attributes):
    if "approximate" in attributes:
        attributes["approximate"] = "none"


def _heads_exchanged(op, inputs, attributes):
    if "num_heads" in attributes:
        attributes["num_heads"] = 1


def _residual_of_the_input(op, inputs, attributes):
    """Right for what exporters write, wrong for a residual of something else."""
    if op == "FusedGemmLayerNorm" and inputs["residual"].shape == inputs["x"].shape:
        inputs["residual"] = inputs["x"]


BROKEN = (
    _mask_ignored, _epsilon_ignored, _scale_ignored, _gelu_ignored, _heads_exchanged, _residual_of_the_input,
)  # fmt: skip


@pytest.mark.parametrize("change", BROKEN, ids=lambda f: f.__name__.strip("_"))
def test_a_broken_fusion_is_found(change: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the first and the last two are right for the model as it is: only mutants tell."""
    _edit(monkeypatch, change)
    subject = Subject(onnx.load(made(BERT)), seed=25)
    as_it_is = judge(subject.model, subject.feeds(subject.model, 0))
    assert as_it_is.bad or any(subject.tried(number, patience=0).verdict.bad for number in range(150))


def _window_off_by_one(op, inputs, attributes):
    if attributes.get("window_left", -1) > 0:
        attributes["window_left"] += 1


def _window_ignored(op, inputs, attributes):
    attributes |= {name: -1 for name in ("window_left", "window_right") if name in attributes}


def _other_pairs(op, inputs, attributes):
    if "pairs" in attributes:
        attributes["pairs"] = "neighbours"


def _other_angles(op, inputs, attributes):
    if "cos" in inputs:
        inputs["cos"], inputs["sin"] = inputs["sin"], inputs["sin"]


def _other_gate(op, inputs, attributes):
    if op == "FusedGatedGemm":
        attributes["activation"] = "silu"


MODERN = Export("modernbert", "feature-extraction", "dynamo", "sdpa")
BROKEN_VARIANTS = (_window_off_by_one, _window_ignored, _other_pairs, _other_angles, _other_gate)


@pytest.mark.parametrize("change", BROKEN_VARIANTS, ids=lambda f: f.__name__.strip("_"))
def test_a_broken_variant_is_found(change: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the model as it is, of random weights; that it is right itself, the test of families shows."""
    _edit(monkeypatch, change)
    subject = Subject(onnx.load(made(MODERN)), seed=25)
    assert judge(subject.model, subject.feeds(subject.model, 0)).bad


def _mask_of_variants_ignored(op, inputs, attributes):
    if op == "FusedAttentionVariant":
        inputs.pop("mask", None)


def _hidden_queries_as_others(op, inputs, attributes):
    if "hidden_queries" in attributes:
        attributes["hidden_queries"] = "as_others"


def _vectors_of_another_distance(op, inputs, attributes):
    if "positions_left" in attributes:
        attributes["positions_left"] += 1


DISENTANGLED = Export("deberta-v2", "feature-extraction", "dynamo", "eager")


@pytest.mark.parametrize(
    "change",
    (_mask_of_variants_ignored, _hidden_queries_as_others, _vectors_of_another_distance),
    ids=lambda f: f.__name__.strip("_"),
)
def test_a_broken_variant_is_found_where_the_mask_multiplies_activations(change, monkeypatch) -> None:
    """By masks of 0 and 1: what larger ones make beyond float32 is excused."""
    _edit(monkeypatch, change)
    subject = Subject(onnx.load(made(DISENTANGLED)), seed=25)
    feeds = subject.feeds(subject.model, 0)
    bad = [
        judge(subject.model, {name: feed}).bad for name, feed in feeds.items() if name.startswith(("holes", "right"))
    ]
    assert sum(bad) >= 2, bad


def test_mutants_of_families_beyond_bert() -> None:
    """One export, which changes with the seed; at the level of their ops."""
    seed = int(os.environ.get("BERTFUSE_MUTANT_SEED", secrets.randbelow(1 << 31)))
    export = BEYOND_BERT[seed % len(BEYOND_BERT)]
    print(f"BERTFUSE_MUTANT_SEED={seed}: {export}")
    report = hunt(made(export), count=25, seed=seed)
    assert not report.findings, [f"{f.changes}: {f.text}" for f in report.findings]
    assert report.outcomes["equal"] + report.outcomes["partly"], report.summary()


def test_the_model_as_it_is_is_right() -> None:
    subject = Subject(onnx.load(made(BERT)), seed=5)
    assert subject.itself() is None and not subject.exempt


def test_a_mutant_is_the_same_every_time() -> None:
    subject = Subject(onnx.load(made(BERT)), seed=5)
    for number in range(20):
        first, second = subject.mutant(number), subject.mutant(number)
        assert first.changes == second.changes
        assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(deterministic=True)


def test_what_is_found_is_made_small_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subject = Subject(onnx.load(made(BERT)), seed=17)
    for number in range(100):
        with monkeypatch.context() as broken:
            _edit(broken, _heads_exchanged)
            bad = subject.tried(number, patience=0).verdict.bad
        if bad and not subject.tried(number, patience=0).verdict.bad:
            break
    with monkeypatch.context() as broken:
        _edit(broken, _heads_exchanged)
        _check_what_is_written(subject, number, tmp_path)
    # Repeated with the fusion as it is, nothing differs: the command runs, and says so.
    command = (tmp_path / f"mutant-17-{number}.txt").read_text(encoding="utf-8").splitlines()[-1]
    command = command.replace("bertfuse ", f"{shlex.quote(sys.executable)} -m bertfuse.cli ")
    assert subprocess.run(command, shell=True, capture_output=True, check=False).returncode == 0


def _check_what_is_written(subject: Subject, number: int, folder: Path) -> None:
    trial = subject.tried(number, patience=3)
    assert len(trial.model.graph.node) < len(subject.model.graph.node)
    assert judge(trial.model, {"inputs": trial.feed}).outcome == "wrong"
    report = Report("model.onnx", 17)
    _account(report, trial, {}, folder, made(BERT))
    (finding,) = report.findings
    assert sorted(p.suffix for p in folder.iterdir()) == [".npz", ".onnx", ".txt"]
    assert finding.command in next(folder.glob("*.txt")).read_text(encoding="utf-8")


def test_minimising_keeps_the_failure() -> None:
    """A model that is wrong for one node ends as few more than what that node needs."""
    subject = Subject(onnx.load(made(BERT)), seed=5)
    feed = next(iter(subject.feeds(subject.model, 0).values()))
    verdict = judge(subject.model, {"inputs": feed})
    assert not verdict.bad
    model, _ = smaller(subject.model, feed, verdict, "full", float("inf"))
    assert judge(model, {"inputs": feed}).outcome == "equal" and len(model.graph.node) < len(subject.model.graph.node)


@pytest.mark.parametrize("unfused", [False, True])
def test_a_process_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch, unfused: bool) -> None:
    """The process is replaced, and the hunt goes on; no finding where ONNX Runtime alone dies, too."""
    from bertfuse.qualify.mutants import worker

    monkeypatch.setattr(worker, "_work", _dies_at_three)
    if unfused:
        monkeypatch.setattr(worker, "_run", _dies)
    seen = []
    stream = trials(made(BERT), 5, "full", 0)
    for trial in stream:
        if isinstance(trial, Trial):
            seen.append((trial.number, trial.verdict.outcome))
        if len(seen) == 6:
            break
    stream.close()
    assert seen == [(n, "crashed" if n == 3 and not unfused else "invalid") for n in range(6)]


def test_a_process_says_a_word_before_it_makes_a_mutant_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or judging and making small together are taken for a hang on a busy machine."""
    from bertfuse.qualify.mutants import worker
    from bertfuse.qualify.mutants.verdict import Verdict

    said: list = []

    class Pipe:
        def send(self, message) -> None:
            said.append(message)
            if isinstance(message, Trial):
                raise BrokenPipeError

    def tried(self, number: int, patience: float = 20.0) -> Trial:
        said.append(patience)
        return Trial(number, ["change"], Verdict("wrong"))

    monkeypatch.setattr(Subject, "tried", tried)
    monkeypatch.setattr(Subject, "itself", lambda self: None)
    worker._work(Pipe(), str(made(BERT)), 5, "full", 0)
    assert said[:4] == [{}, 0.0, {}, 20.0] and isinstance(said[4], Trial), said


def _dies(*_) -> None:
    os._exit(9)


def _dies_at_three(pipe, path, seed, level, first) -> None:
    from bertfuse.qualify.mutants.verdict import Verdict

    pipe.send({})
    for number in range(first, 100):
        if number == 3:
            os._exit(9)
        pipe.send(Trial(number, [], Verdict("invalid")))


def test_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bertfuse.cli", "qualify", str(made(BERT)), "--count", "5", "--seed", "3", "--json",
         "-o", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert said["seed"] == 3 and said["tried"] >= 5
    assert done.returncode == int(said["found"] > 0)


def test_a_model_that_cannot_be_hunted_in(tmp_path: Path) -> None:
    with pytest.raises(BertfuseError, match="no such file"):
        hunt(tmp_path / "none.onnx", count=1)
    path = tmp_path / "odd.onnx"
    onnx.save(parsed("g (float[3] a, float[4] b) => (float c) { c = Add (a, b) }"), path)
    with pytest.raises(BertfuseError, match="does not run"):
        hunt(path, count=1)


def test_judging_sees_every_kind_of_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(onnx.load(made(BERT)), seed=5)
    feeds = subject.feeds(subject.model, 0)
    assert judge(subject.model, feeds).outcome == "equal"

    def changed(change: Callable[[onnx.ModelProto], None]) -> str:
        def broken(model, **options):
            result = fuse(model, **options)
            change(result.model)
            return result

        monkeypatch.setattr("bertfuse.qualify.mutants.verdict.fuse", broken)
        return judge(subject.model, feeds).text

    def reshaped(model: onnx.ModelProto) -> None:
        output = model.graph.output[-1]  # nothing else reads it
        node = next(n for n in model.graph.node if output.name in n.output)
        node.output[0] = "before"
        model.graph.node.append(onnx.helper.make_node("Flatten", ["before"], [output.name], axis=0))
        del output.type.tensor_type.shape.dim[:]
        output.type.tensor_type.ClearField("shape")

    def raising(model: onnx.ModelProto) -> None:
        raise IndexError("3")

    def unknown(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "Nothing"

    assert "is now float32" in changed(reshaped)
    assert changed(raising) == "fuse: IndexError: 3"
    assert "does not load" in changed(unknown)


def test_every_mutation_changes_something() -> None:
    """Each finds something to do in a real export, and gives mutants that load; the same each time."""
    subject = Subject(onnx.load(made(BERT)), seed=5)
    for mutation in MUTATIONS:
        texts, runs = [], False
        for number in range(24):
            mutants = [Mutant(subject.model, subject.facts) for _ in "ab"]
            try:
                said = [mutation(m, Random(f"{mutation.__name__} {number}")) for m in mutants]
            except (ValueError, IndexError, OverflowError, TypeError, KeyError):
                continue
            for m in mutants:
                m.finish()
            first, second = (m.model.SerializeToString(deterministic=True) for m in mutants)
            assert said[0] == said[1] and first == second
            texts += said[:1] if said[0] else []
            runs = runs or bool(said[0] and _loads(mutants[0].model))
        assert texts and runs, mutation.__name__


def _loads(model: onnx.ModelProto) -> bool:
    try:
        session(model)
    except Exception:
        return False
    return True
