"""The deployment that holds the model: one replica for each GPU, requests answered in batches of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray import serve

from bertfuse.inference.model import Text

from .batcher import Batcher
from .served import Served


@dataclass(frozen=True)
class Work:
    """One request's texts, and how many tokens they have together."""

    texts: list[Text]
    tokens: int
    raw_scores: bool = False


@dataclass(frozen=True)
class Done:
    """What the model says of each text; of the first request of each batch also the size of the batch."""

    answers: Any  # float32 [texts, size], float32 [texts], or a list of labels and scores for each text
    batch_requests: int = 0
    batch_tokens: int = 0


@serve.deployment(name="model")
class Replica:
    def __init__(self, served: Served) -> None:
        self._kind = served.kind
        self._model = served.open()
        self._batcher = Batcher(self._batch, served.max_batch_tokens)
        self._answers([Work(["a"] if served.kind != "rerank" else [("a", "b")], 1)])  # the first run is a slow one

    async def answer(self, work: Work) -> Done:
        return await self._batcher(work)

    def ping(self) -> None:
        """That the replica is there."""

    def _batch(self, works: Sequence[Work]) -> list[Done]:
        made = self._answers(works)
        tokens = sum(work.tokens for work in works)
        return [Done(made[0], len(works), tokens), *(Done(answers) for answers in made[1:])]

    def _answers(self, works: Sequence[Work]) -> list[Any]:
        made: list[Any] = [None] * len(works)
        for raw in {work.raw_scores for work in works}:
            chosen = [index for index, work in enumerate(works) if work.raw_scores == raw]
            found = self._run([text for index in chosen for text in works[index].texts], raw)
            start = 0
            for index in chosen:
                made[index] = found[start : start + len(works[index].texts)]
                start += len(works[index].texts)
        return made

    def _run(self, texts: list[Text], raw: bool) -> Any:
        if self._kind == "embed":
            return self._model.encode(texts, prompt="")
        if self._kind == "rerank":
            return self._model.predict(texts, activation_fn=(lambda logits: logits) if raw else None)
        inputs = [text if isinstance(text, str) else {"text": text[0], "text_pair": text[1]} for text in texts]
        return self._model(inputs, top_k=None, function_to_apply="none" if raw else None)
