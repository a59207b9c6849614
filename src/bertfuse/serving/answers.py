"""What several routes compute, over HTTP and gRPC: vectors of tokens, of images, and scores of pairs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np

from bertfuse.inference.maxsim import maxsim
from bertfuse.model_folder.late_texts import DOCUMENT, QUERY

from .checks import RequestError
from .front import Call, Front, Model, shortened
from .late import kept_rows
from .requests import EmbeddingsRequest, TextsRequest
from .work import Work

# Tokens of documents that are scored at a time: so much is held of their vectors, and others have their turn between.
SCORED = 1 << 14
PICTURES = 64  # images that an engine is asked for at a time: whole batches, on CPUs as on GPUs


async def prompted(model: Model, asked: EmbeddingsRequest, param: str, task: str = DOCUMENT) -> list[str]:
    """The texts that are asked for, with their prompt; `task` is of late interaction."""
    name = asked.prompt_name if model.late is None else model.late.prompt_name(task, asked.prompt_name)
    if all(isinstance(entry, str) for entry in asked.inputs):
        return model.prompted(asked.inputs, name, param)
    return await asyncio.to_thread(model.prompted, asked.inputs, name, param)


async def token_vectors(
    front: Front, call: Call, model: Model, texts: Sequence[str], truncate: bool, param: str, task: str = DOCUMENT
) -> list[np.ndarray]:
    """float32 [tokens, size] of each text: of late interaction as it reads texts of the task, else of all tokens."""
    if not model.served.token_rows:
        raise RequestError(f"{model.served.name} has no vectors of tokens: its file has the pooled output alone.", 404)
    if model.late is None:
        answer = await front.run(call, model, "tokens", texts, truncate, param)
        assert answer.counts is not None
        return np.split(answer.rows, np.cumsum(answer.counts)[:-1])
    reader = model.late.reader(task)
    given = await front.tokenised(call, reader, texts, truncate, param)
    front.check_rows(given, param)
    return kept_rows(reader, given, (await front.ask(call, model, given.work(model.index, "tokens"))).rows)


async def scores(front: Front, call: Call, model: Model, asked: TextsRequest, param: str) -> np.ndarray:
    """float32 [pairs] of a query and texts: a reranker's, or MaxSim."""
    if model.late is not None:
        return await _maxsim(front, call, model, asked, param)
    logits = (await front.run(call, model, "logits", asked.texts, asked.truncate, param)).rows
    return (logits if asked.raw_scores else model.activation(logits))[:, 0]


async def _maxsim(front: Front, call: Call, model: Model, asked: TextsRequest, param: str) -> np.ndarray:
    assert model.late is not None
    late = model.late
    before = {task: model.prompted([""], late.prompt_name(task, None), param)[0] for task in (QUERY, DOCUMENT)}
    queries = {query: at for at, query in enumerate(dict.fromkeys(query for query, _ in asked.texts))}  # hardly several
    texts = [before[QUERY] + query for query in queries]
    of_query = await token_vectors(front, call, model, texts, asked.truncate, "query", QUERY)
    texts = [before[DOCUMENT] + text for _, text in asked.texts]
    given = await front.tokenised(call, late.documents, texts, asked.truncate, param)
    owners = np.array([queries[query] for query, _ in asked.texts])

    def scored(rows: list[np.ndarray], owners: np.ndarray) -> np.ndarray:
        made = np.empty(len(rows), np.float32)
        for owner in np.unique(owners):
            these = np.flatnonzero(owners == owner)
            made[these] = maxsim([of_query[owner]], [rows[at] for at in these], late.mean)[0]
        return made

    made = []
    for begin, end in _parts(given.lengths):
        part = given.part(begin, end)
        answer = await front.ask(call, model, part.work(model.index, "tokens"))
        rows = kept_rows(late.documents, part, answer.rows)
        made.append(await asyncio.to_thread(scored, rows, owners[begin:end]))
    return np.concatenate(made)


def _parts(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    """Begin and end of texts of SCORED tokens together, or of one that has more."""
    begin = taken = 0
    for at, length in enumerate(lengths.tolist()):
        if at > begin and taken + length > SCORED:
            yield begin, at
            begin, taken = at, 0
        taken += length
    yield begin, len(lengths)


async def image_vectors(
    front: Front, call: Call, model: Model, images: Sequence[bytes], dimensions: int | None
) -> np.ndarray:
    """float32 [images, size] of images as their files are."""
    assert front.pictures is not None
    left, made = front.limits.max_pixels, []
    for begin in range(0, len(images), PICTURES):
        pixels = []
        for at, image in enumerate(images[begin : begin + PICTURES], begin):
            reading = front.pictures.read(model.index, image, f"input[{at}]", left)
            picture, taken = await front.in_time(call, reading)
            pixels.append(picture)
            left -= taken
        lengths = np.ones(len(pixels), np.int32)
        work = Work(model.index, "vectors", lengths, np.empty(0, np.int32), pixels=np.stack(pixels))
        made.append((await front.ask(call, model, work)).rows)
    return shortened(np.concatenate(made), model.served, dimensions)
