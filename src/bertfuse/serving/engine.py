"""Models on one device, and the threads that compute what is asked of them: token ids in, vectors or logits out."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.inference.batches import Tokens, ragged_batches, token_batches
from bertfuse.inference.devices import providers_on
from bertfuse.inference.image_model import ImageModel
from bertfuse.inference.model import MAX_PADDING, TextModel, open_session
from bertfuse.inference.model import Batch as Run
from bertfuse.runtime.session import CPU, CUDA

from .heads import Head, Shared
from .inbox import Inbox
from .look import open_model
from .readers import READERS, output_of
from .resident import resident_bytes
from .scheduler import Batch, Job, Limits, Scheduler
from .served import ModelOptions, Served
from .work import IMAGE_TOKENS, Answer, EngineError, Timing, Work


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
        shared: of which models one session computes several; their requests are computed together.

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
        shared: Sequence[Shared] = (),
    ) -> None:
        cores = threads or len(os.sched_getaffinity(0))
        self.models: list[TextModel] = []
        self.served: list[Served] = []
        self._runs: dict[int, TextModel] = {}  # by model, the one that computes several
        heads = {index: one for one in shared for index in one.models}
        for index, options in enumerate(models):
            before = resident_bytes()
            settings = _session(options, device, cores, memory)
            if index in heads:
                settings = self._head(index, options, heads[index], device, **settings)
            model, served = open_model(options, device, **settings)
            model.runs = self._runs.get(index, model).runs
            most = _most_tokens(model)
            for tokens in warm:
                self._warm(model, min(tokens, most))
            if resident is not None:  # on a CPU no run takes more than these
                with ThreadPoolExecutor(model.runs) as pool:
                    list(pool.map(lambda _, of=model, most=most: self._warm(of, most), range(model.runs)))
            self.models.append(model)
            self.served.append(replace(served, resident_bytes=max(0, resident_bytes() - before)))
        if resident is not None and resident_bytes() > resident:
            taken = ", ".join(f"{served.name} {served.resident_bytes >> 20}" for served in self.served)
            raise BertfuseError(
                f"--memory {resident >> 20}: an engine takes {resident_bytes() >> 20} MiB ({taken}); serve fewer "
                "models, or give less --max-batch-tokens or --threads"
            )
        together = self._together()
        # The runs that each model would have at once by itself: they share the device.
        runs = max(model.runs for model in self.models)
        limits = [_limits(model) for model in self.models]
        self._scheduler = Scheduler(limits, max_waiting, lambda kind: together.get(kind, kind), runs)
        self.inbox = Inbox()
        self._closed = False
        # One more, so that what comes is read, and what a reader was too slow for leaves, while all runs are at work.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(runs + 1)]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._scheduler)

    def submit(self, work: Work, done: Callable[[Job, Answer | Exception], None]) -> Job | None:
        """Queues the request; `done` gets its answer, in another thread. None where too many wait."""
        job = Job(work, done)
        if not self.put(job):
            return None
        self.inbox.ring()
        return job

    def put(self, job: Job) -> bool:
        """Queues it from a thread of the engine's own, which looks for a batch next. False where too many wait."""
        return self._scheduler.put(job)

    def cancel(self, job: Job) -> None:
        self._scheduler.cancel(job)

    def close(self) -> None:
        """Ends the threads after the batches that they are at."""
        self._closed = True
        self.inbox.ring()
        for thread in self._threads:
            thread.join()

    def _head(self, index: int, options: ModelOptions, shared: Shared, device: str, **session: Any) -> dict[str, Any]:
        """What opens the model `index` on the session of all that share it, which is opened for the first of them."""
        if shared.models[0] not in self._runs:
            providers = session.pop("providers", None) or providers_on(device)
            opened, count = open_session(Path(shared.path), providers, library=options.library, **session)
            self._runs[index] = TextModel(Path(options.folder), session=opened)
            self._runs[index].runs = count
        runs = self._runs[index] = self._runs[shared.models[0]]
        place = shared.models.index(index)
        return {"session": Head(runs.session, shared.outputs[place], shared.metadata[place])}

    def _together(self) -> dict[tuple[int, str, int], Hashable]:
        """By model, what and tokens left out, what one run computes with others: of models that share a session what is
        read from a row of each text. For rows of each token, those of the whole run would be fetched."""
        found: dict[tuple[int, str, int], Hashable] = {}
        for index, runs in self._runs.items():
            model = self.models[index]
            shapes = {value.name: value.shape for value in model.session.get_outputs()}
            what = "logits" if "logits" in shapes else "vectors"
            if len(shapes[output_of(model, what, 0)]) == 2:
                found[index, what, 0] = id(runs)
        return found

    def _warm(self, model: TextModel, tokens: int) -> None:
        if isinstance(model, ImageModel):
            count = max(1, tokens // IMAGE_TOKENS)
            model.run_pixels(np.zeros((count, *model.image_size, 3), np.uint8), model.outputs[:1])
            return
        length = min(tokens, model.max_seq_length)
        count = max(1, tokens // length)
        lengths = np.full(count, length, np.int64)
        given = Tokens(0, np.full(count * length, model.pad_id, np.int64), None, lengths)
        model.run_rows(given, np.arange(count), model.outputs[:1])

    def _work(self) -> None:
        """A thread reads what comes and runs what it read: handing it to another would cost a small request more than
        its reading does."""
        while not self._closed:
            batch = self._scheduler.take()
            if batch is None:
                self.inbox.wait()
                continue
            if self._scheduler.ready:
                self.inbox.ring()
            try:
                self._answer(batch)
            finally:
                self._scheduler.ran()
            self.inbox.flush()
        self.inbox.ring()  # for the next

    def _answer(self, batch: Batch) -> None:
        start = time.monotonic_ns()
        try:
            self._run(batch, start)
        except Exception as error:
            if len(batch.jobs) == 1:
                batch.jobs[0].finish(EngineError(" ".join(str(error).split())[:500] or type(error).__name__))
                return
            for job, rows in zip(batch.jobs, batch.rows, strict=True):  # whose fault it is, each finds out alone
                try:
                    self._run(Batch([job], [rows], batch.waiting), start)
                except Exception as own:
                    job.finish(EngineError(" ".join(str(own).split())[:500] or type(own).__name__))

    def _run(self, batch: Batch, start: int) -> None:
        first = batch.jobs[0].work.model
        runs = self._runs.get(first, self.models[first])
        kinds: dict[tuple[int, str, int], list[int]] = {}  # jobs that read one output
        for place, job in enumerate(batch.jobs):
            kinds.setdefault(job.work.kind, []).append(place)
        outputs = {kind: output_of(self.models[kind[0]], *kind[1:]) for kind in kinds}
        called = {kind: self._called(kind[0], output) for kind, output in outputs.items()}
        names = list(dict.fromkeys(called.values()))
        if isinstance(runs, ImageModel):
            run = runs.run_pixels(_joined_images(batch), names)
        else:
            run = runs.run_rows(*_joined_texts(batch, runs), names)
        ran = time.monotonic_ns() - start
        read = int(run.lengths.sum())
        for kind, places in kinds.items():
            found = {outputs[kind]: run.outputs[called[kind]]}
            mine = run.rows, run.lengths
            if len(kinds) > 1:
                ends = np.cumsum([len(part) for part in batch.rows])
                these = np.concatenate([np.arange(ends[at] - len(batch.rows[at]), ends[at]) for at in places])
                found = {name: array[these] for name, array in found.items()}
                mine = run.rows[these], run.lengths[these]
            values, counts = READERS[kind[1]](self.models[kind[0]], Run(*mine, [], found), kind[2])
            begin = row = 0
            for place in places:
                job, part = batch.jobs[place], batch.rows[place]
                if not job.parts:
                    job.timing = Timing(start - job.begun, ran, len(batch.jobs), read, batch.waiting)
                own = None if counts is None else counts[row : row + len(part)]
                end = begin + (len(part) if own is None else int(own.sum()))
                done = (part, values[begin:end], own)
                begin, row = end, row + len(part)
                if job.add(done):
                    job.finish(_joined(job))

    def _called(self, index: int, output: str) -> str:
        """The name of a model's output in the session that computes it."""
        session = self.models[index].session
        return session.outputs[output] if isinstance(session, Head) else output


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


def _most_tokens(model: TextModel) -> int:
    """Of one run."""
    return IMAGE_TOKENS * model.max_batch_images if isinstance(model, ImageModel) else model.max_batch_tokens


def _limits(model: TextModel) -> Limits:
    share = 1 if model.on_gpu else model.runs
    if isinstance(model, ImageModel):
        return Limits(_in_order, model.max_batch_images, share)
    most, texts = model.max_batch_tokens, model.fixed_batch
    if model.ragged:
        return Limits(lambda lengths, most: ragged_batches(lengths, most, texts), most, share)
    padding = MAX_PADDING["gpu" if model.on_gpu else "cpu"]
    return Limits(lambda lengths, most: token_batches(lengths, most, texts, padding), most, share)


def _in_order(lengths: Sequence[int], most: int) -> Iterator[np.ndarray]:
    """Images, which all take as long, in batches of `most`."""
    return (np.arange(begin, min(begin + most, len(lengths))) for begin in range(0, len(lengths), most))


def _joined_images(batch: Batch) -> np.ndarray:
    given = [(job.work.pixels, rows) for job, rows in zip(batch.jobs, batch.rows, strict=True)]
    return np.concatenate([pixels[rows] for pixels, rows in given if pixels is not None])


def _joined_texts(batch: Batch, model: TextModel) -> tuple[Tokens, np.ndarray]:
    """The texts of the batch's jobs one after the other, and which of them are asked for."""
    works = [job.work for job in batch.jobs]
    seen = None
    if any(work.seen is not None for work in works):
        seen = np.concatenate([work.lengths if work.seen is None else work.seen for work in works]).astype(np.int64)
    if len(works) == 1 and works[0].type_ids is None:
        lengths = works[0].lengths.astype(np.int64)
        return Tokens(0, works[0].ids.astype(np.int64), None, lengths, seen=seen), batch.rows[0]
    types = None
    if "token_type_ids" in model.inputs and any(work.type_ids is not None for work in works):
        parts = [np.zeros(len(work.ids), np.int64) if work.type_ids is None else work.type_ids for work in works]
        types = np.concatenate(parts).astype(np.int64)
    ids = np.concatenate([work.ids for work in works]).astype(np.int64)
    lengths = np.concatenate([work.lengths for work in works]).astype(np.int64)
    starts = np.cumsum([0, *(len(work.lengths) for work in works[:-1])])
    rows = np.concatenate([start + part for start, part in zip(starts, batch.rows, strict=True)])
    return Tokens(0, ids, types, lengths, seen=seen), rows


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
