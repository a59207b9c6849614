"""What the routes share: the models by name, their tokenizers, the engines, limits and counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.inference.activations import Activation, labels_of, of_classifier, of_reranker
from bertfuse.inference.pooling import normalized
from bertfuse.model_folder.files import folder_of, read_config

from .checks import Limits, RequestError, Text, a_name
from .engines import Asks
from .metrics import Metrics
from .served import Served
from .tokens import Tokenizer
from .work import Answer, EngineError, EngineFull, Timing, Work

MOST_ROWS = 1 << 16  # vectors of tokens in one answer: 200 MB where they have 768 numbers
RETRY_AFTER = 1  # seconds that a client is told to wait
_ROUTES = {"embed": "/v1/embeddings", "rerank": "/rerank", "classify": "/classify", "sparse": "/embed_sparse"}


class Model:
    """A served model as a process that speaks HTTP knows it."""

    def __init__(self, served: Served, index: int) -> None:
        self.served, self.index = served, index
        self.tokenizer = Tokenizer(served.path, served.max_input_tokens)
        self.prompts = dict(served.prompts)
        prompts = {served.default_prompt, *self.prompts.values()}
        self._left_out = {prompt: self.tokenizer.left_out(prompt) for prompt in prompts}
        folder = folder_of(Path(served.path))
        config = read_config(folder)
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
        self.tokenizers = 1  # processes that tokenise

    async def metrics_text(self) -> bytes:
        if self._sums is not None:
            return await self._sums()
        self.metrics.ongoing.set(self.ongoing)
        return self.metrics.text()

    def model(self, body: dict[str, Any], endpoint: str, kinds: Sequence[str]) -> Model:
        """The model that the body names, of one of `kinds`. A body that names none, or a server of one model: that."""
        asked = a_name(body, "model")
        named = [model for model in self.models if model.served.name == asked]
        if asked is not None and not named and len(self.models) > 1:
            known = ", ".join(model.served.name for model in self.models)
            raise RequestError(f"There is no model {asked!r}: {known}.", 404, "Validation", "model")
        among = named or self.models
        for model in among:
            if model.served.kind in kinds:
                return model
        kind = among[0].served.kind
        raise RequestError(f"{among[0].served.name} does not answer {endpoint}: it answers {_ROUTES[kind]}.", 404)

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
        begin = time.monotonic()
        given = await model.tokenizer(texts, truncate, param)
        call.tokenizing = time.monotonic() - begin
        self.metrics.tokenization.observe(call.tokenizing)
        if what == "tokens" and given.total > MOST_ROWS:
            raise RequestError(
                f"{param} has {given.total} tokens, and vectors of {MOST_ROWS} are given at most: send fewer texts.",
                status=413,
                param=param,
            )
        call.model, call.texts, call.tokens = model.served.name, call.texts + len(texts), call.tokens + given.total
        work = Work(model.index, what, given.lengths, given.ids, given.type_ids, left_out)
        left = self.limits.timeout - (time.monotonic() - call.start)
        try:
            answer = await self.engines.ask(work, max(left, 0.001))
        except EngineFull:
            why = "Too many requests are waiting: try again later."
            raise RequestError(why, 429, "Overloaded", retry_after=RETRY_AFTER) from None
        except (TimeoutError, asyncio.TimeoutError):
            why = f"No answer in {self.limits.timeout:g} seconds: try again later."
            raise RequestError(why, 503, "Overloaded", retry_after=RETRY_AFTER) from None
        except EngineError as error:
            raise RequestError(f"The model failed: {str(error).rstrip('.')}.", 500, "Backend") from None
        call.timing = answer.timing
        # Counted when the answer has left.
        asyncio.get_running_loop().call_soon(
            self.metrics.ran, model.served.name, len(texts), given.total, answer.timing
        )
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
        cut = dimensions is not None and dimensions < found.shape[1]
        if cut:
            found = found[:, :dimensions]
        if (cut and model.served.unit_length) or (normalize and not model.served.unit_length):
            found = normalized(found)
        return found
