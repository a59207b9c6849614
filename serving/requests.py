"""Bodies of requests, checked: OpenAI's /v1/embeddings, text-embeddings-inference's /rerank and /predict."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertfuse.inference.model import Text


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
    max_ongoing: int = 256  # requests in work at a replica, of which its batches are made
    max_queued: int = 512  # requests that wait for a replica


@dataclass(frozen=True)
class EmbeddingsRequest:
    inputs: list[Any]  # of texts, or of lists of token ids
    base64: bool
    dimensions: int | None
    prompt_name: str | None
    truncate: bool


@dataclass(frozen=True)
class TextsRequest:
    """/rerank's (query, text) pairs, or /predict's texts."""

    texts: list[Text]
    alone: bool  # a single text and not a list of one
    raw_scores: bool
    return_text: bool
    truncate: bool


def read_json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"The body is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise RequestError(f"The body is {_named(found)}, not a JSON object.")
    return found


def embeddings_request(body: Mapping[str, Any], limits: Limits, dimension: int) -> EmbeddingsRequest:
    """`dimension` is the size of the model's vectors."""
    given = _required(body, "input")
    if isinstance(given, str):
        inputs: list[Any] = [given]
    elif isinstance(given, list) and given and all(_is_id(entry) for entry in given):
        inputs = [given]
    else:
        inputs = _list(given, "input", "a string, a list of strings, a list of token ids, or a list of such lists")
    _count(inputs, "input", limits)
    for index, entry in enumerate(inputs):
        if isinstance(entry, list):
            if not entry or not all(_is_id(part) for part in entry):
                raise RequestError(f"input[{index}] is not a list of token ids.", param="input")
        else:
            _text(entry, f"input[{index}]", "input")
    kind = body.get("encoding_format") or "float"
    if kind not in ("float", "base64"):
        raise RequestError(f"encoding_format is {kind!r}: choose float or base64.", param="encoding_format")
    dimensions = body.get("dimensions")
    if dimensions is not None and (not _is_id(dimensions) or not 1 <= dimensions <= dimension):
        raise RequestError(
            f"dimensions is {_shown(dimensions)}: give a whole number from 1 to {dimension}.", param="dimensions"
        )
    prompt_name = body.get("prompt_name")
    if prompt_name is not None and not isinstance(prompt_name, str):
        raise RequestError(f"prompt_name is {_named(prompt_name)}, not a string.", param="prompt_name")
    return EmbeddingsRequest(inputs, kind == "base64", dimensions, prompt_name, _truncate(body, limits))


def rerank_request(body: Mapping[str, Any], limits: Limits) -> TextsRequest:
    query = _text(_required(body, "query"), "query", "query")
    texts = _list(_required(body, "texts"), "texts", "a list of strings")
    _count(texts, "texts", limits)
    pairs = [(query, _text(text, f"texts[{index}]", "texts")) for index, text in enumerate(texts)]
    return TextsRequest(pairs, False, _flag(body, "raw_scores"), _flag(body, "return_text"), _truncate(body, limits))


def classify_request(body: Mapping[str, Any], limits: Limits) -> TextsRequest:
    """A string, a pair of strings, or a list of lists of one or two strings."""
    given = _required(body, "inputs")
    if isinstance(given, str):
        texts: list[Text] = [_text(given, "inputs", "inputs")]
    elif isinstance(given, list) and given and all(isinstance(entry, str) for entry in given):
        texts = [_single_or_pair(given, "inputs")]
    else:
        entries = _list(given, "inputs", "a string, a pair of strings, or a list of lists of one or two strings")
        _count(entries, "inputs", limits)
        texts = [_single_or_pair(entry, f"inputs[{index}]") for index, entry in enumerate(entries)]
        return TextsRequest(texts, False, _flag(body, "raw_scores"), False, _truncate(body, limits))
    return TextsRequest(texts, True, _flag(body, "raw_scores"), False, _truncate(body, limits))


def check_lengths(lengths: Iterable[int], limit: int, param: str) -> None:
    """Raises RequestError for the first text of more than `limit` tokens."""
    for index, length in enumerate(lengths):
        if length > limit:
            raise RequestError(
                f"{param}[{index}] has {length} tokens, and the model takes {limit}: shorten it, or truncate.",
                status=413,
                param=param,
            )


def _single_or_pair(entry: Any, where: str) -> Text:
    parts = [entry] if isinstance(entry, str) else entry
    if not isinstance(parts, list) or len(parts) not in (1, 2):
        raise RequestError(f"{where} is neither one string nor a pair of strings.", param="inputs")
    texts = [_text(part, where, "inputs") for part in parts]
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


def _required(body: Mapping[str, Any], name: str) -> Any:
    if body.get(name) is None:
        raise RequestError(f"The body has no {name}.", param=name)
    return body[name]


def _list(value: Any, name: str, wanted: str) -> list[Any]:
    if not isinstance(value, list):
        raise RequestError(f"{name} is {_named(value)}: give {wanted}.", param=name)
    return value


def _count(values: Sequence[Any], name: str, limits: Limits) -> None:
    if not values:
        raise RequestError(f"{name} is empty: give at least one text.", kind="Empty", param=name)
    if len(values) > limits.max_texts:
        raise RequestError(
            f"{name} has {len(values)} texts: {limits.max_texts} are taken at most.", status=413, param=name
        )


def _text(value: Any, where: str, param: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{where} is {_named(value)}, not a string.", param=param)
    if not value:
        raise RequestError(f"{where} is an empty string.", kind="Empty", param=param)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{where} holds half a surrogate pair, which is not a character.", param=param) from None
    return value


def _flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {_named(value)}, neither true nor false.", param=name)
    return value


def _truncate(body: Mapping[str, Any], limits: Limits) -> bool:
    direction = body.get("truncation_direction")
    if direction is not None and str(direction).lower() != "right":
        raise RequestError(
            f"truncation_direction is {_shown(direction)}: texts are cut on the right only.",
            param="truncation_direction",
        )
    return _flag(body, "truncate", limits.auto_truncate)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _named(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
