"""Bodies of requests, checked: OpenAI's embeddings, text-embeddings-inference's routes, Cohere's and Jina's rerank."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertfuse.model_folder.towers import IMAGE, TEXT

from .checks import (
    Limits,
    RequestError,
    Text,
    a_flag,
    a_list,
    a_name,
    a_number,
    a_text,
    check_count,
    is_id,
    required,
    shown,
    truncates,
)

_DATA = re.compile(r"data:(image/[\w.+-]+)?(;[\w.+-]+=[\w.+%-]*)*;base64,", re.IGNORECASE | re.ASCII)
_URL = re.compile(r"[a-z][a-z0-9+.-]*:(?<!data:)", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class EmbeddingsRequest:
    """OpenAI's, and text-embeddings-inference's /embed, /embed_all and /embed_sparse."""

    inputs: list[Any]  # of texts, or of lists of token ids
    base64: bool
    dimensions: int | None
    prompt_name: str | None
    truncate: bool
    normalize: bool = False


@dataclass(frozen=True)
class ImagesRequest:
    """infinity's: OpenAI's with images, whose files' bytes these are."""

    images: list[bytes]
    base64: bool
    dimensions: int | None


@dataclass(frozen=True)
class TextsRequest:
    """A reranker's (query, text) pairs, or /predict's texts."""

    texts: list[Text]
    alone: bool  # a single text and not a list of one
    raw_scores: bool
    return_text: bool
    truncate: bool
    top: int | None = None


@dataclass(frozen=True)
class SimilarityRequest:
    source: str
    sentences: list[str]
    prompt_name: str | None
    truncate: bool


def embeddings_request(body: Mapping[str, Any], limits: Limits, dimension: int) -> EmbeddingsRequest:
    """`dimension` is the size of the model's vectors."""
    inputs = _inputs(required(body, "input"), "input", limits)
    encoded, dimensions = _encoded(body, "encoding_format"), a_number(body, "dimensions", dimension)
    return EmbeddingsRequest(inputs, encoded, dimensions, a_name(body, "prompt_name"), truncates(body, limits))


def multi_vector_request(body: Mapping[str, Any], limits: Limits, dimension: int) -> EmbeddingsRequest:
    """Jina's, which calls the encoding embedding_type, and whose texts may be objects with a text."""
    given = required(body, "input")
    given = [given] if isinstance(given, dict) else given
    if isinstance(given, list):
        given = [entry.get("text") if isinstance(entry, dict) else entry for entry in given]
    name = "encoding_format" if "embedding_type" not in body else "embedding_type"
    inputs, encoded, dimensions = (
        _inputs(given, "input", limits),
        _encoded(body, name),
        a_number(body, "dimensions", dimension),
    )
    return EmbeddingsRequest(inputs, encoded, dimensions, a_name(body, "prompt_name"), truncates(body, limits))


def images_request(body: Mapping[str, Any], limits: Limits, dimension: int) -> ImagesRequest:
    given = required(body, "input")
    entries = [given] if isinstance(given, str) else a_list(given, "input", "a data URI, or a list of them")
    check_count(entries, "input", limits, "image")
    images = [_image(a_text(entry, f"input[{index}]", "input"), index) for index, entry in enumerate(entries)]
    return ImagesRequest(images, _encoded(body, "encoding_format"), a_number(body, "dimensions", dimension))


def modality_of(body: Mapping[str, Any]) -> str:
    """TEXT or IMAGE."""
    modality = body.get("modality")
    if modality not in (None, TEXT, IMAGE):
        raise RequestError(f"modality is {shown(modality)}: choose text or image.", param="modality")
    return modality or TEXT


def _image(uri: str, index: int) -> bytes:
    where, wanted = f"input[{index}]", "send the image itself, as data:image/png;base64,…"
    found = _DATA.match(uri)
    if found is None:
        what = "is a URL, and this server fetches none" if _URL.match(uri) else "is no data URI with an image in base64"
        raise RequestError(f"{where} {what}: {wanted}.", param="input")
    try:
        data = base64.b64decode(uri[found.end() :], validate=True)
    except ValueError:  # binascii.Error among them
        raise RequestError(f"{where} is not base64: {wanted}.", param="input") from None
    if not data:
        raise RequestError(f"{where} holds nothing: {wanted}.", kind="Empty", param="input")
    return data


def _encoded(body: Mapping[str, Any], name: str) -> bool:
    """Whether vectors are in base64."""
    kind = body.get(name) or "float"
    if kind not in ("float", "base64"):
        raise RequestError(f"{name} is {shown(kind)}: choose float or base64.", param=name)
    return kind == "base64"


def embed_request(body: Mapping[str, Any], limits: Limits, dimension: int) -> EmbeddingsRequest:
    """text-embeddings-inference's, which normalises vectors unless it is told not to."""
    inputs = _inputs(required(body, "inputs"), "inputs", limits)
    dimensions = a_number(body, "dimensions", dimension) if dimension else None
    prompt_name, normalize = a_name(body, "prompt_name"), a_flag(body, "normalize", True)
    return EmbeddingsRequest(inputs, False, dimensions, prompt_name, truncates(body, limits), normalize)


def _inputs(given: Any, name: str, limits: Limits) -> list[Any]:
    if isinstance(given, str):
        inputs: list[Any] = [given]
    elif isinstance(given, list) and given and all(is_id(entry) for entry in given):
        inputs = [given]
    else:
        inputs = a_list(given, name, "a string, a list of strings, a list of token ids, or a list of such lists")
    check_count(inputs, name, limits)
    for index, entry in enumerate(inputs):
        if isinstance(entry, list):
            if not entry or not all(is_id(part) for part in entry):
                raise RequestError(f"{name}[{index}] is not a list of token ids.", param=name)
        else:
            a_text(entry, f"{name}[{index}]", name)
    return inputs


def rerank_request(body: Mapping[str, Any], limits: Limits) -> TextsRequest:
    """text-embeddings-inference's."""
    query = a_text(required(body, "query"), "query", "query")
    texts = a_list(required(body, "texts"), "texts", "a list of strings")
    check_count(texts, "texts", limits)
    pairs = [(query, a_text(text, f"texts[{index}]", "texts")) for index, text in enumerate(texts)]
    return TextsRequest(pairs, False, a_flag(body, "raw_scores"), a_flag(body, "return_text"), truncates(body, limits))


def documents_request(body: Mapping[str, Any], limits: Limits) -> TextsRequest:
    """Cohere's and Jina's, as infinity and vLLM take it: documents are strings, or objects with a text."""
    query = a_text(required(body, "query"), "query", "query")
    documents = a_list(required(body, "documents"), "documents", "a list of strings")
    check_count(documents, "documents", limits)
    pairs: list[Text] = []
    for index, document in enumerate(documents):
        text = document.get("text") if isinstance(document, dict) else document
        pairs.append((query, a_text(text, f"documents[{index}]", "documents")))
    returned = a_flag(body, "return_documents")
    # These interfaces have no `truncate`: their servers cut.
    truncate = a_flag(body, "truncate", True)
    top = a_number(body, "top_n", 1 << 31)
    return TextsRequest(pairs, False, a_flag(body, "raw_scores"), returned, truncate, top)


def classify_request(body: Mapping[str, Any], limits: Limits) -> TextsRequest:
    """A string, a pair of strings, or a list of lists of one or two strings."""
    given = required(body, "inputs")
    alone = isinstance(given, str) or (
        isinstance(given, list) and bool(given) and all(isinstance(entry, str) for entry in given)
    )
    if alone:
        texts: list[Text] = [_single_or_pair(given, "inputs")]
    else:
        entries = a_list(given, "inputs", "a string, a pair of strings, or a list of lists of one or two strings")
        check_count(entries, "inputs", limits)
        texts = [_single_or_pair(entry, f"inputs[{index}]") for index, entry in enumerate(entries)]
    return TextsRequest(texts, alone, a_flag(body, "raw_scores"), False, truncates(body, limits))


def similarity_request(body: Mapping[str, Any], limits: Limits) -> SimilarityRequest:
    inputs = required(body, "inputs")
    if not isinstance(inputs, dict):
        raise RequestError("inputs is not an object with source_sentence and sentences.", param="inputs")
    source = a_text(required(inputs, "source_sentence"), "source_sentence", "inputs")
    sentences = a_list(required(inputs, "sentences"), "sentences", "a list of strings")
    check_count(sentences, "sentences", limits)
    for index, text in enumerate(sentences):
        a_text(text, f"sentences[{index}]", "inputs")
    parameters = body.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError("parameters is not an object.", param="parameters")
    return SimilarityRequest(source, sentences, a_name(parameters, "prompt_name"), truncates(parameters, limits))


def tokenize_request(body: Mapping[str, Any], limits: Limits) -> tuple[list[str], bool, str | None]:
    """The texts, whether special tokens are added, and the prompt's name."""
    given = required(body, "inputs")
    texts = [given] if isinstance(given, str) else a_list(given, "inputs", "a string or a list of strings")
    check_count(texts, "inputs", limits)
    for index, text in enumerate(texts):
        a_text(text, f"inputs[{index}]", "inputs")
    return texts, a_flag(body, "add_special_tokens", True), a_name(body, "prompt_name")


def decode_request(body: Mapping[str, Any], limits: Limits) -> tuple[list[list[int]], bool]:
    """Lists of token ids, and whether special tokens are left out."""
    given = a_list(required(body, "ids"), "ids", "a list of token ids, or a list of such lists")
    rows = [given] if given and all(is_id(entry) for entry in given) else given
    check_count(rows, "ids", limits)
    for index, row in enumerate(rows):
        if not isinstance(row, list) or not all(is_id(entry) for entry in row):
            raise RequestError(f"ids[{index}] is not a list of token ids.", param="ids")
    return rows, a_flag(body, "skip_special_tokens", True)


def _single_or_pair(entry: Any, where: str) -> Text:
    parts = [entry] if isinstance(entry, str) else entry
    if not isinstance(parts, list) or len(parts) not in (1, 2):
        raise RequestError(f"{where} is neither one string nor a pair of strings.", param="inputs")
    texts = [a_text(part, where, "inputs") for part in parts]
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])
