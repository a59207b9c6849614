"""The ASGI application: routes to the functions that answer, keys, request ids, limits, counts and logs."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send

from bertfuse import __version__
from bertfuse.errors import first_line
from bertfuse.model_folder.towers import IMAGE

from .checks import RETRY_AFTER, RequestError, read_json
from .front import Call, Front
from .openapi import document, page
from .responses import Json, openai_error, tei_error
from .routes import POSTS, Route
from .served import Served

log = logging.getLogger("bertfuse.serving")

# After so many seconds without an answer a request is looked at: nothing is computed for a client that has gone. Most
# have their answer sooner, and looking costs a task.
WATCH_AFTER = 0.1
_NUMBER = re.compile(rb"[\w.:-]{1,128}")


@dataclass(frozen=True)
class Access:
    """Who may ask. `keys`: any of these as a bearer token, if there are any; `origins`: for browsers (CORS)."""

    keys: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


class Post:
    """One route as an ASGI application: what it computes is `answer`, how its errors are worded `worded`."""

    def __init__(
        self,
        front: Front,
        access: Access,
        endpoint: str,
        answer: Route,
        worded: Callable[[RequestError], Response],
    ) -> None:
        self._front, self._endpoint, self._answer, self._worded = front, endpoint, answer, worded
        self._keys = [f"Bearer {key}".encode() for key in access.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        front, loop = self._front, asyncio.get_running_loop()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        call = Call(self._endpoint, given.decode() if _NUMBER.fullmatch(given) else os.urandom(16).hex())
        kind, status, watch = "", 499, None  # unless an answer is made: the client has gone
        gone = False
        task = asyncio.current_task()
        assert task is not None

        async def look() -> None:
            nonlocal gone
            if (await receive())["type"] == "http.disconnect":
                gone = True
                task.cancel()

        def begin() -> None:
            nonlocal watch
            watch = loop.create_task(look())

        front.ongoing += 1
        timer = None
        try:
            try:
                self._check(headers)
                body = read_json(await _body(headers, receive, front.limits.max_body_bytes))
                timer = loop.call_later(WATCH_AFTER, begin)
                response = await self._answer(front, call, body)
            except ClientGone:
                kind = "Disconnected"
                return
            except RequestError as error:
                response, kind = self._worded(error), error.kind
            except Exception as error:
                log.exception("%s %s failed", call.endpoint, call.number)
                response = self._worded(RequestError(f"The server failed: {first_line(error)}.", 500, "Backend"))
                kind = "Backend"
            finally:
                if timer is not None:
                    timer.cancel()
                if watch is not None:
                    watch.cancel()
            status = response.status_code
            response.headers["x-request-id"] = call.number
            await response(scope, receive, send)
        except asyncio.CancelledError:
            if not gone:
                raise
            kind = "Disconnected"
        except (TimeoutError, asyncio.TimeoutError):  # it reads too slowly: the server closes the connection
            status, kind = 499, "Disconnected"
            raise SlowReader from None
        finally:
            front.ongoing -= 1
            seconds = time.monotonic() - call.start
            front.metrics.answered(call.endpoint, status, kind, seconds)
            if log.isEnabledFor(logging.INFO):
                self._log(call, status, seconds)

    def _check(self, headers: dict[bytes, bytes]) -> None:
        check_key(headers, self._keys)
        if self._front.draining:
            raise RequestError("The server is stopping.", 503, "Unhealthy", retry_after=RETRY_AFTER)

    def _log(self, call: Call, status: int, seconds: float) -> None:
        told: dict[str, Any] = {"request": call.number, "path": call.endpoint, "status": status}
        told |= {"ms": round(1e3 * seconds, 2), "model": call.model, "texts": call.texts, "tokens": call.tokens}
        log.info("request", extra={"told": told})


class ClientGone(Exception):
    """The connection ended before the body did."""


class SlowReader(Exception):
    """Ends a request whose answer is not read."""


def check_key(headers: dict[bytes, bytes], keys: Sequence[bytes]) -> None:
    given = headers.get(b"authorization", b"")
    if keys and not any([hmac.compare_digest(given, key) for key in keys]):  # all of them: no time tells which
        raise RequestError("The API key is missing or wrong: send Authorization: Bearer KEY.", 401, "Unauthorized")


async def _body(headers: dict[bytes, bytes], receive: Receive, limit: int) -> bytes:
    """The body, whose slow arrival is the server's to end (`protocol.py`)."""
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise RequestError(f"The body is larger than {limit} bytes.", status=413)
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise RequestError(f"The body is larger than {limit} bytes.", status=413)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def application(front: Front, access: Access) -> ASGIApp:
    """Everything that is answered over HTTP."""
    keys = [f"Bearer {key}".encode() for key in access.keys]

    def worded(request: Request, error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
        response = (openai_error if request.url.path.startswith("/v1") else tei_error)(error)
        response.headers.update(headers or {})
        return response

    def private(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            try:
                check_key(dict(request.headers.raw), keys)
                return await answer(request)
            except RequestError as error:
                return worded(request, error)

        return checked

    async def no_route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            why = f"{request.url.path} takes {(error.headers or {}).get('Allow', 'no requests')}, not {request.method}."
        else:
            why = f"There is no route {request.url.path}: /docs lists those that there are."
        return worded(request, RequestError(why, error.status_code), error.headers)

    async def health(request: Request) -> Response:
        """200 where an engine answers."""
        if front.engines.ready and not front.draining:
            return Response()
        why = "The server is stopping." if front.draining else "No engine answers."
        return tei_error(RequestError(why, 503, "Unhealthy", retry_after=RETRY_AFTER))

    async def metrics(request: Request) -> Response:
        return Response(await front.metrics_text(), media_type="text/plain; version=0.0.4")

    async def models(request: Request) -> Response:
        return Json({"object": "list", "data": [_model(front, name) for name in names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in names:
            raise RequestError(f"There is no model {name!r}: {', '.join(names)}.", 404, param="model")
        return Json(_model(front, name))

    async def info(request: Request) -> Response:
        return Json(_info(front))

    async def openapi(request: Request) -> Response:
        return Json(document(front.models))

    async def docs(request: Request) -> Response:
        return HTMLResponse(page(document(front.models)))

    names = list(dict.fromkeys(model.served.name for model in front.models))
    posts = {
        endpoint: Post(front, access, endpoint, answer, wording) for endpoint, (answer, wording, _) in POSTS.items()
    }
    routes = [Path(endpoint, post, methods=["POST"]) for endpoint, post in posts.items()]
    routes += [
        Path("/health", health),
        Path("/ping", health),
        Path("/metrics", metrics),
        Path("/info", private(info)),
        Path("/v1/models", private(models)),
        Path("/v1/models/{name:path}", private(model)),
        Path("/openapi.json", openapi),
        Path("/docs", docs),
    ]
    others = Starlette(routes=routes, exception_handlers={HTTPException: no_route})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette's way to a route takes a seventh of a front's time for a small request.
        post = posts.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (post or others)(scope, receive, send)

    if not access.origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=list(access.origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id"],
    )


def _model(front: Front, name: str) -> dict[str, Any]:
    made = {"id": name, "object": "model", "created": 0, "owned_by": "bertfuse"}
    return made | {"capabilities": _capabilities(front, name)}


_CAPABILITIES = {"embed": ["embed"], "rerank": ["rerank"], "classify": ["classify"], "sparse": ["embed_sparse"]}
_CAPABILITIES["late"] = ["embed_all", "rerank"]


def _capabilities(front: Front, name: str) -> list[str]:
    """By infinity's words, where it has some."""
    found: list[str] = []
    for served in (model.served for model in front.models if model.served.name == name):
        found += ["image_embed"] if served.modality == IMAGE else _CAPABILITIES[served.kind]
    return found


def _info(front: Front) -> dict[str, Any]:
    """As text-embeddings-inference's, of the first model; "models" has all of them."""
    kinds = {"rerank": "reranker", "classify": "classifier"}
    limits = front.limits

    def of(served: Served) -> dict[str, Any]:
        return {
            "model_id": served.name,
            "served_model_name": served.name,
            "model_dtype": served.dtype,
            "model_type": {kinds.get(served.kind, "embedding"): {}},
            "capabilities": _capabilities(front, served.name),
            "modality": served.modality,
            "max_input_length": served.max_input_tokens,
            "max_batch_tokens": served.max_batch_tokens,
            "resident_bytes": served.resident_bytes,
        }

    return of(front.models[0].served) | {
        "max_concurrent_requests": limits.max_queued,
        "max_client_batch_size": limits.max_texts,
        "auto_truncate": limits.auto_truncate,
        "tokenization_workers": front.tokenizers,
        "version": __version__,
        "models": [of(model.served) for model in front.models],
    }
