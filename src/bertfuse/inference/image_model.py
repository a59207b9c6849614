"""A folder of a model of images: its session and what is done with each image before it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.runtime.inputs import PIXELS, is_fixed
from bertfuse.runtime.session import CPU, ort_errors

from .image_processing import ImageProcessor
from .model import Batch, TextModel
from .prefetch import prefetch
from .progress import Progress

# Images of one run.
MAX_BATCH_IMAGES = {"cpu": 8, "gpu": 64}
_TYPES = {"tensor(float16)": np.float16, "tensor(double)": np.float64}


class ImageModel(TextModel):
    """As TextModel, of images: PIL images, paths of images, or uint8 arrays [height, width, 3]."""

    def _take_inputs(self, max_seq_length: int | None, max_batch_tokens: int | None) -> None:
        inputs = self.session.get_inputs()
        if [value.name for value in inputs] != [PIXELS] or not all(map(is_fixed, inputs[0].shape[1:])):
            names = ", ".join(f"{value.name} {value.shape}" for value in inputs)
            raise BertfuseError(f"{self.path}: takes {names}; images go into {PIXELS}, of one size")
        self.max_seq_length = max_seq_length
        self.ragged, self._of_tokens = False, set()
        self.inputs = {value.name: value for value in inputs}
        self.outputs = [value.name for value in self.session.get_outputs()]
        batch = inputs[0].shape[0]
        self.fixed_batch = batch if is_fixed(batch) else None
        self.image_size = tuple(inputs[0].shape[2:])  # height and width
        self._dtype = _TYPES.get(inputs[0].type, np.float32)
        self.processor = ImageProcessor(self.folder)
        place = "cpu" if self.session.get_providers() == [CPU] else "gpu"
        self.max_batch_images = self.fixed_batch or MAX_BATCH_IMAGES[place]

    @property
    def max_seq_length(self) -> int | None:
        """None: images have no length in tokens."""
        return None

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        if length is not None:
            raise BertfuseError(f"{self.path}: max_seq_length {length}: takes images, which have no length in tokens")

    def run(
        self,
        texts: Iterable[Any],
        outputs: Sequence[str],
        *,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        encodings: bool = False,
        offsets: bool = False,
    ) -> Iterator[Batch]:
        """Runs the model on all images, in their order, batch by batch; only `outputs` are fetched.

        Images are read and resized in threads ahead of those that are computed.
        """
        if batch_size is not None and batch_size < 1:
            raise BertfuseError(f"batch_size {batch_size}: give 1 or more, or None")
        count = min(batch_size or self.max_batch_images, self.fixed_batch or 1 << 30)
        total = len(texts) if isinstance(texts, Sized) else None

        def ran(job: tuple[int, list[Any]]) -> Batch:
            first, images = job
            pixels = np.stack([self.processor(image, f"image {first + at}") for at, image in enumerate(images)])
            return self._run_pixels(first, pixels, outputs)

        def jobs() -> Iterator[tuple[int, list[Any]]]:
            first, held = 0, []
            for image in texts:
                held.append(image)
                if len(held) == count:
                    yield first, held
                    first, held = first + count, []
            if held:
                yield first, held

        with ExitStack() as stack:
            progress = stack.enter_context(Progress(total, show_progress_bar))
            threads = self.runs + (len(os.sched_getaffinity(0)) if self.on_gpu else 0)
            pool = None if total is not None and total <= count else stack.enter_context(ThreadPoolExecutor(threads))
            for batch in prefetch(pool, ran, jobs(), threads + 1):
                yield batch
                progress.add(len(batch.rows))

    def run_pixels(self, pixels: np.ndarray, names: Sequence[str]) -> Batch:
        """One run on images as `processor.pixels` makes them, uint8 [count, height, width, 3]."""
        return self._run_pixels(0, np.stack([self.processor.values(image) for image in pixels]), names)

    def _run_pixels(self, first: int, pixels: np.ndarray, names: Sequence[str]) -> Batch:
        wanted = self.inputs[PIXELS].shape[1:]
        if list(pixels.shape[1:]) != list(wanted):
            made = list(pixels.shape[1:])
            raise BertfuseError(f"{self.path}: takes images {list(wanted)}, but the folder's settings make {made}")
        count = len(pixels)
        if self.fixed_batch and count < self.fixed_batch:
            pixels = np.concatenate([pixels, np.repeat(pixels[:1], self.fixed_batch - count, axis=0)])
        with ort_errors(str(self.path)):
            found = self.session.run(list(names), {PIXELS: pixels.astype(self._dtype, copy=False)})
        outputs = {name: array[:count] for name, array in zip(names, found, strict=True)}
        rows = next((array.shape[1] for array in outputs.values() if array.ndim == 3), 1)
        return Batch(np.arange(first, first + count), np.full(count, rows, np.int64), [], outputs, first + count)
