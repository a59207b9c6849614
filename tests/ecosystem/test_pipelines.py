"""optimum's ORTModelFor… and transformers' pipelines on optimized folders, and bertfuse's own, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optimum.onnxruntime as ort_models
import pytest
import torch
import transformers

import bertfuse
from bertfuse.inference import MaskFiller, QuestionAnswerer, Tagger
from tests.checkpoints import CHECKPOINTS, texts

Folders = Callable[[str], Path]
# float32 sums in another order; logits of these large random weights reach 10.
ATOL = 1e-4
HEADS = {
    "SequenceClassification": ["logits"],
    "TokenClassification": ["logits"],
    "QuestionAnswering": ["start_logits", "end_logits"],
    "MaskedLM": ["logits"],
    "Model": ["last_hidden_state"],
}


@pytest.mark.parametrize("name", list(CHECKPOINTS))
def test_models_of_optimum(name: str, sources: Folders, folders: Folders) -> None:
    kind = CHECKPOINTS[name][0]
    head, outputs = next((head, outputs) for head, outputs in HEADS.items() if kind.endswith(head))
    auto = "AutoModel" if head == "Model" else f"AutoModelFor{head}"
    theirs = "ORTModelForFeatureExtraction" if head == "Model" else f"ORTModelFor{head}"
    reference = getattr(transformers, auto).from_pretrained(sources(name)).eval()
    model = getattr(ort_models, theirs).from_pretrained(str(folders(name)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folders(name)))
    feed = tokenizer(texts(9, seed=4), padding=True, truncation=True, return_tensors="pt")
    if "Roberta" in kind or "Distil" in kind:
        feed.pop("token_type_ids", None)
    with torch.inference_mode():
        want, got = reference(**feed), model(**feed)
    for output in outputs:
        seen = feed["attention_mask"].bool().numpy()
        pair = [np.asarray(result[output]) for result in (got, want)]
        if pair[0].shape[:2] == seen.shape and len(outputs) == 1:
            pair = [array[seen] for array in pair]
        np.testing.assert_allclose(*pair, atol=ATOL)


def pipelines(task: str, name: str, sources: Folders, folders: Folders, theirs: str, **options: Any) -> tuple[Any, Any]:
    """The pipeline on PyTorch, and on optimum with the optimized folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folders(name)))
    model = getattr(ort_models, theirs).from_pretrained(str(folders(name)))
    reference = transformers.pipeline(task, model=str(sources(name)), tokenizer=tokenizer, device="cpu", **options)
    return reference, transformers.pipeline(task, model=model, tokenizer=tokenizer, **options)


def same(found: Any, wanted: Any) -> None:
    """Equal, numbers nearly."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, float | np.floating):
        assert abs(float(found) - float(wanted)) < ATOL
    else:
        assert found == wanted


@pytest.mark.parametrize("name", ["classifier", "multilabel", "regression", "reranker", "distilbert"])
def test_text_classification(name: str, sources: Folders, folders: Folders) -> None:
    task = "text-classification"
    reference, theirs = pipelines(task, name, sources, folders, "ORTModelForSequenceClassification")
    ours = bertfuse.Classifier(folders(name))
    given = texts(20, seed=5)
    cut = {"truncation": True}  # a pipeline does not cut by itself
    for arguments in ({}, {"top_k": None}, {"top_k": 2}, {"function_to_apply": "SIGMOID"}):
        want = reference(given, **arguments, **cut)
        same(theirs(given, **arguments, **cut), want)
        same(ours(given, **arguments), want)
        same(ours((text for text in given), **arguments, **cut), want)
        same(ours(given[0], **arguments), reference(given[0], **arguments))
    pair = {"text": given[0], "text_pair": given[1]}
    same(ours(pair), reference(pair))
    same(ours([pair]), reference([pair]))


@pytest.mark.parametrize("name", ["tagger", "roberta-tagger"])
def test_token_classification(name: str, sources: Folders, folders: Folders) -> None:
    task, model = "token-classification", "ORTModelForTokenClassification"
    reference, theirs = pipelines(task, name, sources, folders, model, aggregation_strategy="simple")
    given = [text for text in texts(30, seed=6, longest=15)]
    want = [reference(text) for text in given]
    assert sum(map(len, want)) > 30 and any("##" not in e["word"] and "ing" in e["word"] for row in want for e in row)
    same([theirs(text) for text in given], want)
    ours = Tagger(folders(name))
    same(ours(given), want)
    same(ours(given[3]), want[3])
    given += ["", "🙂 anna", "Anna walking in Berlin, talked. housing zebra?"]
    for options in (
        {"aggregation_strategy": "none"},
        {"aggregation_strategy": "first"},
        {"aggregation_strategy": "average", "ignore_labels": ["PER"]},
        {"aggregation_strategy": "max"},
    ):
        reference, _ = pipelines(task, name, sources, folders, model, **options)
        want = [reference(text) for text in given]
        same(ours(given, **options), want)
        same(Tagger(folders(name), **options)(given), want)


def test_question_answering(sources: Folders, folders: Folders) -> None:
    """Ours is the likeliest span by the model's own logits; the pipeline's search is another."""
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(sources("questions")).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folders("questions")))
    ask, context = texts(6, seed=7, longest=5), texts(6, seed=8, longest=12)
    found = QuestionAnswerer(folders("questions"))(ask, context)
    for question, text, answer in zip(ask, context, found, strict=True):
        feed = tokenizer(question, text, return_tensors="pt", return_offsets_mapping=True)
        offsets, sequences = feed.pop("offset_mapping")[0].tolist(), feed.sequence_ids(0)
        with torch.inference_mode():
            result = model(**feed)
        spans = [
            (float(result.start_logits[0, i] + result.end_logits[0, j]), offsets[i][0], offsets[j][1])
            for i in range(len(offsets))
            for j in range(i, min(i + 15, len(offsets)))
            if sequences[i] == sequences[j] == 1
        ]
        _, start, end = max(spans)
        assert (answer["start"], answer["end"], answer["answer"]) == (start, end, text[start:end])
        assert 0 < answer["score"] <= 1
    theirs = ort_models.ORTModelForQuestionAnswering.from_pretrained(str(folders("questions")))
    pipe = transformers.pipeline("question-answering", model=theirs, tokenizer=tokenizer)
    torch_pipe = transformers.pipeline("question-answering", model=model, tokenizer=tokenizer, device="cpu")
    for question, text in zip(ask, context, strict=True):
        same(pipe(question=question, context=text), torch_pipe(question=question, context=text))


def test_fill_mask(sources: Folders, folders: Folders) -> None:
    reference, theirs = pipelines("fill-mask", "masks", sources, folders, "ORTModelForMaskedLM", top_k=4)
    ours = MaskFiller(folders("masks"))
    for text in ("the [MASK] walks.", "anna [MASK] peter"):
        want = reference(text)
        same(theirs(text), want)
        (found,) = ours([text], top_k=4)[0:1]
        same(found[0], [{key: row[key] for key in ("token_str", "token", "score")} for row in want])
