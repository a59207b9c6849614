"""The deployment that speaks HTTP: checks, counts tokens, asks the model's replicas, words the answers."""

# Ray pickles the class as it is decorated, by value: FastAPI could not resolve postponed annotations, and what stands
# below the class in this file would not be there.

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import ray.exceptions
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import Metric
from ray import serve
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from bertfuse import __version__

from .metrics import Metrics, text_of
from .replica import Done, Work
from .requests import (
    EmbeddingsRequest,
    Limits,
    RequestError,
    TextsRequest,
    check_lengths,
    classify_request,
    embeddings_request,
    read_json,
    rerank_request,
)
from .responses import base64_of, first_line, openai_error, result, tei_error
from .served import Served
from .tokens import Tokens

RETRY_AFTER = 1  # seconds that a client is told to wait
PING_TIMEOUT = 5.0
# A request whose replica ended is asked for again: it changes nothing, so that twice does no harm.
GONE = (ray.exceptions.RayActorError, ray.exceptions.ActorUnavailableError, DeploymentUnavailableError)

app = FastAPI(title="bertfuse", version=__version__)


@serve.deployment(name="http")
@serve.ingress(app)
class Http:
    def __init__(self, model: DeploymentHandle, served: Served, limits: Limits) -> None:
        self._model, self._served, self._limits = model, served, limits
        self._tokens = Tokens(served.path)
        self._metrics = Metrics()
        self._fronts: Any = None  # a handle of all processes of this deployment, made when first asked for
        self._draining = False
        self._ongoing = 0

    @app.post("/v1/embeddings")
    async def embeddings(self, request: Request) -> Response:
        return await self._answer(request, self._embed, openai_error)

    @app.post("/rerank")
    async def rerank(self, request: Request) -> Response:
        return await self._answer(request, self._rerank, tei_error)

    @app.post("/predict")
    @app.post("/classify")
    async def classify(self, request: Request) -> Response:
        return await self._answer(request, self._classify, tei_error)

    @app.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        one = {"id": self._served.name, "object": "model", "created": 0, "owned_by": "bertfuse"}
        return {"object": "list", "data": [one]}

    @app.get("/health")
    async def health(self) -> Response:
        """200 where a replica of the model answers."""
        if not self._draining:
            try:
                await asyncio.wait_for(result(self._model.ping.remote()), PING_TIMEOUT)
                return Response(status_code=200)
            except (*GONE, BackPressureError, TimeoutError, asyncio.TimeoutError):
                pass
        why = "The server is stopping." if self._draining else "No replica of the model answers."
        return tei_error(RequestError(why, 503, "Unhealthy", retry_after=RETRY_AFTER))

    @app.get("/metrics")
    async def metrics(self) -> Response:
        """Of all processes that speak HTTP, whichever of them is asked."""
        if self._fronts is None:
            here = serve.get_replica_context()
            self._fronts = serve.get_deployment_handle(here.deployment, here.app_name)
        found = await self._fronts.broadcast("counted").results_async(return_exceptions=True)
        counted = [metrics for metrics in found if isinstance(metrics, list)] or [self.counted()]
        return Response(text_of(counted), media_type="text/plain; version=0.0.4")

    def counted(self) -> list[Metric]:
        return self._metrics.collected()

    @app.get("/info")
    async def info(self) -> dict[str, Any]:
        """As text-embeddings-inference's."""
        served, limits = self._served, self._limits
        kind = {"embed": "embedding", "rerank": "reranker", "classify": "classifier"}[served.kind]
        return {
            "model_id": served.name,
            "served_model_name": served.name,
            "model_dtype": served.dtype,
            "model_type": {kind: {}},
            "max_concurrent_requests": limits.max_ongoing,
            "max_input_length": served.max_input_tokens,
            "max_batch_tokens": served.max_batch_tokens,
            "max_client_batch_size": limits.max_texts,
            "auto_truncate": limits.auto_truncate,
            "tokenization_workers": 1,
            "version": __version__,
        }

    async def drain(self, timeout: float) -> bool:
        """Refuses new requests and waits for those in work; whether all of them were answered in `timeout` seconds."""
        self._draining = True
        end = time.monotonic() + timeout
        while self._ongoing and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return not self._ongoing

    async def _answer(
        self,
        request: Request,
        function: Callable[[dict[str, Any]], Awaitable[Any]],
        worded: Callable[[RequestError], Response],
    ) -> Response:
        """Runs `function` on the body, words what goes wrong, and counts."""
        start, endpoint = time.monotonic(), request.url.path
        self._ongoing += 1
        self._metrics.ongoing.set(self._ongoing)
        status = 499  # unless an answer is made: the client has gone
        try:
            if self._draining:
                raise RequestError("The server is stopping.", 503, "Unhealthy", retry_after=RETRY_AFTER)
            response: Response = JSONResponse(await function(read_json(await self._body(request))))
            status = response.status_code
        except RequestError as error:
            response = worded(error)
            status = error.status
        except Exception as error:
            status = 500
            response = worded(RequestError(f"The model failed: {first_line(error)}.", 500, "Backend"))
        finally:
            self._ongoing -= 1
            self._metrics.ongoing.set(self._ongoing)
            self._metrics.requests.labels(endpoint, status).inc()
            self._metrics.seconds.labels(endpoint).observe(time.monotonic() - start)
        return response

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.max_body_bytes
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise RequestError(f"The body is larger than {limit} bytes.", status=413)
            parts.append(part)
        return b"".join(parts)

    async def _embed(self, body: dict[str, Any]) -> dict[str, Any]:
        self._is("embed", "/v1/embeddings")
        asked = embeddings_request(body, self._limits, self._served.dimension)
        texts = await asyncio.to_thread(self._embedded_texts, asked)
        vectors, used = await self._run(texts, "input", asked.truncate)
        if asked.dimensions is not None:
            vectors = vectors[:, : asked.dimensions]
            if self._served.unit_length:
                vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        rows = [
            {"object": "embedding", "index": index, "embedding": base64_of(row) if asked.base64 else row.tolist()}
            for index, row in enumerate(vectors)
        ]
        usage = {"prompt_tokens": used, "total_tokens": used}
        return {"object": "list", "data": rows, "model": self._served.name, "usage": usage}

    def _embedded_texts(self, asked: EmbeddingsRequest) -> list[str]:
        prompts = dict(self._served.prompts)
        if asked.prompt_name is not None and asked.prompt_name not in prompts:
            known = ", ".join(prompts) or "it has none"
            raise RequestError(f"The model has no prompt {asked.prompt_name!r}: {known}.", param="prompt_name")
        prompt = self._served.default_prompt if asked.prompt_name is None else prompts[asked.prompt_name]
        texts = [
            entry if isinstance(entry, str) else self._tokens.text(entry, f"input[{index}]")
            for index, entry in enumerate(asked.inputs)
        ]
        return [prompt + text for text in texts]

    async def _rerank(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        self._is("rerank", "/rerank")
        asked = rerank_request(body, self._limits)
        scores, _ = await self._run(asked.texts, "texts", asked.truncate, asked.raw_scores)
        order = np.argsort(-scores, kind="stable")
        rows = [{"index": int(index), "score": float(scores[index])} for index in order]
        return [row | {"text": asked.texts[row["index"]][1]} for row in rows] if asked.return_text else rows

    async def _classify(self, body: dict[str, Any]) -> list[Any]:
        self._is("classify", "/classify")
        asked: TextsRequest = classify_request(body, self._limits)
        found, _ = await self._run(asked.texts, "inputs", asked.truncate, asked.raw_scores)
        return found[0] if asked.alone else found

    def _is(self, kind: str, endpoint: str) -> None:
        if self._served.kind != kind:
            there = {"embed": "/v1/embeddings", "rerank": "/rerank", "classify": "/classify"}[self._served.kind]
            raise RequestError(f"{self._served.name} does not answer {endpoint}: it answers {there}.", status=404)

    async def _run(self, texts: list[Any], param: str, truncate: bool, raw_scores: bool = False) -> tuple[Any, int]:
        """The model's answers, and how many tokens it read for them."""
        limit = self._served.max_input_tokens
        lengths = await asyncio.to_thread(self._tokens.count, texts)
        if not truncate:
            check_lengths(lengths, limit, param)
        used = sum(min(length, limit) for length in lengths)
        done = await self._ask(Work(texts, used, raw_scores))
        self._metrics.texts.inc(len(texts))
        self._metrics.tokens.inc(used)
        if done.batch_requests:
            self._metrics.batch_requests.observe(done.batch_requests)
            self._metrics.batch_tokens.observe(done.batch_tokens)
        return done.answers, used

    async def _ask(self, work: Work) -> Done:
        end = time.monotonic() + self._limits.timeout
        pause = 0.1
        while True:
            left = end - time.monotonic()
            try:
                return await asyncio.wait_for(result(self._model.answer.remote(work)), max(left, 0.001))
            except BackPressureError:
                raise RequestError(
                    "Too many requests are waiting: try again later.", 429, "Overloaded", retry_after=RETRY_AFTER
                ) from None
            except (TimeoutError, asyncio.TimeoutError):
                why = f"No answer in {self._limits.timeout:g} seconds: try again later."
                raise RequestError(why, 503, "Overloaded", retry_after=RETRY_AFTER) from None
            except GONE:
                self._metrics.retries.inc()
                await asyncio.sleep(min(pause, max(end - time.monotonic(), 0)))
                pause = min(2 * pause, 2.0)
