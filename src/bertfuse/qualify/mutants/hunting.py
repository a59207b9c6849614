"""The hunt: mutants until the time or the count is used up, findings written as they come."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.io import load_model

from .report import Finding, Report
from .trial import Trial, fingerprint
from .worker import trials

_MOST_BYTES = 64 << 20


def hunt(
    path: str | Path,
    *,
    minutes: float | None = None,
    count: int | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    level: str = "full",
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Mutates the model at `path`, fuses original and mutant, and compares both on inputs made to tell them apart.

    minutes   how long at most (8 where neither `minutes` nor `count` is given)
    count     how many mutants at most that run
    seed      of everything random; None draws one, which the report holds. Mutant N of a seed is always the same.
    out       folder for what is found, made with the first finding: each a model as small as it got, its inputs, and a
              command that repeats it
    progress  called with a line of text now and then

    Raises BertfuseError for a model that cannot be read, does not run, or is larger than 64 MiB: mutants of a small
    model of the same family find the same.
    """
    path = Path(path)
    model = load_model(path)
    if model.ByteSize() > _MOST_BYTES:
        raise BertfuseError(
            f"{path}: holds {model.ByteSize() >> 20} MiB, of which a thousand copies take long; "
            "give an export of the same family with few layers and small sizes"
        )
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    minutes = 8.0 if minutes is None and count is None else minutes
    folder = None if out is None else Path(out)
    if folder is not None and folder.exists() and not folder.is_dir():
        raise BertfuseError(f"{folder}: is a file; name a folder for what is found")
    say = progress or (lambda text: None)
    report, start = Report(str(path), seed), time.monotonic()
    end = start + 60 * minutes if minutes is not None else float("inf")
    say(f"Testing mutants of {path}, seed {seed}")
    causes: dict[str, Finding] = {}
    last = start
    with contextlib.closing(trials(path, seed, level, 0)) as stream:
        for trial in stream:
            if isinstance(trial, dict):
                report.exempt = trial
                continue
            _account(report, trial, causes, folder, path)
            report.seconds = time.monotonic() - start
            if time.monotonic() - last > 20:
                last = time.monotonic()
                say(report.summary())
            if time.monotonic() >= end or (count is not None and report.tried >= count):
                break
    return report


def _account(report: Report, trial: Trial, causes: dict[str, Finding], folder: Path | None, path: Path) -> None:
    verdict = trial.verdict
    outcome = "partly" if verdict.outcome == "equal" and not verdict.complete else verdict.outcome
    report.outcomes[outcome] += 1
    report.runs += verdict.ran
    for reason in verdict.excused.values():
        report.excused[reason] += 1
    if not verdict.bad:
        return
    cause = fingerprint(trial)
    if cause in causes:
        causes[cause].same += 1
        return
    finding = Finding(verdict.outcome, trial.number, trial.changes, verdict.text, verdict.feed)
    causes[cause] = finding
    report.findings.append(finding)
    if folder is not None:
        _write(finding, trial, folder, report.seed, path)


def _write(finding: Finding, trial: Trial, folder: Path, seed: int, path: Path) -> None:
    """The model, its inputs and the command, each file whole or not there."""
    if trial.model is None:  # its process died: only its number is known
        from .trial import Subject

        trial.model = Subject(onnx.load(path), seed).mutant(trial.number).model
    folder.mkdir(parents=True, exist_ok=True)
    finding.nodes = len(trial.model.graph.node)
    name = f"mutant-{seed}-{trial.number}" if trial.number >= 0 else f"original-{seed}"
    model, inputs, fused = (folder / f"{name}{end}" for end in (".onnx", ".npz", ".fused.onnx"))
    temporary = folder / f".{name}.part"
    temporary.write_bytes(trial.model.SerializeToString())
    temporary.rename(model)
    finding.files = [str(model)]
    finding.command = shlex.join(["bertfuse", "fuse", str(model), "-o", str(fused)])
    if trial.feed:
        with temporary.open("wb") as file:
            np.savez(file, **trial.feed)
        temporary.rename(inputs)
        finding.files.append(str(inputs))
        finding.command += " && " + shlex.join(["bertfuse", "compare", str(model), str(fused), "-i", str(inputs)])
    told = folder / f"{name}.txt"
    lines = [f"{finding.kind}: {finding.text}", *finding.changes, finding.command]
    told.write_text("\n".join(lines) + "\n", encoding="utf-8")
