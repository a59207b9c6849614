"""Sentence vectors, with the arguments and results of sentence-transformers' SentenceTransformer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import folder_of
from bertfuse.model_folder.sentence_modules import M3_FILES, SENTENCE, TOKENS, read_modules, vector_size
from bertfuse.model_folder.sentence_settings import LATE, check_similarity, read_settings
from bertfuse.model_folder.tokenizer import left_out, special_token
from bertfuse.model_folder.towers import IMAGE, takes_images, towers_of, vector_output
from bertfuse.runtime.session import CPU

from .batches import Tokens, padded
from .devices import providers_on
from .image_model import ImageModel
from .model import Batch
from .multi_vector_encoder import MultiVectorEncoder
from .pooling import Pooling, normalized
from .pools import EncoderPool
from .prepare import has_routes, model_for, route_folder
from .prompts import PromptedModel
from .routed import RoutedEncoder
from .sparse_encoder import SparseEncoder, SparseVectors, largest_of_each
from .vectors import PAIRWISE, SIMILARITIES, as_tensor, check_precision, quantized

TOKEN_OUTPUTS = (TOKENS, "last_hidden_state")  # where a model has both, pooling reads the first


# What Encoder gives of folders of other classes of sentence-transformers.
OTHERS: dict[str, type[PromptedModel]] = {"SparseEncoder": SparseEncoder, **dict.fromkeys(LATE, MultiVectorEncoder)}


def _on_gpu(options: Mapping[str, Any]) -> bool:
    return (options.get("providers") or providers_on(options.get("device")))[0] != CPU


class Encoder(PromptedModel):
    """A sentence encoder's folder; arguments as TextModel's.

    `prompts`, `default_prompt_name`, `similarity_fn_name` and `truncate_dim` are those of
    config_sentence_transformers.json, where they are not given. Of a folder with routes (see `RoutedEncoder`) `route`
    names one; without it all of them are opened.
    """

    def __new__(cls, folder: str | os.PathLike[str], **options: Any) -> Any:
        path, route = Path(folder), options.get("route")
        if route is None and has_routes(path):
            return RoutedEncoder(cls, folder, **options)
        if route is not None and path.is_dir() and towers_of(path) is not None:
            images = route == IMAGE
        else:
            images = takes_images(path if path.is_dir() else folder_of(path))
        if cls is Encoder and not images:
            if route is not None:
                path = route_folder(path, route, _on_gpu(options))
            other = OTHERS.get(read_settings(path if path.is_dir() else folder_of(path)).model_type)
            if other is not None:
                return other(path, **{name: value for name, value in options.items() if name != "route"})
        return super().__new__(ImageEncoder if images and cls is Encoder else cls)

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
        route: str | None = None,
        **options: Any,
    ) -> None:
        self._source, self._options = Path(folder), options
        if route is not None:
            self._source = route_folder(self._source, route, _on_gpu(options))
        super().__init__(self._source, **options)
        found = self.settings
        self.similarity_fn_name = check_similarity(similarity_fn_name or found.similarity_fn_name)
        self.truncate_dim = found.truncate_dim if truncate_dim is None else truncate_dim
        vector = SENTENCE if SENTENCE in self.outputs else vector_output(self.folder)
        self.output = vector if vector in self.outputs else self._token_output("a sentence vector")
        if self.output in TOKEN_OUTPUTS:
            assert self._pooling  # what cannot be pooled is refused now

    def _token_output(self, purpose: str) -> str:
        named = next((name for name in TOKEN_OUTPUTS if name in self.outputs), TOKEN_OUTPUTS[-1])
        return self.require(named, purpose)

    @cached_property
    def _pooling(self) -> Pooling:
        return Pooling(read_modules(self.folder), self.folder, self._token_output("a sentence vector"))

    @cached_property
    def _with_tokens(self) -> Encoder:
        """This encoder with rows of all tokens; of a checkpoint the model at hand has only what is pooled of them."""
        if self._source.is_dir() and not set(TOKEN_OUTPUTS) & set(self.outputs):
            path = model_for(self._source, self.on_gpu, tokens=True)
            if path != self.path:
                return Encoder(path, **self._again)
        return self

    @property
    def _again(self) -> dict[str, Any]:
        """Options of another one like this."""
        return self._options | {"max_seq_length": self.max_seq_length, "session": None}

    def encode(
        self,
        sentences: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = SENTENCE,
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | Sequence[str] | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: EncoderPool | None = None,
        chunk_size: int | None = None,
        task: str | None = None,
    ) -> Any:
        """float32 vectors [len(sentences), size], in the order given; [size] of a single string.

        Args:
            sentences: texts, in a list, an array or anything else that can be gone through once; texts longer than
                `max_seq_length` tokens are cut.
            prompt_name: a key of `prompts`, whose text is put before each sentence; None takes the default one.
            prompt: that text itself.
            batch_size: the most texts in one batch; None: as many as `max_batch_tokens` allows.
            show_progress_bar: on stderr.
            output_value: "token_embeddings" gives a list of float32 arrays [tokens, size], the model's rows of all real
                tokens before pooling; None a list of dictionaries: these, "sentence_embedding" [size], and int64
                "input_ids" and "attention_mask" [tokens].
            precision: "int8", "uint8", "binary" or "ubinary": see `quantized`.
            convert_to_numpy: False gives a list of vectors.
            convert_to_tensor: a tensor of PyTorch on the CPU.
            device: that of the encoder, which is chosen when it is made; or a list of several ("cpu", "cuda:1"): a
                process each, for this call.
            normalize_embeddings: at length 1, also where the model itself does not do so.
            truncate_dim: keep only this many leading numbers of each vector; None: what `truncate_dim` says.
            pool: the processes of `start_multi_process_pool`.
            chunk_size: texts that a process of several gets at a time.
            task: which route texts take, where there are some; of no meaning here.

        Raises:
            BertfuseError: an argument is none of these, a sentence is no string, or the model has no such output.
        """
        precision = check_precision(precision)
        if output_value not in (SENTENCE, TOKENS, None):
            raise BertfuseError(f"output_value {output_value!r}: give '{SENTENCE}', '{TOKENS}' or None")
        alone = self.is_one(sentences)
        texts: list[Any] = [sentences] if alone else list(sentences)
        arguments = {
            "prompt": self.prompt_text(prompt_name, prompt),
            "batch_size": batch_size,
            "normalize": normalize_embeddings,
            "truncate_dim": self._cut(truncate_dim),
        }
        made: Any
        if pool is not None or isinstance(device, list | tuple):
            with EncoderPool.either(pool, type(self), self._source, device, self._again) as processes:
                made = processes.run(texts, arguments | {"output_value": output_value}, chunk_size)
        else:
            self.check_device(device)
            made = self.compute(texts, output_value, show_progress_bar=bool(show_progress_bar), **arguments)
        if output_value != SENTENCE:
            if convert_to_tensor and output_value == TOKENS:
                made = [as_tensor(row) for row in made]
            return made[0] if alone else made
        vectors = quantized(made, precision)
        if convert_to_tensor:
            return as_tensor(vectors[0] if alone else vectors)
        if alone:
            return vectors[0]
        return vectors if convert_to_numpy else list(vectors)

    def compute(
        self,
        texts: list[str],
        output_value: str | None = SENTENCE,
        *,
        prompt: str = "",
        batch_size: int | None = None,
        show_progress_bar: bool = False,
        normalize: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """What `encode` gives of texts, in this process, with `prompt` before each."""
        texts = [prompt + text if isinstance(text, str) else text for text in texts] if prompt else texts
        skipped = self.left_out(prompt)
        limits: dict[str, Any] = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
        if output_value != SENTENCE:
            return self._with_tokens._rows(texts, output_value, skipped, normalize, truncate_dim, limits)
        vectors: np.ndarray | None = None
        for batch in self.run(texts, [self.output_for(skipped)], **limits):
            found = self.vectors(batch, normalize, truncate_dim, skipped)
            if vectors is None:
                vectors = np.empty((len(texts), found.shape[1]), np.float32)
            vectors[batch.rows] = found
        if vectors is None:
            vectors = np.empty((0, self.dimension or 0), np.float32)[:, : self._cut(truncate_dim)]
        return vectors

    @staticmethod
    def is_one(given: Any) -> bool:
        """Whether `given` is a single text, not several of them."""
        return isinstance(given, str)

    def _rows(
        self,
        texts: list[str],
        output_value: str | None,
        skipped: int,
        normalize: bool,
        truncate_dim: int | None,
        limits: dict[str, Any],
    ) -> list[Any]:
        """Of each text its tokens' rows, or a dictionary of all there is of it."""
        tokens = self._token_output(output_value or TOKENS)
        pooled = self.output_for(skipped)
        whole = output_value is None
        made: list[Any] = [None] * len(texts)
        for batch in self.run(texts, list({tokens, pooled} if whole else {tokens}), encodings=whole, **limits):
            vectors = self.vectors(batch, normalize, truncate_dim, skipped) if whole else None
            for index, (row, length) in enumerate(zip(batch.rows, batch.lengths, strict=True)):
                made[row] = batch.outputs[tokens][index, :length].astype(np.float32)
                if vectors is not None:
                    made[row] = {
                        SENTENCE: vectors[index],
                        TOKENS: made[row],
                        "input_ids": np.array(batch.encodings[index].ids, np.int64),
                        "attention_mask": np.ones(length, np.int64),
                    }
        return made

    def encode_all(
        self, sentences: Iterable[str], batch_size: int | None = None, show_progress_bar: bool = False
    ) -> dict[str, Any]:
        """Of bge-m3 all that it makes of texts, from one pass, by FlagEmbedding's names.

        "dense_vecs" are `encode`'s float32 [N, size]; "lexical_weights" SparseVectors, of each token of the vocabulary
        the largest weight; "colbert_vecs" a list of float32 [tokens, size], of all tokens but the first, of length 1.
        How alike texts are: `similarity`, SparseVectors.dot, and `maxsim` of inference.maxsim. Raises
        BertfuseError for a model without these.
        """
        maker = self._with_tokens
        for output in M3_FILES:
            maker.require(output, "weights and vectors of tokens")
        texts, wanted = list(sentences), [self.output, *M3_FILES]
        before = self.prompt_text(None, None)
        texts = [before + text if isinstance(text, str) else text for text in texts]
        dense = np.empty((len(texts), self.dimension or 0), np.float32)
        words: list[Any] = [None] * len(texts)
        vectors: list[Any] = [None] * len(texts)
        unused = [special_token(self.folder, f"{name}_token") for name in ("cls", "eos", "sep", "pad", "unk")]
        special = {self.tokenizer.token_to_id(token) for token in unused if token is not None}
        options = {"batch_size": batch_size, "show_progress_bar": show_progress_bar, "encodings": True}
        for batch in maker.run(texts, wanted, **options):
            dense[batch.rows] = maker.vectors(batch)
            for at, (row, length) in enumerate(zip(batch.rows, batch.lengths, strict=True)):
                weights = batch.outputs["sparse_vecs"][at, :length, 0].astype(np.float32)
                words[row] = largest_of_each(np.array(batch.encodings[at].ids, np.int64), weights, special)
                vectors[row] = batch.outputs["colbert_vecs"][at, 1:length].astype(np.float32)
        size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        return {"dense_vecs": dense, "lexical_weights": SparseVectors(words, size), "colbert_vecs": vectors}

    def start_multi_process_pool(self, target_devices: Sequence[str] | None = None) -> EncoderPool:
        """A process for each of these devices ("cpu", "cuda:1"; None: every GPU, else four on the CPU), for `encode`.

        A program that calls this needs `if __name__ == "__main__":` around what it does when it is started.
        """
        return EncoderPool(type(self), self._source, target_devices, self._again)

    @staticmethod
    def stop_multi_process_pool(pool: EncoderPool) -> None:
        """Ends the processes of the pool."""
        pool.close()

    def tokenize(self, texts: Iterable[str | tuple[str, str]]) -> dict[str, np.ndarray]:
        """int64 arrays [texts, tokens of the longest] by the model's inputs, padded, and cut as `encode` does."""
        encodings = self.tokenizer.encode_batch(list(texts))
        tokens = Tokens.of(encodings)
        length = int(tokens.lengths.max(initial=1))
        made = {
            "input_ids": padded(tokens.ids, tokens.lengths, length, self.pad_id),
            "attention_mask": (np.arange(length) < tokens.lengths[:, None]).astype(np.int64),
        }
        if "token_type_ids" in self.inputs and tokens.type_ids is not None:
            made["token_type_ids"] = padded(tokens.type_ids, tokens.lengths, length)
        return made

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """[N, M] of vectors [N, size] and [M, size]: how alike they are, by `similarity_fn_name`."""
        return SIMILARITIES[self.similarity_fn_name](_vectors(embeddings1), _vectors(embeddings2))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """[N] of vectors [N, size] and [N, size]: how alike each is to the one at its place."""
        pair = _vectors(embeddings1), _vectors(embeddings2)
        if pair[0].shape != pair[1].shape:
            raise BertfuseError(
                f"vectors {pair[0].shape} and {pair[1].shape} are no pairs: give as many of each, of one size"
            )
        return PAIRWISE[self.similarity_fn_name](*pair)

    def get_sentence_embedding_dimension(self) -> int | None:
        """How many numbers a vector of `encode` has; None where the file does not say."""
        size = self.dimension
        return size if size is None or self.truncate_dim is None else min(size, self.truncate_dim)

    get_embedding_dimension = get_sentence_embedding_dimension

    def left_out(self, prompt: str) -> int:
        """How many tokens of a text with that prompt before it pooling leaves out."""
        return left_out(self.folder, self.tokenizer, prompt)

    def output_for(self, skipped: int) -> str:
        """The output that `vectors` reads, where pooling leaves out so many tokens."""
        return self._token_output("pooling without the prompt (include_prompt)") if skipped else self.output

    def vectors(
        self, batch: Batch, normalize: bool = False, truncate_dim: int | None = None, skipped: int = 0
    ) -> np.ndarray:
        """The batch's vectors [texts, size], from `output_for(skipped)`."""
        name = self.output_for(skipped)
        found = batch.outputs[name]
        if name in TOKEN_OUTPUTS:
            found = self._pooling(found, batch.mask, skipped)
        found = found[:, : self._cut(truncate_dim)]
        return normalized(found.astype(np.float32, copy=False)) if normalize else found

    def _cut(self, truncate_dim: int | None) -> int | None:
        return self.truncate_dim if truncate_dim is None else truncate_dim

    @property
    def dimension(self) -> int | None:
        """How many numbers a vector has before it is cut; None where the file does not say."""
        size = next(value for value in self.session.get_outputs() if value.name == self.output).shape[-1]
        if self.output not in TOKEN_OUTPUTS and isinstance(size, int):
            return size
        hidden = self.config.get("hidden_size")
        return vector_size(read_modules(self.folder), hidden) if isinstance(hidden, int) else None

    def __repr__(self) -> str:
        said = {
            "device": self.device,
            "dimension": self.get_sentence_embedding_dimension(),
            "max_seq_length": self.max_seq_length,
            "similarity_fn_name": self.similarity_fn_name,
            "prompts": list(self.prompts),
        }
        return f"Encoder({str(self.path)!r}, {', '.join(f'{name}={value!r}' for name, value in said.items())})"


class ImageEncoder(ImageModel, Encoder):
    """An encoder of images: PIL images, paths of images, or uint8 arrays [height, width, 3]. Prompts are for texts.

    It is what Encoder gives of the folder of a model of images.
    """

    @staticmethod
    def is_one(given: Any) -> bool:
        """Whether `given` is a single image, not several of them."""
        return isinstance(given, str | os.PathLike) or hasattr(given, "convert") or getattr(given, "ndim", 0) == 3

    def compute(self, texts: list[Any], output_value: str | None = SENTENCE, **options: Any) -> Any:
        """As Encoder's, of images."""
        if output_value is None:
            raise BertfuseError("output_value None: images have no input_ids; give 'sentence_embedding'")
        return super().compute(texts, output_value, **options)

    def prompt_text(self, name: str | None, prompt: str | None) -> str:
        """Nothing is put before an image."""
        return ""

    def left_out(self, prompt: str) -> int:
        return 0


def _vectors(given: Any) -> np.ndarray:
    return np.atleast_2d(np.asarray(given, np.float32))
