"""What each method of text-embeddings-inference's gRPC interface computes: one message in, one out.

Requests are checked as HTTP bodies are (`serving/requests.py`), so that both refuse the same in the same words.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from bertfuse import __version__

from ..answers import prompted, scores, token_vectors
from ..checks import Text, check_count
from ..front import Call, Front
from ..late import task_of
from ..requests import (
    TextsRequest,
    classify_request,
    decode_request,
    embed_request,
    rerank_request,
    tokenize_request,
)
from ..served import KINDS
from .messages import TEI

Method = Callable[[Front, Call, Any, str | None], Awaitable[Any]]  # the last is a model's name, where one is given
_MODEL_TYPES = {"embed": 0, "sparse": 0, "late": 0, "classify": 1, "rerank": 2}


async def info(front: Front, call: Call, request: Any, name: str | None) -> Any:
    model = front.model({"model": name}, call.endpoint, KINDS)
    served, limits = model.served, front.limits
    return TEI.InfoResponse(
        version=__version__,
        model_id=served.name,
        model_dtype=served.dtype,
        model_type=_MODEL_TYPES[served.kind],
        max_concurrent_requests=limits.max_queued,
        max_input_length=served.max_input_tokens,
        max_batch_tokens=served.max_batch_tokens,
        max_client_batch_size=limits.max_texts,
        tokenization_workers=front.tokenizers,
    )


async def embed(front: Front, call: Call, request: Any, name: str | None) -> Any:
    model = front.model({"model": name}, call.endpoint, ["embed"])
    body = _body(front, request) | {"normalize": request.normalize if request.HasField("normalize") else True}
    if request.HasField("dimensions"):
        body["dimensions"] = request.dimensions
    asked = embed_request(body, front.limits, model.served.dimension)
    texts = model.prompted(asked.inputs, asked.prompt_name, "inputs")
    how = {"dimensions": asked.dimensions, "normalize": asked.normalize, "prompt_name": asked.prompt_name}
    vectors = await front.vectors(call, model, texts, asked.truncate, "inputs", **how)
    return TEI.EmbedResponse(embeddings=vectors[0].tolist(), metadata=_metadata(call, texts))


async def embed_all(front: Front, call: Call, request: Any, name: str | None) -> Any:
    model = front.model({"model": name}, call.endpoint, ["embed", "late"])
    asked, task = embed_request(_body(front, request), front.limits, 0), task_of(_prompt(request))
    texts = await prompted(model, asked, "inputs", task)
    (rows,) = await token_vectors(front, call, model, texts, asked.truncate, "inputs", task)
    made = [TEI.TokenEmbedding(embeddings=row.tolist()) for row in rows]
    return TEI.EmbedAllResponse(token_embeddings=made, metadata=_metadata(call, texts))


async def embed_sparse(front: Front, call: Call, request: Any, name: str | None) -> Any:
    model = front.model({"model": name}, call.endpoint, ["sparse"])
    asked = embed_request(_body(front, request), front.limits, 0)
    texts = model.prompted(asked.inputs, asked.prompt_name, "inputs")
    rows = (await front.run(call, model, "words", texts, asked.truncate, "inputs")).rows
    made = [TEI.SparseValue(index=int(word), value=float(weight)) for word, weight in rows]
    return TEI.EmbedSparseResponse(sparse_embeddings=made, metadata=_metadata(call, texts))


async def predict(front: Front, call: Call, request: Any, name: str | None) -> Any:
    return await _predict(front, call, request, name, request.inputs)


async def predict_pair(front: Front, call: Call, request: Any, name: str | None) -> Any:
    return await _predict(front, call, request, name, list(request.inputs))


async def _predict(front: Front, call: Call, request: Any, name: str | None, inputs: str | list[str]) -> Any:
    model = front.model({"model": name}, call.endpoint, ["classify"])
    body = _body(front, request) | {"inputs": inputs, "raw_scores": request.raw_scores}
    asked = classify_request(body, front.limits)
    logits = (await front.run(call, model, "logits", asked.texts, asked.truncate, "inputs")).rows
    scores = (logits if asked.raw_scores else model.activation(logits))[0]
    order = np.argsort(-scores, kind="stable")
    made = [TEI.Prediction(score=float(scores[at]), label=model.labels[at]) for at in order]
    return TEI.PredictResponse(predictions=made, metadata=_metadata(call, asked.texts))


async def rerank(front: Front, call: Call, request: Any, name: str | None) -> Any:
    body = _body(front, request) | {"query": request.query, "texts": list(request.texts)}
    body |= {"raw_scores": request.raw_scores, "return_text": request.return_text}
    return await _ranked(front, call, rerank_request(body, front.limits), name)


async def rerank_stream(front: Front, call: Call, requests: Sequence[Any], name: str | None) -> Any:
    """Of all messages of a stream, which end before anything is computed."""
    check_count(list(requests), "texts", front.limits)
    pairs: list[Text] = []
    for request in requests:
        body = _body(front, request) | {"query": request.query, "texts": [request.text]}
        pairs += rerank_request(body, front.limits).texts
    first = requests[0]
    truncate = first.truncate or front.limits.auto_truncate
    asked = TextsRequest(pairs, False, first.raw_scores, first.return_text, truncate)
    return await _ranked(front, call, asked, name)


async def _ranked(front: Front, call: Call, asked: TextsRequest, name: str | None) -> Any:
    model = front.model({"model": name}, call.endpoint, ["rerank", "late"])
    found = await scores(front, call, model, asked, "texts")
    made = []
    for at in np.argsort(-found, kind="stable"):
        made.append(TEI.Rank(index=int(at), score=float(found[at])))
        if asked.return_text:
            made[-1].text = asked.texts[at][1]
    return TEI.RerankResponse(ranks=made, metadata=_metadata(call, asked.texts))


async def tokenize(front: Front, call: Call, request: Any, name: str | None) -> Any:
    model = front.model({"model": name}, call.endpoint, KINDS)
    body = {"inputs": request.inputs, "add_special_tokens": request.add_special_tokens}
    texts, special, prompt_name = tokenize_request(body | _prompt(request), front.limits)
    if prompt_name is not None:
        texts = model.prompted(texts, prompt_name, "inputs")
    pieces = await asyncio.to_thread(model.tokenizer.pieces, texts[0], special)
    # A field of None is one that is not there.
    return TEI.EncodeResponse(tokens=[TEI.SimpleToken(**piece) for piece in pieces])


async def decode(front: Front, call: Call, request: Any, name: str | None) -> Any:
    model = front.model({"model": name}, call.endpoint, KINDS)
    body = {"ids": [list(request.ids)], "skip_special_tokens": request.skip_special_tokens}
    ((ids,), skip) = decode_request(body, front.limits)
    model.tokenizer.check_ids(ids, "ids", "ids")
    return TEI.DecodeResponse(text=model.tokenizer.decode(ids, skip))


def _body(front: Front, request: Any) -> dict[str, Any]:
    """What requests have in common, as HTTP bodies have it. A false `truncate` cannot be told from one not given."""
    body: dict[str, Any] = {"truncate": request.truncate or front.limits.auto_truncate}
    if request.truncation_direction:
        body["truncation_direction"] = "left" if request.truncation_direction == 1 else request.truncation_direction
    fields = request.DESCRIPTOR.fields_by_name
    return body | ({"inputs": request.inputs} if "inputs" in fields else {}) | _prompt(request)


def _prompt(request: Any) -> dict[str, str]:
    has = "prompt_name" in request.DESCRIPTOR.fields_by_name and request.HasField("prompt_name")
    return {"prompt_name": request.prompt_name} if has else {}


def _metadata(call: Call, texts: Sequence[Text]) -> Any:
    chars = sum(len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts)
    return TEI.Metadata(
        compute_chars=chars,
        compute_tokens=call.tokens,
        total_time_ns=int(1e9 * (time.monotonic() - call.start)),
        tokenization_time_ns=int(1e9 * call.tokenizing),
        queue_time_ns=call.timing.queue,
        inference_time_ns=call.timing.run,
    )


METHODS: dict[str, Method] = {
    "Info/Info": info,
    "Embed/Embed": embed,
    "Embed/EmbedStream": embed,
    "Embed/EmbedSparse": embed_sparse,
    "Embed/EmbedSparseStream": embed_sparse,
    "Embed/EmbedAll": embed_all,
    "Embed/EmbedAllStream": embed_all,
    "Predict/Predict": predict,
    "Predict/PredictPair": predict_pair,
    "Predict/PredictStream": predict,
    "Predict/PredictPairStream": predict_pair,
    "Rerank/Rerank": rerank,
    "Rerank/RerankStream": rerank_stream,
    "Tokenize/Tokenize": tokenize,
    "Tokenize/TokenizeStream": tokenize,
    "Tokenize/Decode": decode,
    "Tokenize/DecodeStream": decode,
}
