"""Trials in a process of their own: a crash ends that process, and the hunt knows of which mutant it was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import onnx

from ..apart import CONTEXT, Ended, messages
from .sessions import run, session
from .trial import Subject, Trial
from .verdict import Verdict

_START, _TRIAL = 300.0, 120.0  # seconds without a word after which a process is taken for hung


def trials(path: Path, seed: int, level: str, first: int) -> Iterator[Trial | dict[str, str]]:
    """Trials from mutant `first` on, without end; before them the kinds of inputs that are exempt, by name.

    Close it to stop. A mutant at which the process dies, or says nothing for two minutes, is a Trial that is "crashed";
    its process is replaced. Raises BertfuseError for a model that cannot be mutated.
    """
    told = False
    while True:
        for message in messages(_work, (str(path), seed, level, first), _START, _TRIAL):
            if isinstance(message, dict):
                if not told:
                    yield message
                told = True
            elif not isinstance(message, Ended):
                first = max(first, message.number + 1)
                yield message
            elif not told:
                raise RuntimeError(f"the process that tries mutants does not begin: {message}")
            elif message.exitcode is None:
                yield Trial(first, [], Verdict("crashed", f"fuse or ONNX Runtime hangs: {message}"))
            elif _ends_by_itself(path, seed, level, first):
                yield Trial(first, [], Verdict("invalid", "ends the process of ONNX Runtime, unfused"))
            else:
                yield Trial(first, [], Verdict("crashed", str(message)))
        first += 1


def _ends_by_itself(path: Path, seed: int, level: str, number: int) -> bool:
    """Whether the mutant ends a process that runs it without fusing it.

    onnx's shape inference has assertions, and ONNX Runtime's Einsum ends the process for an operand of another rank.
    """
    process = CONTEXT.Process(target=_run, args=(str(path), seed, level, number), daemon=True)
    process.start()
    process.join(_TRIAL)
    if process.is_alive():
        process.kill()
        process.join()
        return False
    return process.exitcode != 0


def _run(path: str, seed: int, level: str, number: int) -> None:
    # Refused with an exception is not the end of a process.
    with contextlib.suppress(Exception):
        subject = Subject(onnx.load(path), seed, level)
        model = subject.mutant(number).model
        original = session(model)
        for feed in subject.feeds(model, number).values():
            run(original, feed)


def _work(pipe: Connection, path: str, seed: int, level: str, first: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from bertfuse.errors import BertfuseError

    try:
        subject = Subject(onnx.load(path), seed, level)
        itself = subject.itself()
    except BertfuseError as error:
        pipe.send(error)
        return
    pipe.send(dict(subject.exempt))
    seen: dict[str, int] = {}
    try:
        if itself is not None and first == 0:
            pipe.send(_light(itself))
        number = first
        while True:
            trial = subject.tried(number, patience=0.0)
            if trial.verdict.bad:
                key = " ".join(sorted(change.split(" ")[0] for change in trial.changes))
                seen[key] = seen.get(key, 0) + 1
                if seen[key] <= 4:  # many of a kind are not worth the time
                    pipe.send({})  # a word: on a busy machine both together have taken two minutes
                    trial = subject.tried(number)
            pipe.send(_light(trial))
            number += 1
    except (BrokenPipeError, KeyboardInterrupt):
        return


def _light(trial: Trial) -> Trial:
    trial.verdict.result = None
    return trial
