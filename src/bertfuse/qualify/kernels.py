"""Hunting the kernels of a library, and repeating single problems."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.ops import OPS, PACKING_OPS
from bertfuse.runtime import native

from .campaign import Campaign, Local, Report, Runner, draws_for, share_out
from .devices import device_names
from .journal import Journal
from .problem import DTYPES, parse
from .reference import reference
from .worker import Settings

SEED_BITS = 31


def names(text: str | None, known: Sequence[str], option: str) -> list[str]:
    """The comma-separated names; all that are known without text. Raises BertfuseError for one that is not."""
    if text is None:
        return list(known)
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in known:
            raise BertfuseError(f"{option} {name!r}: choose from {', '.join(known)}")
    return found


def qualify_kernels(
    *,
    devices: str | None = None,
    library: Path | None = None,
    minutes: float = 8.0,
    seed: int | None = None,
    ops: str | None = None,
    dtypes: str | None = None,
    workers: int | None = None,
    patience: float = Settings.patience,
    oracle: str = "numpy",
    out: Path | None = None,
    count: int | None = None,
    ray: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Checks the library's kernels on random problems for that many minutes.

    Args:
        devices: "cpu", "cuda:0", "cuda" for every GPU, with commas between them; by default all there are.
        library: a shared library that exports the C ABI of plugins/include/bertfuse; by default the installed one.
        seed: of the problems; drawn where it is None, and in the report.
        ops, dtypes: comma-separated names; all by default.
        workers: processes; by default as many as cores.
        patience: seconds after which a problem counts as hanging.
        oracle: what computes the float64 results: "numpy".
        out: the file that findings are appended to as they come, as JSON lines.
        count: ends the run after that many drawn problems; each has all tactics of its call.
        ray: the address of a Ray cluster whose machines take part, "local" for one on this machine.

    Raises:
        BertfuseError: a device, op, dtype or library that there is not, or `out` is some other file.
    """
    say = progress or (lambda line: None)
    file = library_file(library)
    native.load_library(file)  # a message instead of workers that do not start
    reference(oracle)
    chosen_ops, chosen_dtypes = names(ops, list(OPS), "--ops"), names(dtypes, DTYPES, "--dtypes")
    seed = secrets.randbits(SEED_BITS) if seed is None else seed
    here = device_names(devices, file)
    report = Report(str(file), {name: _describe(name, file) for name in here}, seed, minutes)
    report.extra["custom_library"] = library is not None
    by_device = {name: _with_kernels(name, chosen_ops, ops is None, file, report) for name in here}
    if ray is None:
        runners: list[Runner] = []
        for name, number in share_out(here, workers or _cores()).items():
            runners += [Local(Settings(str(file), name, oracle, patience)) for _ in range(number)]
    else:
        from .cluster import ray_runners

        runners = ray_runners(ray, Settings(str(file), "", oracle, patience), here, workers)
    about = {"seed": seed, "library": str(file), "devices": here, "minutes": minutes}
    journal = Journal(out, **about) if out is not None else None
    say(f"Testing with seed {seed} on {', '.join(here)}, {len(runners)} workers")
    try:
        campaign = Campaign(report, journal, runners, draws_for(by_device, seed, chosen_dtypes, oracle))
        campaign.run(time.monotonic() + 60 * minutes, say, count)
        if journal is not None:
            journal.write("report", report.to_dict())
            journal.write("end", {"total": report.total, "findings": len(report.findings)})
    except RuntimeError as error:  # workers do not start
        raise BertfuseError(str(error)) from error
    finally:
        if journal is not None:
            journal.close()
    return report


def library_file(named: Path | None) -> Path:
    """The library to be checked. Raises BertfuseError where there is none."""
    from bertfuse.runtime import library_path

    file = Path(named or library_path("onnxruntime")).resolve()
    if not file.is_file():
        raise BertfuseError(f"{named}: no such library")
    return file


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _describe(device: str, library: Path) -> str:
    if device == "cpu":
        return "CPU"
    number = int(device.removeprefix("cuda:"))
    return next(gpu.identity.decode() for index, gpu in enumerate(native.gpus(library)) if index == number)


def _with_kernels(device: str, ops: Sequence[str], by_default: bool, library: Path, report: Report) -> list[str]:
    """The ops to be checked on a device: without a word of the user, those that pack rows only where it has them."""
    kind = native.CPU if device == "cpu" else native.CUDA
    absent = [op for op in ops if op in PACKING_OPS and native.find_kernel(op, kind, library) is None]
    if by_default and absent:
        report.unsupported.update({(device, op, "", "the library has no kernel"): 1 for op in absent})
        ops = [op for op in ops if op not in absent]
    _check_kernels(device, ops, library)
    return list(ops)


def _check_kernels(device: str, ops: Sequence[str], library: Path) -> None:
    kind = native.CPU if device == "cpu" else native.CUDA
    missing = [op for op in ops if native.find_kernel(op, kind, library) is None]
    if missing:
        raise BertfuseError(
            f"{library}: has no kernel of {missing[0]} for {device}; leave it out with --ops or --devices"
        )


def repeat(
    problems: Sequence[str],
    *,
    devices: str | None = None,
    library: Path | None = None,
    patience: float = Settings.patience,
    oracle: str = "numpy",
) -> list[dict[str, Any]]:
    """Runs these problems one after the other in one process on each device; what came of every one.

    Raises BertfuseError as `qualify_kernels` does, and for a text that is no problem.
    """
    texts = [str(parse(text)) for text in problems]
    file = library_file(library)
    native.load_library(file)
    reference(oracle)
    found: list[dict[str, Any]] = []
    for device in device_names(devices, file):
        _check_kernels(device, sorted({text.split()[0] for text in texts}), file)
        waiting = list(texts)
        with Local(Settings(str(file), device, oracle, patience)) as worker:
            while waiting:
                try:
                    answer = worker.run(waiting)
                except RuntimeError as error:
                    raise BertfuseError(str(error)) from error
                found += [{"device": device, **verdict} for verdict in answer.verdicts]
                waiting = answer.rest if answer.fault else []
                if answer.fault is not None:
                    fault = answer.fault
                    lines = [(fault.kind, fault.text)]
                    found.append(
                        {"device": device, "problem": fault.problem, "tactic": fault.tactic, "findings": lines}
                    )
    return found
