"""An encoder in several processes, one for each device, as sentence-transformers' pools."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

from .devices import gpu_count

_CHUNK = 5000  # texts at a time, at most
_ON_CPU = 4  # processes where there is no GPU, as sentence-transformers

_encoder: Any = None  # of a process of a pool


class EncoderPool:
    """Processes that compute what `Encoder.encode` is asked for.

    Args:
        kind: Encoder, which each process makes one of.
        folder: the model's.
        devices: of each process; None: every GPU, else four on the CPU.
        options: Encoder's.

    Raises BertfuseError where no process can be made of these, and of what a process itself raises.
    """

    def __init__(self, kind: type, folder: Path, devices: Sequence[str] | None, options: dict[str, Any]) -> None:
        if devices is None:
            devices = [f"cuda:{number}" for number in range(gpu_count())] or ["cpu"] * _ON_CPU
        unfit = sorted({"session", "sess_options", "providers"} & {name for name, value in options.items() if value})
        if unfit or not devices:
            why = f"{unfit[0]} cannot be given to another process" if unfit else "name one device or more"
            raise BertfuseError(f"a pool of processes on {list(devices)}: {why}")
        self.folder = folder
        self.devices = [str(device) for device in devices]
        context = multiprocessing.get_context("spawn")  # CUDA does not outlive a fork
        share = max(1, len(os.sched_getaffinity(0)) // len(self.devices))
        kept = {name: value for name, value in options.items() if name not in ("device", "threads")}
        self._processes = [
            ProcessPoolExecutor(1, context, _open, (kind, folder, kept | {"device": device, "threads": share}))
            for device in self.devices
        ]

    @classmethod
    @contextmanager
    def either(
        cls, pool: EncoderPool | None, kind: type, folder: Path, devices: Any, options: dict[str, Any]
    ) -> Iterator[EncoderPool]:
        """`pool`, or where it is None a new one that ends with the block. Raises BertfuseError for another model's."""
        if pool is not None and pool.folder != folder:
            raise BertfuseError(f"the pool is of {pool.folder}, not of {folder}: start one of this encoder")
        made = pool if pool is not None else cls(kind, folder, devices, options)
        try:
            yield made
        finally:
            if pool is None:
                made.close()

    def run(self, texts: Sequence[str], arguments: dict[str, Any], chunk_size: int | None = None) -> Any:
        """What Encoder.compute(texts, **arguments) gives: vectors in one array, else a list."""
        size = chunk_size or max(1, min(_CHUNK, -(-len(texts) // (10 * len(self._processes)))))
        if size < 1:
            raise BertfuseError(f"chunk_size {size}: give 1 or more, or None")
        starts = range(0, len(texts), size) if texts else [0]
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for start in starts:
            waiting.put(start)
        made: dict[int, Any] = {}

        def work(process: ProcessPoolExecutor) -> None:
            while True:
                try:
                    start = waiting.get_nowait()
                except queue.Empty:
                    return
                made[start] = process.submit(_compute, list(texts[start : start + size]), arguments).result()

        with ThreadPoolExecutor(len(self._processes)) as threads:
            try:
                list(threads.map(work, self._processes))
            except BrokenProcessPool as error:
                raise BertfuseError(f"a process of the pool on {', '.join(self.devices)} died") from error
        parts = [made[start] for start in starts]
        if isinstance(parts[0], np.ndarray):
            return np.concatenate(parts)
        return [row for part in parts for row in part]

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.shutdown(cancel_futures=True)


def _open(kind: type, folder: Path, options: dict[str, Any]) -> None:
    global _encoder
    os.environ["RAYON_NUM_THREADS"] = str(options["threads"])  # the tokenizer's
    try:
        _encoder = kind(folder, **options)
    except BertfuseError as error:  # an initializer that raises says nothing to whoever waits
        _encoder = error


def _compute(texts: list[str], arguments: dict[str, Any]) -> Any:
    if isinstance(_encoder, BertfuseError):
        raise _encoder
    return _encoder.compute(texts, **arguments)
