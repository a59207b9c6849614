"""What the routes share: the models by name, their tokenizers, the engines, limits and counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertfuse.inference.activations import Activation, labels_of, of_classifier, of_reranker
from bertfuse.inference.pooling import normalized
from bertfuse.model_folder.files import folder_of, read_config
from bertfuse.model_folder.towers import IMAGE, TEXT

from .checks import RETRY_AFTER, Limits, RequestError, Text, a_name
from .engines import Asks
from .late import Late
from .metrics import Metrics
from .pictures import Pictures
from .served import Served
from .tokens import Tokenised, Tokenizer
from .work import Answer, EngineError, EngineFull, Timing, Work

MOST_ROWS = 1 << 16  # vectors of tokens in one answer: 200 MB where they have 768 numbers
_ROUTES = {"embed": "/v1/embeddings", "rerank": "/rerank", "classify": "/classify", "sparse": "/embed_sparse"}
_ROUTES["late"] = "/embed_all, /v1/multi-vector and /rerank"
_IMAGES_ALONE = 'takes images alone: send them as data URIs, with "modality": "image"'

T = TypeVar("T")


class Model:
    """A served model as a process that speaks HTTP knows it."""

    def __init__(self, served: Served, index: int) -> None:
        self.served, self.index = served, index
        self.prompts = dict(served.prompts)
        folder = folder_of(Path(served.path))
        config = read_config(folder)
        self.late = Late(served) if served.kind == "late" else None
        if served.modality == TEXT:
            self.tokenizer = self.late.documents if self.late else Tokenizer(served.path, served.max_input_tokens)
            prompts = {served.default_prompt, *self.prompts.values()}
            self._left_out = {prompt: self.tokenizer.left_out(prompt) for prompt in prompts}
        self.labels = labels_of(config, served.labels)
        self.activation: Activation = np.asarray
        if served.kind == "rerank":
            self.activation = of_reranker(folder, config, served.labels)
        elif served.kind == "classify":
            self.activation = of_classifier(config, served.labels)

    def prompted(self, inputs: Sequence[Any], prompt_name: str | None, param: str) -> list[str]:
        """The texts of strings and lists of token ids, with the prompt before each."""
        if prompt_name is not None and prompt_name not in self.prompts:
            known = ", ".join(self.prompts) or "it has none"
            raise RequestError(f"The model has no prompt {prompt_name!r}: {known}.", param="prompt_name")
        prompt = self._prompt(prompt_name)
        texts = [
            entry if isinstance(entry, str) else self.tokenizer.text(entry, f"{param}[{index}]")
            for index, entry in enumerate(inputs)
        ]
        return [prompt + text for text in texts] if prompt else texts

    def left_out(self, prompt_name: str | None) -> int:
        """How many tokens of each text of `prompted` pooling leaves out."""
        return self._left_out[self._prompt(prompt_name)]

    def _prompt(self, name: str | None) -> str:
        return self.served.default_prompt if name is None else self.prompts[name]


@dataclass
class Call:
    """One request on its way: what logs and counts say of it."""

    endpoint: str
    number: str
    start: float = field(default_factory=time.monotonic)
    model: str = ""
    texts: int = 0
    tokens: int = 0
    tokenizing: float = 0.0  # seconds
    timing: Timing = field(default_factory=Timing)


class Front:
    """State of a process that speaks HTTP. `sums` tells the counts of all such processes, where files do not."""

    def __init__(
        self,
        models: Sequence[Served],
        limits: Limits,
        engines: Asks,
        metrics: Metrics,
        sums: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        self.models = [Model(served, index) for index, served in enumerate(models)]
        self.limits, self.engines, self.metrics = limits, engines, metrics
        self.draining = False
        self.ongoing = 0
        self._sums = sums
        pictured = {model.index: model.served for model in self.models if model.served.modality == IMAGE}
        self.pictures = Pictures(pictured, limits) if pictured else None
        self.tokenizers = 1  # processes that tokenise

    async def metrics_text(self) -> bytes:
        if self._sums is not None:
            return await self._sums()
        self.metrics.ongoing.set(self.ongoing)
        return self.metrics.text()

    def model(self, body: dict[str, Any], endpoint: str, kinds: Sequence[str], modality: str = TEXT) -> Model:
        """The model that the body names, of one of `kinds`. A body that names none, or a server of one model: that."""
        asked = a_name(body, "model")
        named = [model for model in self.models if model.served.name == asked]
        names = list(dict.fromkeys(model.served.name for model in self.models))
        if asked is not None and not named and len(names) > 1:
            known = ", ".join(names)
            raise RequestError(f"There is no model {asked!r}: {known}.", 404, "Validation", "model")
        among = named or self.models
        for model in among:
            if model.served.kind in kinds and model.served.modality == modality:
                return model
        first = among[0].served
        if first.kind in kinds:
            why = f'takes no {modality}s: leave "modality" out' if modality == IMAGE else _IMAGES_ALONE
            raise RequestError(f"{first.name} {why}.", 404, param="modality")
        raise RequestError(f"{first.name} does not answer {endpoint}: it answers {_ROUTES[first.kind]}.", 404)

    async def run(
        self,
        call: Call,
        model: Model,
        what: str,
        texts: Sequence[Text],
        truncate: bool,
        param: str,
        left_out: int = 0,
    ) -> Answer:
        """The engine's answer for these texts."""
        given = await self.tokenised(call, model.tokenizer, texts, truncate, param)
        if what == "tokens":
            self.check_rows(given, param)
        return await self.ask(call, model, given.work(model.index, what, left_out))

    async def tokenised(
        self, call: Call, tokenizer: Tokenizer, texts: Sequence[Text], truncate: bool, param: str
    ) -> Tokenised:
        begin = time.monotonic()
        given = await tokenizer(texts, truncate, param)
        took = time.monotonic() - begin
        call.tokenizing += took
        self.metrics.tokenization.observe(took)
        return given

    def check_rows(self, given: Tokenised, param: str) -> None:
        """Raises RequestError for more vectors of tokens than are given at once."""
        if given.total > MOST_ROWS:
            raise RequestError(
                f"{param} has {given.total} tokens, and vectors of {MOST_ROWS} are given at most: send fewer texts.",
                status=413,
                param=param,
            )

    async def in_time(self, call: Call, waiting: Awaitable[T]) -> T:
        """What is waited for, in the time that is left to the request. Raises RequestError."""
        left = self.limits.timeout - (time.monotonic() - call.start)
        try:
            return await asyncio.wait_for(waiting, max(left, 0.001))
        except (TimeoutError, asyncio.TimeoutError):
            raise self._late() from None

    def _late(self) -> RequestError:
        why = f"No answer in {self.limits.timeout:g} seconds: try again later."
        return RequestError(why, 503, "Overloaded", retry_after=RETRY_AFTER)

    async def ask(self, call: Call, model: Model, work: Work) -> Answer:
        """An engine's answer. Raises RequestError."""
        texts, tokens = len(work.lengths), len(work.ids)
        call.model, call.texts, call.tokens = model.served.name, call.texts + texts, call.tokens + tokens
        left = self.limits.timeout - (time.monotonic() - call.start)
        try:
            answer = await self.engines.ask(work, max(left, 0.001))
        except EngineFull:
            why = "Too many requests are waiting: try again later."
            raise RequestError(why, 429, "Overloaded", retry_after=RETRY_AFTER) from None
        except (TimeoutError, asyncio.TimeoutError):
            raise self._late() from None
        except EngineError as error:
            raise RequestError(f"The model failed: {str(error).rstrip('.')}.", 500, "Backend") from None
        call.timing = answer.timing
        # Counted when the answer has left.
        asyncio.get_running_loop().call_soon(self.metrics.ran, model.served.name, texts, tokens, answer.timing)
        return answer

    async def vectors(
        self,
        call: Call,
        model: Model,
        texts: Sequence[str],
        truncate: bool,
        param: str,
        dimensions: int | None = None,
        normalize: bool = False,
        prompt_name: str | None = None,
    ) -> np.ndarray:
        """float32 [texts, size]. Shortened vectors are at length 1 again where the model's are."""
        found = (await self.run(call, model, "vectors", texts, truncate, param, model.left_out(prompt_name))).rows
        return shortened(found, model.served, dimensions, normalize)


def shortened(vectors: np.ndarray, served: Served, dimensions: int | None, normalize: bool = False) -> np.ndarray:
    """The first `dimensions` numbers of each vector, at length 1 again where the model's are."""
    cut = dimensions is not None and dimensions < vectors.shape[1]
    if cut:
        vectors = vectors[:, :dimensions]
    if (cut and served.unit_length) or (normalize and not served.unit_length):
        vectors = normalized(vectors)
    return vectors
