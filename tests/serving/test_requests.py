"""Request bodies: what is taken, and the one sentence for what is not. Needs no server."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertfuse.serving.checks import Limits, RequestError, check_lengths, read_json
from bertfuse.serving.late import task_of
from bertfuse.serving.requests import (
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

LIMITS = Limits(max_texts=4)
Parse = Callable[[dict[str, Any]], Any]


def embeddings(body: dict[str, Any]) -> Any:
    return embeddings_request(body, LIMITS, 32)


def rerank(body: dict[str, Any]) -> Any:
    return rerank_request(body, LIMITS)


def classify(body: dict[str, Any]) -> Any:
    return classify_request(body, LIMITS)


def test_inputs_of_embeddings() -> None:
    assert embeddings({"input": "a"}).inputs == ["a"]
    assert embeddings({"input": ["a", "b"], "encoding_format": "base64"}).base64
    assert embeddings({"input": [3, 4]}).inputs == [[3, 4]]
    assert embeddings({"input": [[3], [4, 5]]}).inputs == [[3], [4, 5]]
    assert embeddings({"input": "a", "dimensions": 32, "user": "someone", "model": "m"}).dimensions == 32


def test_inputs_of_classify() -> None:
    """A list of two strings is a pair, as in text-embeddings-inference."""
    assert classify({"inputs": "a"}).texts == ["a"] and classify({"inputs": "a"}).alone
    assert classify({"inputs": ["a", "b"]}).texts == [("a", "b")] and classify({"inputs": ["a", "b"]}).alone
    batch = classify({"inputs": [["a"], ["b", "c"]], "raw_scores": True})
    assert batch.texts == ["a", ("b", "c")] and not batch.alone and batch.raw_scores


def test_inputs_of_rerank() -> None:
    asked = rerank({"query": "q", "texts": ["a", "b"], "return_text": True, "truncate": True})
    assert asked.texts == [("q", "a"), ("q", "b")] and asked.return_text and asked.truncate and not asked.raw_scores


@pytest.mark.parametrize(
    ("parse", "body", "status", "sentence"),
    [
        (embeddings, {}, 400, "The body has no input."),
        (embeddings, {"input": {}}, 400, "input is an object: give a string, a list of strings"),
        (embeddings, {"input": [[]]}, 400, r"input\[0\] is not a list of token ids"),
        (embeddings, {"input": [[1, "a"]]}, 400, r"input\[0\] is not a list of token ids"),
        (embeddings, {"input": [True]}, 400, r"input\[0\] is a boolean, not a string"),
        (embeddings, {"input": "a", "dimensions": 0}, 400, "dimensions is 0: give a whole number from 1 to 32"),
        (embeddings, {"input": "a", "dimensions": 1.5}, 400, "dimensions is 1.5"),
        (embeddings, {"input": "\ud800"}, 400, "half a surrogate pair"),
        (embeddings, {"input": "a", "truncate": 1}, 400, "truncate is a number, neither true nor false"),
        (embeddings, {"input": "a", "truncation_direction": "Left"}, 400, "cut on the right only"),
        (embeddings, {"input": "a", "prompt_name": 3}, 400, "prompt_name is a number"),
        (rerank, {"texts": ["a"]}, 400, "The body has no query."),
        (rerank, {"query": "q", "texts": []}, 400, "texts is empty"),
        (rerank, {"query": "q", "texts": "a"}, 400, "texts is a string: give a list of strings"),
        (rerank, {"query": "q", "texts": ["a"] * 5}, 413, "texts has 5 texts: 4 are taken at most"),
        (classify, {"inputs": ["a", "b", "c"]}, 400, "inputs is neither one string nor a pair"),
        (classify, {"inputs": [["a", "b", "c"]]}, 400, r"inputs\[0\] is neither one string nor a pair"),
        (classify, {"inputs": [[]]}, 400, r"inputs\[0\] is neither one string nor a pair"),
    ],
    ids=lambda value: None if callable(value) else str(value)[:30].encode("ascii", "replace").decode(),
)
def test_refused(parse: Parse, body: dict[str, Any], status: int, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence) as raised:
        parse(body)
    assert raised.value.status == status
    assert raised.value.message.endswith(".") and "\n" not in raised.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
_NAMES = "documents top_n ids normalize parameters input query texts inputs encoding_format dimensions truncate"
FIELDS = [*_NAMES.split(), "raw_scores", "prompt_name", "modality", "input_type", "embedding_type"]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_body_is_taken_or_refused_in_one_sentence(body: dict[str, Any]) -> None:
    others = (documents_request, similarity_request, tokenize_request, decode_request)
    more = [lambda body, parse=parse: parse(body, LIMITS) for parse in others]
    more += [lambda body, parse=parse: parse(body, LIMITS, 32) for parse in (images_request, multi_vector_request)]
    more += [modality_of, task_of]
    for parse in (embeddings, rerank, classify, lambda body: embed_request(body, LIMITS, 32), *more):
        try:
            parse(body)
        except RequestError as error:
            assert 400 <= error.status < 500 and error.message.endswith(".")


def test_bodies_that_are_no_object() -> None:
    for body, sentence in ((b"", "not JSON"), (b"[1]", "a list, not a JSON object"), (b"\xff", "not JSON")):
        with pytest.raises(RequestError, match=sentence):
            read_json(body)
    with pytest.raises(RequestError, match="not JSON"):
        read_json(b"[" * 1_000_000)


def test_lengths() -> None:
    lengths = [random.randint(1, 9) for _ in range(5)]
    check_lengths(lengths, 9, "input")
    with pytest.raises(RequestError, match=r"input\[5\] has 10 tokens, and the model takes 9") as raised:
        check_lengths([*lengths, 10], 9, "input")
    assert raised.value.status == 413
