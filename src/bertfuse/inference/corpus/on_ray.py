"""The same job on Ray Data: shards through map_batches with a class that holds the session.

Every machine of the cluster needs this package, and the model, the input and the output folder at the same paths. A
worker reads its shards' rows, runs them, and writes each shard in one piece, so that Ray may repeat what a lost worker
had begun: a shard that is recorded is not done again, and one that is not is written anew.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

from .job import Job, Tally, run

LOCAL = "local"
_SHARDS = 2  # that a worker is given at a time: the device is idle between


class Worker:
    """Holds the session; called with numbers of neighbouring shards."""

    def __init__(self, job: Job, device: str, threads: int) -> None:
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        self._job, self._task = job, job.wanted.load(device, threads)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        shards = {int(shard) for shard in batch["shard"]}
        tally = run(self._job, self._task, shards.__contains__, lambda tally: None, last=max(shards))
        return {
            "rows": np.array([tally.rows]),
            "bad": np.array([tally.bad]),
            "tokens": np.array([tally.tokens]),
            "shards": np.array([len(shards)]),
        }


def run_on_ray(job: Job, address: str, workers: int | None, report: Callable[[Tally], None]) -> Tally:
    """Does what is not done of the job on the cluster at `address`; "local" starts one on this machine.

    Args:
        workers: how many sessions; None: one for each GPU of the cluster, or one for each machine without any.

    Raises BertfuseError where Ray is missing, the cluster is not reached, or a worker reports an error.
    """
    # What goes wrong is raised; Ray's own account of it is in its log files.
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise BertfuseError(f"--ray needs Ray Data: pip install 'bertfuse[ray]' ({error})") from error
    if job.source.is_stdin:
        raise BertfuseError("standard input cannot be read by several machines: name files")
    started = not ray.is_initialized()
    if started:
        place = {} if address == LOCAL else {"address": address}
        try:
            ray.init(**place, log_to_driver=False, logging_level="ERROR", include_dashboard=None if place else False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise BertfuseError(f"--ray {address}: {' '.join(str(error).split())[:200]}") from error
    try:
        with redirect_stdout(_Account()):
            return _run(ray, job, workers, report)
    finally:
        if started:
            ray.shutdown()


class _Account(io.TextIOBase):
    """What Ray prints, as that it does again what a lost worker had begun, on stderr; but not of workers that it ends
    itself, as after a Ctrl-C.
    """

    _dropped = False

    def write(self, text: str) -> int:
        rest = self._dropped and text == "\n"
        self._dropped = "killed by `ray.kill`" in text
        if not self._dropped and not rest:
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _run(ray: Any, job: Job, workers: int | None, report: Callable[[Tally], None]) -> Tally:
    source = replace(job.source, paths=[str(Path(name).resolve()) for name, _ in job.source.files])
    model = str(Path(job.wanted.model).resolve()) if Path(job.wanted.model).exists() else job.wanted.model
    there = replace(job, source=source, wanted=replace(job.wanted, model=model), folder=job.folder.resolve())
    shards = -(-source.count() // source.shard_rows)
    missing = [shard for shard in range(shards) if not job.is_done(shard)]
    tally = Tally(done=1.0)
    if not missing:
        return tally
    has = ray.cluster_resources()
    gpus, cores = int(has.get("GPU", 0)), int(has.get("CPU", 1))
    count = min(workers or gpus or max(1, len(ray.nodes())), len(missing))
    needs: dict[str, Any] = {"num_gpus": min(1.0, gpus / count)} if gpus else {"num_cpus": max(1, cores // count)}
    threads = max(1, cores // count)
    ray.data.DataContext.get_current().enable_progress_bars = False
    numbers = ray.data.from_items(
        [{"shard": shard} for shard in missing], override_num_blocks=-(-len(missing) // _SHARDS)
    )
    done = numbers.map_batches(
        Worker,
        fn_constructor_args=(there, "cuda" if gpus else "cpu", threads),
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=count),
        **needs,
    )
    finished, start = 0, time.monotonic()
    try:
        for row in done.iter_rows():
            finished += int(row["shards"])
            tally.rows, tally.bad = tally.rows + int(row["rows"]), tally.bad + int(row["bad"])
            tally.tokens, tally.running = tally.tokens + int(row["tokens"]), tally.rows
            tally.done, tally.seconds = finished / len(missing), time.monotonic() - start
            report(tally)
    except (ray.exceptions.RayError, ray.exceptions.UserCodeException) as error:
        cause = getattr(error, "cause", None) or error
        lines = [line for line in str(cause).strip().splitlines() if line.strip()]
        raise BertfuseError(f"--ray: {lines[-1] if lines else error}; what was done is kept") from error
    left = [shard for shard in missing if not job.is_done(shard)]
    if left:
        raise BertfuseError(
            f"--ray: {len(left)} shards are not in {job.folder}: it must be the same folder on every machine"
        )
    return tally
