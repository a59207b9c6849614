"""Planted faults: each is found, costs a process and no more, and is repeated by the command that is printed."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from bertfuse.cli import app
from bertfuse.qualify.campaign import Campaign, Local, Report
from bertfuse.qualify.isolate import Finding, Trials, explain
from bertfuse.qualify.kernels import qualify_kernels
from bertfuse.qualify.problem import parse
from bertfuse.qualify.worker import Answer, Fault, Settings, Worker
from tests.qualify import slow_reference
from tests.qualify.faulty import hunt_of_a_segfault, library

# What a kernel does, and what it is reported as.
FAULTS = {
    "segfault": ("signal", "SIGSEGV"),
    "abort": ("signal", "SIGABRT"),
    "exit": ("exit", "exit code 3"),
    "outside": ("memory", "1 behind y"),
    "before": ("memory", "4 before y"),
    "input": ("memory", "writes its input x"),
    "nan": ("not finite", "is nan"),
    "unwritten": ("not finite", "is nan"),
    "wrong": ("wrong", "times what is allowed"),
    "random": ("not deterministic", "other bits each time"),
    "cached": ("cached", "result of the call before"),
    "refused": ("refused", "cannot today"),
}
LARGE = "FusedGemm float32 rows=2x64 K=40 N=96 offset=4 values=large constant tactic=-1 seed=5"
runner = CliRunner()


def explained(fault: str, folder: Path, *problems: str, patience: float = 20.0):
    """The finding for the last of these problems."""
    settings = Settings(str(library(fault, folder)), "cpu", patience=patience)
    worker = Worker(settings)
    try:
        answer = worker.run(problems)
        before = answer.fault.before if answer.fault else worker.ran[:-1]
        reason = answer.fault or tuple(answer.verdicts[-1]["findings"][0])
        return explain(reason, problems[-1], before, Trials(settings, 60, time.monotonic() + 60))
    finally:
        worker.stop()


@pytest.mark.parametrize("fault", FAULTS)
def test_found_made_small_and_repeated(fault: str, tmp_path: Path) -> None:
    kind, text = FAULTS[fault]
    finding = explained(fault, tmp_path, LARGE)
    assert finding.kind == kind and text in finding.text and finding.repeats
    if fault != "random":  # by chance it may not show in a smaller problem
        smallest = parse(finding.problems[0])
        assert smallest.leading == (3,) and 20 <= smallest.sizes["N"] <= 24 and smallest.sizes["K"] == 1, finding
        assert smallest.values == "normal" and not smallest.offset and not smallest.constant


# The same of packed rows; kernels that are honest about padded ones.
PACKED_FAULTS = {
    "beyond": ("not finite", "is nan"),
    "one_short": ("not finite", "is nan"),
    "stale_count": ("not finite", "is nan"),
    "random": ("not deterministic", "other bits each time"),
    "trusting": ("memory", "y where counts are out of range"),
}
PACKED = "FusedGemm float32 rows=2x64 K=40 N=96 offset=4 constant tactic=-1 packed=37 seed=5"


@pytest.mark.parametrize("fault", PACKED_FAULTS)
def test_found_in_packed_rows(fault: str, tmp_path: Path) -> None:
    kind, text = PACKED_FAULTS[fault]
    problem = {"stale_count": PACKED.replace("37", "1"), "trusting": PACKED.replace("seed=5", "broken seed=41")}.get(
        fault, PACKED
    )
    finding = explained(fault, tmp_path, problem)
    assert finding.kind == kind and text in finding.text and finding.repeats
    if fault in ("beyond", "one_short"):
        smallest = parse(finding.problems[0])
        # One row, in one of the two sets of inputs.
        assert sum(smallest.packed) <= 1 and smallest.leading[0] <= 16 and smallest.sizes == {"K": 1, "N": 1}, finding


# Faults of products of 8-bit integers, what these are given, and what is left of that once they are small.
INT8 = "FusedGemm float32 rows=2x64 K=40 N=96 constant tactic=-1 weights=int8 given={} seed=5"
INT8_FAULTS = {
    "wrong": ("x_smooth", None),  # of floats, too
    "wrong_row_scale": ("x_quantized,x_compensation", ("x_quantized",)),
    "wrong_zero": ("x_quantized,x_compensation", ("x_quantized", "x_compensation")),
}


@pytest.mark.parametrize("fault", INT8_FAULTS)
def test_found_in_products_of_8_bit_integers(fault: str, tmp_path: Path) -> None:
    given, left = INT8_FAULTS[fault]
    finding = explained(fault, tmp_path, INT8.format(given))
    assert finding.kind == "wrong" and "times what is allowed" in finding.text and finding.repeats
    smallest = parse(finding.problems[0])
    assert smallest.leading[0] <= 8 and smallest.sizes["N"] <= 24 and smallest.sizes["K"] <= 8, finding
    assert smallest.given == (left or ()) and smallest.weights == ("int8" if left else ""), finding


def test_refused_packed_rows_are_neither_a_finding_nor_tested(tmp_path: Path) -> None:
    options = {"devices": "cpu", "library": library("padded_only", tmp_path), "minutes": 1, "seed": 3, "count": 40}
    report = qualify_kernels(ops="FusedGemm", dtypes="float32", **options)
    assert not report.findings and set(report.by(2)) <= {("float32",), ("tf32",), ("float32-int8",)}
    assert {key[:2] for key in report.unsupported} == {("cpu", "FusedGemm")}
    assert any("no packed rows here" in reason for *_, reason in report.unsupported)
    command = ["qualify", "--library", str(options["library"]), "--devices", "cpu", "--problem", PACKED]
    said = runner.invoke(app, command)
    assert said.exit_code == 0 and "no packed rows here" in said.output and "right" not in said.output


def test_a_hang_is_ended(tmp_path: Path) -> None:
    settings = Settings(str(library("hang", tmp_path)), "cpu", patience=0.5)
    worker = Worker(settings)
    small = "FusedGemm float32 rows=2 K=4 N=4 tactic=-1 seed=1"
    answer = worker.run([small, LARGE, small])
    assert answer.fault is not None and answer.fault.kind == "hang" and answer.fault.problem == str(parse(LARGE))
    assert "0.5 seconds" in answer.fault.text
    assert [verdict["findings"] for verdict in worker.run(answer.rest).verdicts] == [[]]
    worker.stop()


def test_a_slow_reference_is_no_hang(tmp_path: Path) -> None:
    settings = Settings(str(library("nan", tmp_path)), "cpu", patience=0.3, task="tests.qualify.slow_reference:task")
    worker = Worker(settings)
    answer = worker.run([LARGE])
    worker.stop()
    assert settings.patience < slow_reference.SECONDS
    assert answer.fault is None and [verdict["findings"] for verdict in answer.verdicts] == [[]]


def test_when_time_is_over_no_reference_is_waited_for_but_the_first(tmp_path: Path) -> None:
    settings = Settings(str(library("nan", tmp_path)), "cpu", task="tests.qualify.slow_reference:task")
    with Worker(settings) as worker:
        answer = worker.run([LARGE] * 60, seconds=0)
        within = worker.run([LARGE] * 60, seconds=2.5 * slow_reference.SECONDS)
    assert answer.fault is None is within.fault
    assert (len(answer.verdicts), len(answer.rest)) == (1, 59)
    assert len(within.verdicts) <= 3 and len(within.verdicts) + len(within.rest) == 60


def test_when_time_is_over_a_kernel_is_waited_for(tmp_path: Path) -> None:
    with Worker(Settings(str(library("hang", tmp_path)), "cpu", patience=2.0)) as worker:
        answer = worker.run([LARGE, LARGE], seconds=0.1)
    assert answer.fault is not None and answer.fault.kind == "hang" and answer.rest == [LARGE]


def test_a_fault_that_an_earlier_problem_arms_is_isolated_with_it(tmp_path: Path) -> None:
    plain = [f"FusedGemm float32 rows=2 K={k} N=4 tactic=-1 seed={k}" for k in (3, 5, 7, 9, 11, 13, 15)]
    finding = explained("after_seven", tmp_path, *plain, LARGE)
    assert [parse(text).sizes["K"] for text in finding.problems] == [7, 40]
    assert finding.repeats


def test_a_hunt_finds_counts_and_goes_on(tmp_path: Path) -> None:
    """Of three tactics each faults: all are found, the others of a call are still run, and the rest of the problems."""
    journal = tmp_path / "found.jsonl"
    report = hunt_of_a_segfault(tmp_path, out=journal)
    assert {finding.kind for finding in report.findings} == {"signal"}
    assert {finding.tactic for finding in report.findings} == {"plain 0", "plain 1", "plain 2"}
    assert sum(report.by(3).values()) == report.total > 12
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines[0]["kind"] == "bertfuse qualify" and lines[0]["seed"] == 3
    assert [line["kind"] for line in lines].count("finding") == len(report.findings)
    assert lines[-1] == {"kind": "end", "total": report.total, "findings": len(report.findings)}


def test_the_printed_command_repeats_a_finding(tmp_path: Path) -> None:
    options = ["--devices", "cpu", "--ops", "FusedGemm", "--dtypes", "float32", "--count", "4", "--seed", "1"]
    hunt = ["qualify", "--library", str(library("nan", tmp_path)), *options, "-o", str(tmp_path / "j"), "--json"]
    found = runner.invoke(app, hunt)
    assert found.exit_code == 1, found.output
    command = shlex.split(json.loads(found.stdout)["findings"][0]["command"])
    assert command[0] == "bertfuse"
    again = runner.invoke(app, command[1:])
    assert again.exit_code == 1 and "is nan" in again.output
    honest = [str(library("none", tmp_path)) if "faulty_nan" in word else word for word in command[1:]]
    right = runner.invoke(app, honest)
    assert right.exit_code == 0 and "right; largest error" in right.output


def test_an_honest_library_has_no_findings(tmp_path: Path) -> None:
    # Its plain loops take the largest problems a while, beside other work on the machine longer than a hang's limit.
    report = qualify_kernels(
        devices="cpu",
        library=library("none", tmp_path),
        minutes=5,
        ops="FusedGemm",
        dtypes="float32",
        count=30,
        patience=200,
    )
    assert not report.findings and report.total > 45, (report.seed, report.findings)  # some have no kernel there


def _hunting(folder: Path, fault: str, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bertfuse.cli", "qualify", "--library", str(library(fault, folder))]
    command += ["--devices", "cpu", "--ops", "FusedGemm", "--dtypes", "float32", "-o", str(folder / "found.jsonl")]
    # A shell's background job ignores SIGINT, and so would all that it starts.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, former)


def _wait_for_a_finding(folder: Path) -> None:
    file = folder / "found.jsonl"
    for _ in range(1200):
        if file.exists() and '"kind": "finding"' in file.read_text():
            return
        time.sleep(0.1)
    raise AssertionError("nothing was found")


def _processes_of(folder: Path) -> list[str]:
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(folder) in maps.read_text():
                found.append(maps.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_killed_it_has_lost_no_finding_and_leaves_no_process(how: str, tmp_path: Path) -> None:
    hunt = _hunting(tmp_path, "wrong", "--minutes", "5")
    try:
        _wait_for_a_finding(tmp_path)
    finally:
        hunt.send_signal(getattr(signal, how))
        said = hunt.communicate(timeout=60)[0]
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["kind"] == "finding"]
    assert found and found[0]["command"].startswith("bertfuse qualify") and found[0]["text"]
    if how == "SIGINT":
        assert hunt.returncode == 1 and "interrupted" in said
    for _ in range(50):
        if not _processes_of(tmp_path):
            return
        time.sleep(0.1)
    raise AssertionError("a worker outlived the command")


class _Faulty:
    """A runner of which the first batch ends in a fault, whose explanation never comes."""

    settings = Settings("", "cpu")
    ran: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self._over = threading.Event()

    def run(self, problems: Sequence[str], *_: object) -> Answer:
        return Answer(fault=Fault("signal", "ended the process with SIGSEGV", problems[0], "simt", []))

    def explain(self, *_: object) -> Finding:
        self._over.wait(30)
        raise RuntimeError("nobody interrupted")

    def stop(self) -> None:
        self._over.set()


def test_interrupted_while_a_fault_is_looked_into_it_is_a_finding() -> None:
    def say(text: str) -> None:
        if "1 findings" in text:
            raise KeyboardInterrupt

    report = Report("", {"cpu": "a CPU"}, 0, 1.0)
    Campaign(report, None, [_Faulty()], {"cpu": iter([parse(LARGE)] * 1000)}).run(time.monotonic() + 60, say)
    (finding,) = report.findings
    assert report.interrupted and finding.text == "ended the process with SIGSEGV" and finding.tactic == "simt"
    assert finding.command.startswith("bertfuse qualify") and finding.problems


def _never_ready(*_: object) -> None:
    time.sleep(3600)


def test_stopping_does_not_wait_for_a_worker_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One may hang there: Ctrl-C would seem to be ignored."""
    monkeypatch.setattr("bertfuse.qualify.worker._serve", _never_ready)
    monkeypatch.setattr("bertfuse.qualify.worker._STARTING", 3600.0)
    worker = Worker(Settings("", "cpu"))
    errors: list[str] = []

    def run() -> None:
        try:
            worker.run([LARGE])
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run, daemon=True), threading.Thread(target=worker.stop, daemon=True)]
    threads[0].start()
    while worker._pipe is None:
        time.sleep(0.01)
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors and "does not start" in errors[0], errors


def test_a_worker_that_does_not_start_is_one_line(tmp_path: Path) -> None:
    worker = Local(Settings(str(tmp_path / "none.so"), "cpu"))
    with pytest.raises(RuntimeError, match=r"a worker for cpu does not start: .*none\.so"):
        worker.run([LARGE])
