"""The gRPC server of a front: keys, limits, counts and errors around what `methods.py` computes."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from bertfuse.errors import first_line

from ..checks import RequestError
from ..front import Call, Front
from .messages import PACKAGE, TEI
from .methods import METHODS, Method

log = logging.getLogger("bertfuse.serving")

# Requests of one stream that are in work; its next one is read when one of them has been answered.
STREAM = 64
# text-embeddings-inference's codes for its kinds of errors, then ours for those that it has no kind for.
_CODES = {
    "Unhealthy": grpc.StatusCode.UNAVAILABLE,
    "Backend": grpc.StatusCode.FAILED_PRECONDITION,
    "Overloaded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "Validation": grpc.StatusCode.INVALID_ARGUMENT,
    "Empty": grpc.StatusCode.INVALID_ARGUMENT,
    "Unauthorized": grpc.StatusCode.UNAUTHENTICATED,
}
_NUMBER = re.compile(r"[\w.:-]{1,128}")


class _Refused(Exception):
    """A request that ends with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Methods:
    """The interface's methods as grpc.aio calls them."""

    def __init__(self, front: Front, keys: Sequence[str]) -> None:
        from ..app import check_key

        self._front, self._check_key = front, check_key
        self._keys = [f"Bearer {key}".encode() for key in keys]

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        made = []
        for service in TEI.file.services_by_name.values():
            methods = {
                method.name: self._handler(f"{service.name}/{method.name}", method) for method in service.methods
            }
            made.append(grpc.method_handlers_generic_handler(f"{PACKAGE}.{service.name}", methods))
        return made

    def _handler(self, name: str, method: Any) -> grpc.RpcMethodHandler:
        answer = METHODS[name]
        coders = {
            "request_deserializer": getattr(TEI, method.input_type.name).FromString,
            "response_serializer": getattr(TEI, method.output_type.name).SerializeToString,
        }

        async def unary(request: Any, context: Any) -> Any:
            async with _refusing(context):
                return await self._answered(answer, name, request, context)

        async def gathered(requests: AsyncIterator[Any], context: Any) -> Any:
            async with _refusing(context):
                found = []
                async for request in requests:
                    found.append(request)
                    if len(found) > self._front.limits.max_texts:  # what follows is not read
                        break
                return await self._answered(answer, name, found, context)

        async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            answers = self._streamed(answer, name, requests, context)
            async with _refusing(context), aclosing(answers):
                async for found in answers:
                    yield found

        if not method.client_streaming:
            return grpc.unary_unary_rpc_method_handler(unary, **coders)
        if not method.server_streaming:
            return grpc.stream_unary_rpc_method_handler(gathered, **coders)
        return grpc.stream_stream_rpc_method_handler(stream, **coders)

    async def _streamed(
        self, answer: Method, name: str, requests: AsyncIterator[Any], context: Any
    ) -> AsyncGenerator[Any, None]:
        """Answers in the order of the requests, STREAM of which are computed at once."""
        tasks: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue()
        places = asyncio.Semaphore(STREAM)
        begun: set[asyncio.Task[Any]] = set()

        async def read() -> None:
            try:
                async for request in requests:
                    await places.acquire()
                    task = asyncio.create_task(self._answered(answer, name, request, context))
                    begun.add(task)
                    tasks.put_nowait(task)
            finally:
                tasks.put_nowait(None)

        reading = asyncio.create_task(read())
        try:
            while (task := await tasks.get()) is not None:
                found = await task
                begun.discard(task)
                places.release()
                yield found
            await reading
        finally:
            for left in (reading, *begun):
                left.cancel()
            await asyncio.gather(reading, *begun, return_exceptions=True)  # else asyncio tells of errors nobody read

    async def _answered(self, answer: Method, name: str, request: Any, context: Any) -> Any:
        """One request's answer, counted and logged. Raises _Refused."""
        front = self._front
        told = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        given = told.get("x-request-id", "")
        call = Call(f"{PACKAGE}.{name}", given if _NUMBER.fullmatch(given) else os.urandom(16).hex())
        kind, status = "Disconnected", 499
        front.ongoing += 1
        try:
            self._check_key({b"authorization": told.get("authorization", "").encode()}, self._keys)
            if front.draining:
                raise RequestError("The server is stopping.", 503, "Unhealthy")
            found = await answer(front, call, request, told.get("model"))
            kind, status = "", 200
            return found
        except RequestError as error:
            kind, status = error.kind, error.status
            raise _Refused(_CODES.get(kind, grpc.StatusCode.INVALID_ARGUMENT), error.message) from None
        except Exception as error:
            kind, status = "Backend", 500
            log.exception("%s %s failed", call.endpoint, call.number)
            raise _Refused(grpc.StatusCode.INTERNAL, f"The server failed: {first_line(error)}.") from None
        finally:
            front.ongoing -= 1
            seconds = time.monotonic() - call.start
            front.metrics.answered(call.endpoint, status, kind, seconds)
            if log.isEnabledFor(logging.INFO):
                line: dict[str, Any] = {"request": call.number, "path": call.endpoint, "status": status}
                line |= {"ms": round(1e3 * seconds, 2), "model": call.model, "texts": call.texts, "tokens": call.tokens}
                log.info("request", extra={"told": line})


@asynccontextmanager
async def _refusing(context: Any) -> AsyncIterator[None]:
    try:
        yield
    except _Refused as refused:
        await context.abort(refused.code, refused.message)


async def listen(
    front: Front, address: str, keys: Sequence[str], certificate: str | None = None, key: str | None = None
) -> grpc.aio.Server:
    """The server on "HOST:PORT", which other fronts' servers may listen on, too. Raises OSError where it cannot."""
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", 1),
            ("grpc.max_receive_message_length", front.limits.max_body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", 1024),
        ]
    )
    server.add_generic_rpc_handlers(tuple(Methods(front, keys).handlers()))
    try:
        if certificate and key:
            pair = (Path(key).read_bytes(), Path(certificate).read_bytes())
            bound = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"{address} cannot be listened on for gRPC: {first_line(error)}") from error
    if not bound:
        raise OSError(f"{address} cannot be listened on for gRPC")
    await server.start()
    return server
