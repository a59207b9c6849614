"""How answers and errors are worded; OpenAI's errors and text-embeddings-inference's."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .checks import RequestError

ROWS = 64  # vectors that are worded at a time: other requests have their turn between


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


class Parts(Response):
    """JSON in parts, each made when the one before has left: a long answer is never whole in memory.

    A client that takes longer than `timeout` seconds for a part loses its connection.
    """

    media_type = "application/json"

    def __init__(self, parts: Iterable[bytes], timeout: float) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._parts, self._timeout = parts, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await asyncio.wait_for(send({"type": "http.response.body", "body": part, "more_body": True}), self._timeout)
            await asyncio.sleep(0)
        await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), self._timeout)


def rows_of(rows: Iterator[Any], head: bytes = b"[", tail: bytes = b"]") -> Iterator[bytes]:
    """JSON of a list of `rows` between `head` and `tail`, ROWS of them at a time."""
    yield head
    first = True
    while True:
        some = list(islice(rows, ROWS))
        if not some:
            break
        text = orjson.dumps(some, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield text if first else b"," + text
        first = False
    yield tail


def listed(rows: Iterable[Any], count: int, timeout: float, head: bytes = b"[", tail: bytes = b"]") -> Response:
    """The answer with a list of `count` rows: at once where they are few."""
    parts = rows_of(iter(rows), head, tail)
    if count > ROWS:
        return Parts(parts, timeout)
    return Response(b"".join(parts), media_type="application/json")


def openai_vectors(vectors: np.ndarray, encoded: bool, name: str, used: int, timeout: float) -> Response:
    vectors = np.ascontiguousarray(vectors, "<f4")
    rows = (
        {"object": "embedding", "index": index, "embedding": base64_of(row) if encoded else row}
        for index, row in enumerate(vectors)
    )
    usage = orjson.dumps({"model": name, "usage": {"prompt_tokens": used, "total_tokens": used}})
    return listed(rows, len(vectors), timeout, b'{"object":"list","data":[', b"]," + usage[1:])


def jina_vectors(rows: Sequence[np.ndarray], encoded: bool, name: str, used: int, timeout: float) -> Response:
    """Vectors of tokens, as Jina's /v1/multi-vector gives them."""
    made = (
        {"object": "embedding", "index": index, "embeddings": list(map(base64_of, row)) if encoded else row}
        for index, row in enumerate(np.ascontiguousarray(row, "<f4") for row in rows)
    )
    usage = orjson.dumps({"model": name, "usage": {"prompt_tokens": used, "total_tokens": used}})
    return listed(made, sum(map(len, rows)), timeout, b'{"object":"list","data":[', b"]," + usage[1:])


def base64_of(vector: np.ndarray) -> str:
    return base64.b64encode(vector.tobytes()).decode("ascii")


def openai_error(error: RequestError) -> Response:
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_exceeded"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    told = {"message": error.message, "type": kind, "param": error.param, "code": None}
    return Json({"error": told}, error.status, _headers(error))


def tei_error(error: RequestError) -> Response:
    return Json({"error": error.message, "error_type": error.kind}, error.status, _headers(error))


def _headers(error: RequestError) -> dict[str, str]:
    return {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
