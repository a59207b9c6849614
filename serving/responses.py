"""How answers and errors are worded; OpenAI's errors and text-embeddings-inference's."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from fastapi.responses import JSONResponse, Response

from .requests import RequestError


async def result(response: Any) -> Any:
    return await response


def base64_of(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def openai_error(error: RequestError) -> Response:
    kinds = {429: "rate_limit_exceeded", 404: "not_found_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    told = {"message": error.message, "type": kind, "param": error.param, "code": None}
    return JSONResponse({"error": told}, error.status, _headers(error))


def tei_error(error: RequestError) -> Response:
    return JSONResponse({"error": error.message, "error_type": error.kind}, error.status, _headers(error))


def _headers(error: RequestError) -> dict[str, str]:
    return {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}


def first_line(error: BaseException) -> str:
    """Of an error in a replica that is its own message, not Ray's account of where it was raised."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(cause).__name__
