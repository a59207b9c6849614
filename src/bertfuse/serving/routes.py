"""The routes that compute: what each makes of a body. OpenAI's, text-embeddings-inference's, Cohere's and Jina's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from starlette.responses import Response

from bertfuse.model_folder.towers import IMAGE

from .answers import image_vectors, prompted, scores, token_vectors
from .checks import RequestError
from .front import Call, Front, shortened
from .late import task_of
from .requests import (
    classify_request,
    decode_request,
    documents_request,
    embed_request,
    embeddings_request,
    images_request,
    modality_of,
    multi_vector_request,
    rerank_request,
    similarity_request,
    tokenize_request,
)
from .responses import Json, jina_vectors, listed, openai_error, openai_vectors, tei_error
from .served import KINDS

Body = dict[str, Any]
Route = Callable[[Front, Call, Body], Awaitable[Response]]


async def embeddings(front: Front, call: Call, body: Body) -> Response:
    if modality_of(body) == IMAGE:
        return await _images(front, call, body)
    model = front.model(body, call.endpoint, ["embed"])
    asked = embeddings_request(body, front.limits, model.served.dimension)
    texts = await prompted(model, asked, "input")
    how = {"dimensions": asked.dimensions, "prompt_name": asked.prompt_name}
    vectors = await front.vectors(call, model, texts, asked.truncate, "input", **how)
    return openai_vectors(vectors, asked.base64, model.served.name, call.tokens, front.limits.timeout)


async def _images(front: Front, call: Call, body: Body) -> Response:
    model = front.model(body, call.endpoint, ["embed"], IMAGE)
    asked = images_request(body, front.limits, model.served.dimension)
    vectors = await image_vectors(front, call, model, asked.images, asked.dimensions)
    return openai_vectors(vectors, asked.base64, model.served.name, call.tokens, front.limits.timeout)


async def multi_vector(front: Front, call: Call, body: Body) -> Response:
    model = front.model(body, call.endpoint, ["late"])
    asked, task = multi_vector_request(body, front.limits, model.served.dimension), task_of(body)
    texts = await prompted(model, asked, "input", task)
    found = await token_vectors(front, call, model, texts, asked.truncate, "input", task)
    found = [shortened(rows, model.served, asked.dimensions) for rows in found]
    return jina_vectors(found, asked.base64, model.served.name, call.tokens, front.limits.timeout)


async def embed(front: Front, call: Call, body: Body) -> Response:
    model = front.model(body, call.endpoint, ["embed"])
    asked = embed_request(body, front.limits, model.served.dimension)
    texts = await prompted(model, asked, "inputs")
    how = {"dimensions": asked.dimensions, "normalize": asked.normalize, "prompt_name": asked.prompt_name}
    vectors = await front.vectors(call, model, texts, asked.truncate, "inputs", **how)
    return listed(np.ascontiguousarray(vectors), len(vectors), front.limits.timeout)


async def embed_all(front: Front, call: Call, body: Body) -> Response:
    """A vector of each token, special ones included; of late interaction of those that it scores."""
    model = front.model(body, call.endpoint, ["embed", "late"])
    asked, task = embed_request(body, front.limits, 0), task_of(body)
    texts = await prompted(model, asked, "inputs", task)
    rows = await token_vectors(front, call, model, texts, asked.truncate, "inputs", task)
    return listed(rows, sum(map(len, rows)), front.limits.timeout)


async def embed_sparse(front: Front, call: Call, body: Body) -> Response:
    model = front.model(body, call.endpoint, ["sparse"])
    asked = embed_request(body, front.limits, 0)
    texts = await prompted(model, asked, "inputs")
    answer = await front.run(call, model, "words", texts, asked.truncate, "inputs")
    assert answer.counts is not None
    parts = np.split(answer.rows, np.cumsum(answer.counts)[:-1])
    rows = ([{"index": int(word), "value": float(weight)} for word, weight in part] for part in parts)
    return listed(rows, len(parts), front.limits.timeout)


async def rerank(front: Front, call: Call, body: Body) -> Response:
    """text-embeddings-inference's where the body has texts, else Cohere's and Jina's."""
    if "documents" in body and "texts" not in body:
        return await rerank_documents(front, call, body)
    model = front.model(body, call.endpoint, ["rerank", "late"])
    asked = rerank_request(body, front.limits)
    found = await scores(front, call, model, asked, "texts")
    rows = [{"index": int(at), "score": float(found[at])} for at in np.argsort(-found, kind="stable")]
    if asked.return_text:
        rows = [row | {"text": asked.texts[row["index"]][1]} for row in rows]
    return Json(rows)


async def rerank_documents(front: Front, call: Call, body: Body) -> Response:
    model = front.model(body, call.endpoint, ["rerank", "late"])
    asked = documents_request(body, front.limits)
    found = await scores(front, call, model, asked, "documents")
    order = np.argsort(-found, kind="stable")[: asked.top]
    rows: list[Body] = [{"index": int(at), "relevance_score": float(found[at])} for at in order]
    if asked.return_text:
        rows = [row | {"document": {"text": asked.texts[row["index"]][1]}} for row in rows]
    usage = {"prompt_tokens": call.tokens, "total_tokens": call.tokens}
    made = {"object": "rerank", "id": call.number, "model": model.served.name, "results": rows, "usage": usage}
    # Cohere's clients look for it.
    return Json(made | {"meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}})


async def classify(front: Front, call: Call, body: Body) -> Response:
    model = front.model(body, call.endpoint, ["classify"])
    asked = classify_request(body, front.limits)
    logits = (await front.run(call, model, "logits", asked.texts, asked.truncate, "inputs")).rows
    scores = logits if asked.raw_scores else model.activation(logits)
    found = [
        [{"label": model.labels[at], "score": float(row[at])} for at in np.argsort(-row, kind="stable")]
        for row in scores
    ]
    return Json(found[0] if asked.alone else found)


async def similarity(front: Front, call: Call, body: Body) -> Response:
    """Cosines of one text with others."""
    model = front.model(body, call.endpoint, ["embed"])
    asked = similarity_request(body, front.limits)
    texts = model.prompted([asked.source, *asked.sentences], asked.prompt_name, "inputs")
    how = {"normalize": True, "prompt_name": asked.prompt_name}
    vectors = await front.vectors(call, model, texts, asked.truncate, "inputs", **how)
    return Json(vectors[1:] @ vectors[0])


async def tokenize(front: Front, call: Call, body: Body) -> Response:
    model = front.model(body, call.endpoint, KINDS)
    texts, special, prompt_name = tokenize_request(body, front.limits)
    if prompt_name is not None:
        texts = model.prompted(texts, prompt_name, "inputs")
    return Json(await asyncio.to_thread(lambda: [model.tokenizer.pieces(text, special) for text in texts]))


async def decode(front: Front, call: Call, body: Body) -> Response:
    model = front.model(body, call.endpoint, KINDS)
    rows, skip = decode_request(body, front.limits)
    for index, row in enumerate(rows):
        model.tokenizer.check_ids(row, f"ids[{index}]", "ids")
    return Json([model.tokenizer.decode(row, skip) for row in rows])


# path: what answers, how its errors are worded, and what /docs says of it
POSTS: dict[str, tuple[Route, Callable[[RequestError], Response], str]] = {
    "/v1/embeddings": (embeddings, openai_error, "OpenAI: vectors of texts; infinity: of images."),
    "/embeddings": (embeddings, openai_error, "Another name of /v1/embeddings."),
    "/v1/multi-vector": (multi_vector, openai_error, "Jina: a vector of each token, of late interaction."),
    "/v1/rerank": (rerank_documents, openai_error, "Cohere, Jina: documents by their scores for a query."),
    "/v2/rerank": (rerank_documents, openai_error, "Another name of /v1/rerank."),
    "/embed": (embed, tei_error, "text-embeddings-inference: vectors of texts."),
    "/embed_all": (embed_all, tei_error, "text-embeddings-inference: a vector of each token."),
    "/embed_sparse": (embed_sparse, tei_error, "text-embeddings-inference: weights of words (SPLADE)."),
    "/rerank": (rerank, tei_error, "text-embeddings-inference: texts by their scores for a query."),
    "/predict": (classify, tei_error, "text-embeddings-inference: labels of texts."),
    "/classify": (classify, tei_error, "Another name of /predict."),
    "/similarity": (similarity, tei_error, "text-embeddings-inference: cosines of one text with others."),
    "/tokenize": (tokenize, tei_error, "text-embeddings-inference: tokens of texts."),
    "/decode": (decode, tei_error, "text-embeddings-inference: texts of token ids."),
}
