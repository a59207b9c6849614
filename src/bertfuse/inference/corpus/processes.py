"""A process for each device: each does every n-th shard of the same job."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError

from ..devices import gpu_count
from ..prepare import model_for, route_folder
from .job import Job, Tally, run


def devices_of(text: str | None) -> list[str | None]:
    """ "all": every GPU; "0,1": these; "cpu,cpu": two processes on the CPU; None: one, where it runs by itself.

    Raises BertfuseError for GPUs that there are not.
    """
    if text is None:
        return [None]
    if text == "all":
        return [f"cuda:{number}" for number in range(gpu_count())] or [None]
    made: list[str | None] = []
    for part in text.split(","):
        name = part.strip()
        if name.isdecimal() and int(name) >= gpu_count():
            raise BertfuseError(f"--devices {text}: there is no GPU {name}; there are {gpu_count()}, numbered from 0")
        if not name.isdecimal() and name != "cpu":
            raise BertfuseError(f"--devices {text}: {name!r} is not a device; write all, numbers of GPUs (0,1), or cpu")
        made.append("cpu" if name == "cpu" else f"cuda:{int(name)}")
    return made


def run_on(job: Job, devices: list[str | None], report: Callable[[Tally], None]) -> Tally:
    """Does the job on each of `devices` at once; in this process where it is one.

    Raises BertfuseError, once the others are done, where a process reported an error or died.
    """
    if len(devices) == 1:
        return run(job, job.wanted.load(devices[0]), lambda shard: True, report)
    if job.source.is_stdin:
        raise BertfuseError("standard input cannot be shared by several processes: name files, or one device")
    # Made once, and not by every process, where the folder has no ONNX file.
    folder, route = Path(job.wanted.model), job.wanted.options.get("route")
    model_for(folder, devices[0] != "cpu") if route is None else route_folder(folder, route, devices[0] != "cpu")
    context = multiprocessing.get_context("spawn")  # CUDA does not outlive a fork
    processes: list[Any] = []
    names, tallies = {}, [Tally() for _ in devices]
    try:
        for index, device in enumerate(devices):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(job, device, index, len(devices), theirs), daemon=True)
            with _interrupts_blocked():
                process.start()
                processes.append(process)
            theirs.close()
            names[ours] = index
        return _followed(processes, names, tallies, devices, report)
    finally:  # nothing may be written once the folder is given up, as after a Ctrl-C
        for process in processes:
            process.terminate()
            process.join()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started in the block inherit that SIGINT is blocked; this process gets it after the block.

    A worker imports for a second before `_work` can ignore SIGINT: a Ctrl-C would end it with a traceback until then.
    """
    resource_tracker.ensure_running()  # starting it unblocks SIGINT (Python 3.11), so not within the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _followed(
    processes: list[Any],
    names: dict[Any, int],
    tallies: list[Tally],
    devices: list[str | None],
    report: Callable[[Tally], None],
) -> Tally:
    """Reports what the processes tell until all have ended."""
    failures: list[str] = []
    finished: set[int] = set()
    while names:
        for pipe in wait(list(names)):
            assert isinstance(pipe, Connection)
            index = names[pipe]
            try:
                kind, what = pipe.recv()
            except (EOFError, ConnectionResetError):
                del names[pipe]
                if index not in finished:
                    processes[index].join()
                    code = processes[index].exitcode
                    failures.append(f"the process on {devices[index]} ended with exit code {code}")
                continue
            if kind == "error":
                finished.add(index)
                failures.append(what)
            else:
                tallies[index] = what
                finished.update([index] if kind == "end" else [])
                report(_together(tallies))
    if failures:
        raise BertfuseError(f"{failures[0]}; what was done is kept: call the command again to go on")
    return _together(tallies)


def _together(tallies: list[Tally]) -> Tally:
    sums = {each.name: sum(getattr(tally, each.name) for tally in tallies) for each in fields(Tally)}
    longest = max(tally.seconds for tally in tallies)
    shares = {name: sums[name] / len(tallies) for name in ("done", "begun")}
    return Tally(**sums | shares | {"seconds": longest})


def _work(job: Job, device: str | None, index: int, count: int, pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a Ctrl-C the first process tells, and ends this one
    # The pipe breaks where the first process is no more: its lock on the folder is gone, so nothing may be written.
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()
    share = max(1, len(os.sched_getaffinity(0)) // count)
    os.environ["RAYON_NUM_THREADS"] = str(share)  # the tokenizer's
    try:
        task = job.wanted.load(device, share)
        tally = run(job, task, lambda shard: shard % count == index, lambda tally: pipe.send(("done", tally)))
        pipe.send(("end", tally))
    except (BertfuseError, OSError, MemoryError) as error:
        pipe.send(("error", f"{device}: {error}"))


def _end_with(pipe: Any) -> None:
    try:
        pipe.recv()
    except (EOFError, OSError):
        os._exit(1)
