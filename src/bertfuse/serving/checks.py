"""What every request's body is checked for: JSON, strings that are text, flags, how many and how long."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

Text = str | tuple[str, str]  # with a second segment

RETRY_AFTER = 1  # seconds that a client is told to wait


class RequestError(Exception):
    """A request that is not answered: one sentence that says why, and the HTTP status.

    `kind` is text-embeddings-inference's error_type; `param` the field at fault, where there is one; `retry_after` in
    seconds, where the same request may succeed later.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        kind: str = "Validation",
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.param, self.retry_after = message, status, kind, param, retry_after


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for, and how many may wait."""

    max_texts: int = 2048
    max_body_bytes: int = 8_000_000
    auto_truncate: bool = False  # where a request does not say
    timeout: float = 60.0  # seconds until a request that has no answer is given up
    max_queued: int = 512  # requests that wait for an engine
    max_connections: int = 10_000  # of a process that speaks HTTP
    max_pixels: int = 50_000_000  # of a request's images together, as they come


def read_json(body: bytes) -> dict[str, Any]:
    """The body's JSON object. orjson takes neither NaN nor invalid UTF-8, and nothing nested deeper than 1,024."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The body is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise RequestError(f"The body is {named(found)}, not a JSON object.")
    return found


def check_lengths(lengths: Iterable[int], limit: int, param: str, first: int = 0) -> None:
    """Raises RequestError for the first text of more than `limit` tokens; `first` is the position of the first."""
    for index, length in enumerate(lengths, first):
        if length > limit:
            raise RequestError(
                f"{param}[{index}] has {length} tokens, and the model takes {limit}: shorten it, or truncate.",
                status=413,
                param=param,
            )


def required(body: Mapping[str, Any], name: str) -> Any:
    if body.get(name) is None:
        raise RequestError(f"The body has no {name}.", param=name)
    return body[name]


def a_list(value: Any, name: str, wanted: str) -> list[Any]:
    if not isinstance(value, list):
        raise RequestError(f"{name} is {named(value)}: give {wanted}.", param=name)
    return value


def check_count(values: Sequence[Any], name: str, limits: Limits, of: str = "text") -> None:
    if not values:
        raise RequestError(f"{name} is empty: give at least one {of}.", kind="Empty", param=name)
    if len(values) > limits.max_texts:
        raise RequestError(
            f"{name} has {len(values)} {of}s: {limits.max_texts} are taken at most.", status=413, param=name
        )


def a_text(value: Any, where: str, param: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{where} is {named(value)}, not a string.", param=param)
    if not value:
        raise RequestError(f"{where} is an empty string.", kind="Empty", param=param)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(f"{where} holds half a surrogate pair, which is not a character.", param=param) from None
    return value


def a_flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {named(value)}, neither true nor false.", param=name)
    return value


def a_number(body: Mapping[str, Any], name: str, most: int) -> int | None:
    """A whole number from 1 to `most`; None where the body has none."""
    value = body.get(name)
    if value is not None and (not is_id(value) or not 1 <= value <= most):
        raise RequestError(f"{name} is {shown(value)}: give a whole number from 1 to {most}.", param=name)
    return value


def a_name(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{name} is {named(value)}, not a string.", param=name)
    return value


def truncates(body: Mapping[str, Any], limits: Limits) -> bool:
    direction = body.get("truncation_direction")
    if direction is not None and str(direction).lower() != "right":
        raise RequestError(
            f"truncation_direction is {shown(direction)}: texts are cut on the right only.",
            param="truncation_direction",
        )
    return a_flag(body, "truncate", limits.auto_truncate)


def is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def named(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
