"""What every task has in common: a folder's session and tokenizer, and texts through them in batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import folder_of, longest_sequence, read_config
from bertfuse.model_folder.tokenizer import cut, longest_text, open_tokenizer, padding_token, takes_types
from bertfuse.runtime.padded_session import padded_inputs, padded_outputs
from bertfuse.runtime.ragged_inputs import OFFSETS, bounds_of
from bertfuse.runtime.session import CPU, InferenceSession, ort_errors

from .batches import Tokens, padded, ragged_batches, token_batches
from .devices import providers_on
from .prefetch import prefetch
from .prepare import model_for
from .progress import Progress
from .windows import Text, Windows

# Tokens of one run, padding included. Measured on 2 cores with MiniLM and sentences of 20 tokens: see
# tests/ecosystem/bench_encode.py. A GPU needs more to be busy.
MAX_BATCH_TOKENS = {"cpu": 512, "gpu": 16384}
# So many tokens of padding cost what another run costs: on an H200 bert-base takes 0.4 us for a token, and 0.7 ms for a
# run beside. On a CPU a run costs MiniLM what a few tokens do: 32 sentences of 13 tokens take 2.16 ms of a core each
# with 16, 2.31 with 64 and 2.46 with 4; 8 of them 2.78, 3.12 and 3.15.
MAX_PADDING = {"cpu": 16, "gpu": 2048}
TOKENIZING = 2  # windows at once: one is made arrays of while the tokenizer's own threads are at the other
# Runs at once on a GPU, of which one computes while others' inputs and outputs are copied: bert-base on an H200 embeds
# 61,000 sentences a second with one or two, 65,000 with three.
GPU_RUNS = 3

_SESSION_OPTIONS = {
    "library",
    "tuning",
    "tf32",
    "deterministic_rows",
    "sess_options",
    "provider_options",
    "disabled_optimizers",
}


@dataclass
class Batch:
    """One run: `rows` are the positions of its texts among all, in the order of the arrays' first axis.

    `complete` texts, the first ones, have been given in full with this batch and those before it.
    """

    rows: np.ndarray
    lengths: np.ndarray
    encodings: list[Any]
    outputs: dict[str, np.ndarray]
    complete: int = 0

    @property
    def mask(self) -> np.ndarray:
        """int64 [batch, sequence], 1 where there is a token."""
        sequence = next(array.shape[1] for array in self.outputs.values() if array.ndim > 2)
        return (np.arange(sequence) < self.lengths[:, None]).astype(np.int64)


class TextModel:
    """A model folder (either layout), or an .onnx file in one, with its tokenizer; of padded, packed or ragged batches.

    Args:
        folder: what `bertfuse optimize`, `export` or `fuse` wrote, or any folder with onnx/model.onnx or model.onnx,
            config.json and tokenizer.json. A checkpoint without ONNX files is exported and fused when first used, which
            takes the packages of the extra "export", and kept in a cache folder (see `prepare`).
        device: "cpu", "cuda", or "cuda:1"; None: the first GPU, where this onnxruntime can use one, else the CPU.
        providers: onnxruntime's list, in place of `device`.
        max_seq_length: at how many tokens texts are cut; None takes what the folder says.
        max_batch_tokens: tokens of one run, padding included; None: 512 on the CPU, 16384 elsewhere.
        threads: in which a CPU computes; None: one for each core.
        runs: batches computed at once. None: on a CPU one for each thread, which takes half the time of one run in all
            threads (2 cores, MiniLM); 1 gives a text that comes alone all of them. On a GPU 3.
        session: one of this model that is there already.
        library, tuning, tf32, deterministic_rows, sess_options: as bertfuse.InferenceSession takes them.

    Raises:
        BertfuseError: a file is missing or broken, or the model cannot be loaded.
    """

    _stride = 0  # tokens that parts of a text have in common, where it is read in parts

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        device: str | None = None,
        providers: Sequence[Any] | None = None,
        max_seq_length: int | None = None,
        max_batch_tokens: int | None = None,
        threads: int | None = None,
        runs: int | None = None,
        session: InferenceSession | None = None,
        **session_options: Any,
    ) -> None:
        unknown = sorted(session_options.keys() - _SESSION_OPTIONS)
        if unknown:  # onnxruntime would take no notice of it
            raise BertfuseError(f"{type(self).__name__} has no argument {', '.join(unknown)}")
        wanted = list(providers) if providers is not None else providers_on(device)
        if session is not None:
            wanted = list(session.get_providers())
        self.on_gpu = on_gpu = wanted[:1] != [CPU]
        self.path = model_for(Path(folder), on_gpu)
        self.folder = folder_of(self.path)
        self.config = read_config(self.folder)
        self.runs = GPU_RUNS if on_gpu else 1
        if session is None:
            session, self.runs = open_session(self.path, wanted, threads, runs, **session_options)
        self.session = session
        self._take_inputs(max_seq_length, max_batch_tokens)

    def _take_inputs(self, max_seq_length: int | None, max_batch_tokens: int | None) -> None:
        """What depends on the session's inputs, and what is needed to fill them."""
        session = self.session
        inputs = session.get_inputs()
        self.ragged = OFFSETS in {value.name for value in inputs}
        shown = padded_inputs(inputs) if self.ragged else inputs
        self.inputs = {value.name: value for value in shown}
        self.outputs = [value.name for value in session.get_outputs()]
        outputs = padded_outputs(inputs, session.get_outputs()) if self.ragged else session.get_outputs()
        self._of_tokens = {v.name for v in outputs if self.ragged and v.shape[:2] == ["batch", "sequence"]}
        unknown = set(self.inputs) - {"input_ids", "attention_mask", "token_type_ids"}
        if unknown or not {"input_ids", "attention_mask"} <= set(self.inputs):
            raise BertfuseError(
                f"{self.path}: takes {', '.join(self.inputs)}; texts go into input_ids, attention_mask, token_type_ids"
            )
        self.fixed_batch, self.fixed_length = self._fixed_shape()
        self.tokenizer = open_tokenizer(self.folder)
        self.max_seq_length = longest_text(self.folder) if max_seq_length is None else max_seq_length
        self.pad_id = padding_token(self.folder, self.tokenizer)[0]
        place = "cpu" if self.session.get_providers() == [CPU] else "gpu"
        self.max_batch_tokens = max_batch_tokens or MAX_BATCH_TOKENS[place]
        self._max_padding = MAX_PADDING[place]
        self._types = {value.name: value.type for value in inputs}

    @property
    def max_seq_length(self) -> int:
        """At how many tokens texts are cut, special tokens included. It may be set, up to what the model takes."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        least, most = self.tokenizer.num_special_tokens_to_add(is_pair=False) + 1, longest_sequence(self.config)
        if length < least or length > (most or length):
            limit = f"{least} to {most}" if most else f"{least} or more"
            raise BertfuseError(f"{self.path}: max_seq_length {length}: this model takes {limit} tokens")
        self._max_seq_length = min(length, self.fixed_length or length)
        cut(self.tokenizer, self.folder, self._max_seq_length, min(self._stride, self._max_seq_length - least))

    @property
    def task(self) -> str:
        """What the model was exported for; "" where the file does not say."""
        return self.session.get_modelmeta().custom_metadata_map.get("bertfuse.task", "")

    @property
    def device(self) -> str:
        """ "cpu", "cuda", or "cuda:1" for the second GPU."""
        if self.session.get_providers() == [CPU]:
            return "cpu"
        options = next(iter(self.session.get_provider_options().values()), {})
        number = str(options.get("device_id", "0"))
        return "cuda" if number == "0" else f"cuda:{number}"

    def check_device(self, device: Any) -> None:
        """Raises BertfuseError where a call names another device than the session is on."""
        here = self.device
        if device is not None and str(device) not in (here, here.partition(":")[0], f"{here}:0"):
            kind = type(self).__name__
            raise BertfuseError(f"device {str(device)!r}: this {kind} is on {here}; make another one for that device")

    def require(self, output: str, purpose: str) -> str:
        """`output`, where the model has it; BertfuseError with the `purpose` where it has not."""
        if output not in self.outputs:
            made_for = f", since it was exported for {self.task}" if self.task else ""
            raise BertfuseError(f"{self.path}: has no output {output}, which {purpose} needs{made_for}")
        return output

    def run(
        self,
        texts: Iterable[Text],
        outputs: Sequence[str],
        *,
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        encodings: bool = False,
        offsets: bool = False,
    ) -> Iterator[Batch]:
        """Runs the model on all texts, batch by batch, not in their order; only `outputs` are fetched.

        `texts` may be a stream: a few windows of it are held. They are tokenised ahead, on all cores, while the session
        runs: the tokenizer holds no lock then. `encodings` keeps what the tokenizer gave; `offsets` does, too, and asks
        for where tokens lie in the text, which costs time.
        """
        if batch_size is not None and batch_size < 1:
            raise BertfuseError(f"batch_size {batch_size}: give 1 or more, or None")
        limit = self.fixed_batch if self.fixed_batch and self.fixed_batch < (batch_size or 1 << 30) else batch_size

        def tokenized(window: tuple[int, list[Text]]) -> Tokens:
            return self._tokenized(*window, encodings or offsets, offsets)

        def ran(job: tuple[Tokens, np.ndarray, int]) -> Batch:
            return self.run_rows(job[0], job[1], outputs, job[2])

        of_texts = Windows(texts)
        windows = iter(of_texts)
        first = list(islice(windows, 3))
        few = len(first) < 3 and sum(len(window) for _, window in first) <= 8
        total = len(texts) if isinstance(texts, Sized) else None
        with ExitStack() as stack:
            progress = stack.enter_context(Progress(total, show_progress_bar))
            pools: list[ThreadPoolExecutor | None] = [None, None]
            if not few:  # threads cost more than a text or two
                pools = [stack.enter_context(ThreadPoolExecutor(count)) for count in (TOKENIZING, self.runs)]
            ready = prefetch(pools[0], tokenized, chain(first, windows), TOKENIZING + 1)
            jobs = ((tokens, *job) for tokens in ready for job in self._batches(tokens, limit))
            for batch in prefetch(pools[1], ran, jobs, self.runs + 1):
                of_texts.computed(batch.complete)
                yield batch
                progress.add(len(batch.rows))

    def _tokenized(self, first: int, texts: list[Text], keep: bool, offsets: bool) -> Tokens:
        encode = self.tokenizer.encode_batch if offsets else _fast(self.tokenizer)
        types = self._typed and any(isinstance(text, tuple) for text in texts)
        try:
            encodings = encode(texts)
        except TypeError as error:  # of strings that hold half a character
            row = next((row for row, text in enumerate(texts) if not _is_unicode(text)), None)
            if row is None:
                raise
            raise BertfuseError(
                f"text {first + row} is not valid Unicode: it holds half of a surrogate pair"
            ) from error
        return Tokens.of(encodings, first, types or self._typed_alone, keep)

    @cached_property
    def _typed(self) -> bool:
        return "token_type_ids" in self.inputs and takes_types(self.folder)

    @property
    def _typed_alone(self) -> bool:
        """Whether the tokenizer gives a text without a second segment other type ids than 0."""
        return self._typed and any(self.tokenizer.encode("a").type_ids)

    def _batches(self, tokens: Tokens, limit: int | None) -> Iterator[tuple[np.ndarray, int]]:
        """The rows of each batch of a window, and how many texts are complete with it."""
        if self.ragged:
            cut = ragged_batches(tokens.lengths, self.max_batch_tokens, limit)
        else:
            cut = token_batches(tokens.lengths, self.max_batch_tokens, limit, self._max_padding)
        left = len(tokens.lengths)
        for rows in cut:
            left -= len(rows)
            yield rows, tokens.first + (0 if left else tokens.texts)

    def run_rows(self, tokens: Tokens, rows: np.ndarray, names: Sequence[str], complete: int = 0) -> Batch:
        """One run on those texts of `tokens`, of which only the outputs `names` are fetched. Any thread may call it."""
        count = len(rows)
        filled = rows
        if self.fixed_batch:
            filled = np.concatenate([rows, np.repeat(rows[:1], self.fixed_batch - count)])
        lengths, places = tokens.lengths[filled], tokens.places(filled)
        ids = tokens.ids[places]
        values = {"input_ids": (ids, self.pad_id)}
        if "token_type_ids" in self.inputs:
            types = np.zeros(len(ids), np.int64) if tokens.type_ids is None else tokens.type_ids[places]
            values["token_type_ids"] = (types, 0)
        if self.ragged:
            feed = {name: array for name, (array, _) in values.items()}
            feed |= bounds_of(lengths)
        else:
            length = self.fixed_length or max(1, int(lengths.max()))
            feed = {name: padded(array, lengths, length, fill) for name, (array, fill) in values.items()}
            seen = lengths if tokens.seen is None else tokens.seen[filled]
            feed["attention_mask"] = (np.arange(length) < seen[:, None]).astype(np.int64)
        taken = {name: _as(array, self._types[name]) for name, array in feed.items()}
        with ort_errors(str(self.path)):
            found = dict(zip(names, self.session.run(list(names), taken), strict=True))
        for name, array in found.items():
            found[name] = padded(array, lengths, int(lengths.max())) if name in self._of_tokens else array[:count]
        kept = [tokens.encodings[row] for row in rows] if tokens.encodings is not None else []
        owners = rows if tokens.owners is None else tokens.owners[rows]
        return Batch(owners + tokens.first, tokens.lengths[rows], kept, found, complete)

    def _fixed_shape(self) -> tuple[int | None, int | None]:
        shape = self.inputs["input_ids"].shape
        batch, length = shape if len(shape) == 2 else (None, None)
        return (batch if isinstance(batch, int) else None), (length if isinstance(length, int) else None)


def _is_unicode(text: Text) -> bool:
    try:
        "".join(text).encode()
    except UnicodeEncodeError:
        return False
    return True


def open_session(
    path: Path, providers: Sequence[Any], threads: int | None = None, runs: int | None = None, **options: Any
) -> tuple[InferenceSession, int]:
    """The session of an ONNX file, and how many runs at once it is made for; arguments as TextModel's."""
    on_gpu = providers[0] != CPU
    if options.get("sess_options") is not None:
        return InferenceSession(path, providers, **options), GPU_RUNS if on_gpu else 1
    cores = threads or len(os.sched_getaffinity(0))
    runs = runs or (GPU_RUNS if on_gpu else cores)
    options["sess_options"] = _session_options(on_gpu, max(1, cores // runs))
    return InferenceSession(path, providers, **options), runs


def _session_options(on_gpu: bool, threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if on_gpu:
        options.enable_mem_pattern = False  # planned anew for every shape, and there are many
    else:
        options.intra_op_num_threads = threads
    return options


def _fast(tokenizer: Any) -> Any:
    """encode_batch without offsets, which tokenizers has since 0.20.1."""
    return getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)


_INPUT_TYPES = {"tensor(int32)": np.int32, "tensor(bool)": np.bool_, "tensor(float)": np.float32}


def _as(array: np.ndarray, kind: str) -> np.ndarray:
    return array.astype(_INPUT_TYPES[kind]) if kind in _INPUT_TYPES else array
