"""What every task has in common: a folder's session and tokenizer, and texts through them in batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.runtime.folder import find_model, folder_of, longest_text, read_config
from bertfuse.runtime.padded_session import OFFSETS, PaddedSession
from bertfuse.runtime.session import CPU, InferenceSession, ort_errors, providers_of
from bertfuse.runtime.tokenizer import open_tokenizer, padding_token

from .batches import padded, token_batches

# Tokens of one run, padding included. Measured on 2 cores with MiniLM and sentences of 20 tokens: see
# tests/ecosystem/bench_encode.py. A GPU needs more to be busy.
MAX_BATCH_TOKENS = {"cpu": 512, "gpu": 16384}
WINDOW = 4096  # texts that are tokenised, and sorted by length, at a time

Text = str | tuple[str, str]  # with a second segment


@dataclass
class Batch:
    """One run: `rows` are the positions of its texts among all, in the order of the arrays' first axis."""

    rows: np.ndarray
    encodings: list[Any]
    feed: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]

    @property
    def mask(self) -> np.ndarray:
        """int64 [batch, sequence], 1 where there is a token."""
        return self.feed["attention_mask"]


class TextModel:
    """A model folder (either layout), or an .onnx file in one, with its tokenizer; of padded, packed or ragged batches.

    Args:
        folder: what `bertfuse optimize`, `export` or `fuse` wrote, or any folder with onnx/model.onnx or model.onnx,
            config.json and tokenizer.json.
        device: "cpu" or "cuda".
        providers: onnxruntime's list, in place of `device`.
        max_seq_length: at how many tokens texts are cut; None takes what the folder says.
        max_batch_tokens: tokens of one run, padding included; None: 512 on the CPU, 16384 elsewhere.
        session: one of this model that is there already.
        library, tuning, tf32, sess_options: as bertfuse.InferenceSession takes them.

    Raises:
        BertfuseError: a file is missing or broken, or the model cannot be loaded.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        device: str = "cpu",
        providers: Sequence[Any] | None = None,
        max_seq_length: int | None = None,
        max_batch_tokens: int | None = None,
        session: InferenceSession | None = None,
        **session_options: Any,
    ) -> None:
        self.path = find_model(Path(folder))
        self.folder = folder_of(self.path)
        self.config = read_config(self.folder)
        if session is None:
            wanted = list(providers) if providers is not None else providers_of(device)
            session = InferenceSession(self.path, wanted, **session_options)
        self.session = session
        ragged = OFFSETS in {value.name for value in session.get_inputs()}
        self._runner: Any = PaddedSession(session) if ragged else session
        self.inputs = {value.name: value for value in self._runner.get_inputs()}
        self.outputs = [value.name for value in self._runner.get_outputs()]
        unknown = set(self.inputs) - {"input_ids", "attention_mask", "token_type_ids"}
        if unknown or not {"input_ids", "attention_mask"} <= set(self.inputs):
            raise BertfuseError(
                f"{self.path}: takes {', '.join(self.inputs)}; texts go into input_ids, attention_mask, token_type_ids"
            )
        self.fixed_batch, self.fixed_length = self._fixed_shape()
        longest = longest_text(self.folder) if max_seq_length is None else max_seq_length
        self.max_seq_length = min(longest, self.fixed_length or longest)
        self.tokenizer = open_tokenizer(self.folder, self.max_seq_length)
        self.pad_id = padding_token(self.folder, self.tokenizer)[0]
        on_cpu = self.session.get_providers() == [CPU]
        self.max_batch_tokens = max_batch_tokens or MAX_BATCH_TOKENS["cpu" if on_cpu else "gpu"]

    @property
    def task(self) -> str:
        """What the model was exported for; "" where the file does not say."""
        return self.session.get_modelmeta().custom_metadata_map.get("bertfuse.task", "")

    def require(self, output: str, purpose: str) -> str:
        """`output`, where the model has it; BertfuseError with the `purpose` where it has not."""
        if output not in self.outputs:
            made_for = f", since it was exported for {self.task}" if self.task else ""
            raise BertfuseError(f"{self.path}: has no output {output}, which {purpose} needs{made_for}")
        return output

    def run(
        self,
        texts: Sequence[Text],
        outputs: Sequence[str],
        *,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        offsets: bool = False,
    ) -> Iterator[Batch]:
        """Runs the model on all texts, batch by batch, not in their order; only `outputs` are fetched.

        Texts are tokenised a window ahead, on all cores, while the session runs: the tokenizer holds no lock then.
        `offsets` asks for where tokens lie in the text, which costs time.
        """
        if batch_size is not None and batch_size < 1:
            raise BertfuseError(f"batch_size {batch_size}: give 1 or more, or None")
        for index, text in enumerate(texts):
            if not (isinstance(text, str) or (isinstance(text, tuple) and all(isinstance(t, str) for t in text))):
                raise BertfuseError(f"text {index} is a {type(text).__name__}, no string")
        encode = self.tokenizer.encode_batch if offsets else _fast(self.tokenizer)
        starts = range(0, len(texts), WINDOW)
        with ThreadPoolExecutor(1) as ahead, _Progress(len(texts), show_progress_bar) as progress:
            waiting = [ahead.submit(encode, texts[start : start + WINDOW]) for start in starts[:1]]
            for number, start in enumerate(starts):
                encodings = waiting.pop().result()
                waiting += [ahead.submit(encode, texts[at : at + WINDOW]) for at in starts[number + 1 : number + 2]]
                lengths = [len(encoding) for encoding in encodings]
                fixed = self.fixed_batch
                limit = fixed if fixed and (batch_size is None or fixed < batch_size) else batch_size
                for rows in token_batches(lengths, self.max_batch_tokens, limit):
                    batch = self._run([encodings[row] for row in rows], rows + start, outputs)
                    yield batch
                    progress.add(len(rows))

    def _run(self, encodings: list[Any], rows: np.ndarray, names: Sequence[str]) -> Batch:
        length = self.fixed_length or max(1, *(len(encoding) for encoding in encodings))
        filled = encodings + encodings[:1] * ((self.fixed_batch or 0) - len(encodings))
        feed = {
            "input_ids": padded([encoding.ids for encoding in filled], length, self.pad_id),
            "attention_mask": padded([encoding.attention_mask for encoding in filled], length, 0),
        }
        if "token_type_ids" in self.inputs:
            feed["token_type_ids"] = padded([encoding.type_ids for encoding in filled], length, 0)
        taken = {name: _as(array, self.inputs[name].type) for name, array in feed.items()}
        with ort_errors(str(self.path)):
            found = self._runner.run(list(names), taken)
        count = len(encodings)
        outputs = {name: array[:count] for name, array in zip(names, found, strict=True)}
        return Batch(rows, encodings, {name: array[:count] for name, array in feed.items()}, outputs)

    def _fixed_shape(self) -> tuple[int | None, int | None]:
        shape = self.inputs["input_ids"].shape
        batch, length = shape if len(shape) == 2 else (None, None)
        return (batch if isinstance(batch, int) else None), (length if isinstance(length, int) else None)


def _fast(tokenizer: Any) -> Any:
    """encode_batch without offsets, which tokenizers has since 0.20.1."""
    return getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)


_INPUT_TYPES = {"tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(float)": np.float32}


def _as(array: np.ndarray, kind: str) -> np.ndarray:
    return array.astype(_INPUT_TYPES[kind]) if kind in _INPUT_TYPES else array


class _Progress:
    """Texts done and the rate, on one line of stderr that is written anew, where it is wanted."""

    def __init__(self, total: int, shown: bool) -> None:
        self._bar: Any = None
        self._total, self._shown = total, shown

    def __enter__(self) -> _Progress:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("texts"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(file=sys.stderr))
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def add(self, count: int) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
