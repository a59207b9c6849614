"""Models on one device, and the threads that compute what is asked of them: token ids in, vectors or logits out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.inference.batches import Tokens, ragged_batches, token_batches
from bertfuse.inference.model import MAX_PADDING, TextModel
from bertfuse.runtime.session import CPU, CUDA

from .look import open_model
from .resident import resident_bytes
from .scheduler import Batch, Job, Limits, Scheduler
from .served import ModelOptions, Served
from .work import Answer, EngineError, Timing, Work

Rows = tuple[np.ndarray, np.ndarray | None]  # as Answer's rows and counts


class Engine:
    """Opens the models and computes in threads of its own until `close`.

    Args:
        models: folders and how each is served.
        device: "cpu", "cuda" or "cuda:1".
        threads: cores of a CPU to compute with; None: all that this process may use.
        memory: bytes that ONNX Runtime's arena on a GPU may take for each model; None: all there is.
        max_waiting: requests that wait at most.
        warm: tokens of the batches that are run before the engine is ready.
        resident: bytes that this process may have when it has run the largest batch of each model in each of its
            threads; None: any.

    Raises BertfuseError for a model that cannot be served, or where `resident` is not enough.
    """

    def __init__(
        self,
        models: Sequence[ModelOptions],
        device: str = "cpu",
        *,
        threads: int | None = None,
        memory: int | None = None,
        max_waiting: int = 512,
        warm: Sequence[int] = (16,),
        resident: int | None = None,
    ) -> None:
        cores = threads or len(os.sched_getaffinity(0))
        self.models: list[TextModel] = []
        self.served: list[Served] = []
        for options in models:
            before = resident_bytes()
            model, served = open_model(options, device, **_session(options, device, cores, memory))
            for tokens in warm:
                self._warm(model, min(tokens, model.max_batch_tokens))
            if resident is not None:  # on a CPU no run takes more than these
                with ThreadPoolExecutor(model.runs) as pool:
                    list(pool.map(lambda _, of=model: self._warm(of, of.max_batch_tokens), range(model.runs)))
            self.models.append(model)
            self.served.append(replace(served, resident_bytes=max(0, resident_bytes() - before)))
        if resident is not None and resident_bytes() > resident:
            taken = ", ".join(f"{served.name} {served.resident_bytes >> 20}" for served in self.served)
            raise BertfuseError(
                f"--memory {resident >> 20}: an engine takes {resident_bytes() >> 20} MiB ({taken}); serve fewer "
                "models, or give less --max-batch-tokens or --threads"
            )
        self._scheduler = Scheduler([_limits(model) for model in self.models], max_waiting)
        # The threads that each model would use by itself: they share the device.
        count = max(model.runs for model in self.models)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._scheduler)

    def submit(self, work: Work, done: Callable[[Job, Answer | Exception], None]) -> Job | None:
        """Queues the request; `done` gets its answer, in another thread. None where too many wait."""
        job = Job(work, done)
        return job if self._scheduler.put(job) else None

    def cancel(self, job: Job) -> None:
        self._scheduler.cancel(job)

    def close(self) -> None:
        """Ends the threads after the batches that they are at."""
        self._scheduler.close()
        for thread in self._threads:
            thread.join()

    def _warm(self, model: TextModel, tokens: int) -> None:
        length = min(tokens, model.max_seq_length)
        count = max(1, tokens // length)
        lengths = np.full(count, length, np.int64)
        given = Tokens(0, np.full(count * length, model.pad_id, np.int64), None, lengths)
        model.run_rows(given, np.arange(count), model.outputs[:1])

    def _work(self) -> None:
        while (batch := self._scheduler.take()) is not None:
            start = time.monotonic_ns()
            try:
                self._run(batch, start)
            except Exception as error:
                if len(batch.jobs) == 1:
                    batch.jobs[0].finish(EngineError(" ".join(str(error).split())[:500] or type(error).__name__))
                    continue
                for job, rows in zip(batch.jobs, batch.rows, strict=True):  # whose fault it is, each finds out alone
                    try:
                        self._run(Batch(batch.model, batch.what, [job], [rows], batch.waiting), start)
                    except Exception as own:
                        job.finish(EngineError(" ".join(str(own).split())[:500] or type(own).__name__))

    def _run(self, batch: Batch, start: int) -> None:
        model = self.models[batch.model]
        tokens, rows = _together(batch, model)
        found, counts = _READERS[batch.what](model, tokens, rows, batch.jobs[0].work.left_out)
        ran = time.monotonic_ns() - start
        begin = row = 0
        for job, mine in zip(batch.jobs, batch.rows, strict=True):
            if not job.parts:
                read = int(tokens.lengths[rows].sum())
                job.timing = Timing(start - job.begun, ran, len(batch.jobs), read, batch.waiting)
            own = None if counts is None else counts[row : row + len(mine)]
            end = begin + (len(mine) if own is None else int(own.sum()))
            part = (mine, found[begin:end], own)
            begin, row = end, row + len(mine)
            if job.add(part):
                job.finish(_joined(job))


def _session(options: ModelOptions, device: str, cores: int, memory: int | None) -> dict[str, Any]:
    """Further arguments of TextModel."""
    if device == "cpu":
        return {"threads": cores}
    made: dict[str, Any] = {}
    if memory is not None:
        number = int(device.partition(":")[2] or 0)
        settings = {"device_id": number, "gpu_mem_limit": memory, "arena_extend_strategy": "kSameAsRequested"}
        made["providers"] = [(CUDA, settings), CPU]
    if options.deterministic_rows:
        made["deterministic_rows"] = True
    return made


def _limits(model: TextModel) -> Limits:
    most, texts = model.max_batch_tokens, model.fixed_batch
    share = 1 if model.on_gpu else model.runs
    if model.ragged:
        return Limits(lambda lengths, most: ragged_batches(lengths, most, texts), most, share)
    padding = MAX_PADDING["gpu" if model.on_gpu else "cpu"]
    return Limits(lambda lengths, most: token_batches(lengths, most, texts, padding), most, share)


def _together(batch: Batch, model: TextModel) -> tuple[Tokens, np.ndarray]:
    """The texts of the batch's jobs one after the other, and which of them are asked for."""
    works = [job.work for job in batch.jobs]
    types = None
    if "token_type_ids" in model.inputs and any(work.type_ids is not None for work in works):
        parts = [np.zeros(len(work.ids), np.int64) if work.type_ids is None else work.type_ids for work in works]
        types = np.concatenate(parts).astype(np.int64)
    ids = np.concatenate([work.ids for work in works]).astype(np.int64)
    lengths = np.concatenate([work.lengths for work in works]).astype(np.int64)
    starts = np.cumsum([0, *(len(work.lengths) for work in works[:-1])])
    rows = np.concatenate([start + part for start, part in zip(starts, batch.rows, strict=True)])
    return Tokens(0, ids, types, lengths), rows


def _vectors(model: Any, tokens: Tokens, rows: np.ndarray, left_out: int) -> Rows:
    batch = model.run_rows(tokens, rows, [model.output_for(left_out)])
    return np.ascontiguousarray(model.vectors(batch, skipped=left_out), np.float32), None


def _tokens(model: Any, tokens: Tokens, rows: np.ndarray, _: int) -> Rows:
    output = "token_embeddings" if "token_embeddings" in model.outputs else "last_hidden_state"
    found = model.run_rows(tokens, rows, [output])
    return _of_tokens(found.outputs[output], found.lengths), found.lengths.astype(np.int32)


def _logits(model: Any, tokens: Tokens, rows: np.ndarray, _: int) -> Rows:
    return model.run_rows(tokens, rows, ["logits"]).outputs["logits"].astype(np.float32), None


def _words(model: Any, tokens: Tokens, rows: np.ndarray, _: int) -> Rows:
    """SPLADE's: of each word the largest log(1 + max(logit, 0)) of all tokens; those that are 0 are left out."""
    found = model.run_rows(tokens, rows, ["logits"])
    logits = found.outputs["logits"].astype(np.float32)
    logits[found.mask == 0] = 0
    weights = np.log1p(np.maximum(logits.max(axis=1), 0))
    where, words = np.nonzero(weights)
    counts = np.bincount(where, minlength=len(rows)).astype(np.int32)
    return np.stack([words.astype(np.float32), weights[where, words]], axis=1), counts


_READERS = {"vectors": _vectors, "tokens": _tokens, "logits": _logits, "words": _words}


def _of_tokens(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """float32 [T, size] of [N, longest, size], without padding."""
    return rows[np.arange(rows.shape[1]) < lengths[:, None]].astype(np.float32)


def _joined(job: Job) -> Answer:
    """The parts of a job in the order of its texts."""
    if len(job.parts) == 1 and (len(job.parts[0][0]) == 1 or np.all(np.diff(job.parts[0][0]) == 1)):
        return Answer(job.parts[0][1], job.parts[0][2], job.timing)
    order = np.argsort(np.concatenate([rows for rows, _, _ in job.parts]), kind="stable")
    found = np.concatenate([part for _, part, _ in job.parts])
    if job.parts[0][2] is None:
        return Answer(found[order], None, job.timing)
    counts = np.concatenate([own for _, _, own in job.parts if own is not None])
    ends = np.cumsum(counts)
    pieces = [found[ends[at] - counts[at] : ends[at]] for at in order]
    return Answer(np.concatenate(pieces), counts[order], job.timing)
