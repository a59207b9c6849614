"""Tagger on texts longer than the model: as transformers' pipeline with the same stride."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from tests.checkpoints import save, texts

LONG = [" ".join(texts(9, seed=seed, longest=25)) for seed in range(4)] + texts(3, seed=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("tagger")
    export_model(save("tagger", base / "source"), base / "out", exporter="torchscript")
    return base


@pytest.mark.parametrize(("stride", "strategy"), [(0, "simple"), (9, "first"), (30, "average"), (9, "max")])
def test_as_the_pipeline(stride: int, strategy: str, folder: Path) -> None:
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder / "source")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "source")
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, stride=stride, aggregation_strategy=strategy
    )
    tagger = bertfuse.Tagger(folder / "out", stride=stride, aggregation_strategy=strategy)
    kept = ("entity_group", "word", "start", "end")
    for ours, theirs in zip(tagger(LONG), pipeline(LONG), strict=True):
        assert [[entity[key] for key in kept] for entity in ours] == [[e[key] for key in kept] for e in theirs]
        assert [e["score"] for e in ours] == pytest.approx([e["score"] for e in theirs], abs=1e-4)


def test_nothing_is_cut(folder: Path) -> None:
    tagger = bertfuse.Tagger(folder / "out", aggregation_strategy="none", ignore_labels=())
    for text, found in zip(LONG, tagger(LONG, batch_size=3), strict=True):
        tagger.tokenizer.no_truncation()
        whole = tagger.tokenizer.encode(text, add_special_tokens=False)
        tagger.stride = tagger.stride
        assert [(token["start"], token["end"]) for token in found] == whole.offsets
        assert [token["index"] for token in found] == list(range(1, len(whole) + 1))
    before = [len(found) for found in tagger(LONG)]
    tagger.max_seq_length = 12
    assert [len(found) for found in tagger(LONG)] == before


def test_strides_that_do_not_do(folder: Path) -> None:
    for stride in (-1, 38):
        with pytest.raises(BertfuseError, match=rf"stride {stride}: parts of 38 tokens have 0 to 37 in common"):
            bertfuse.Tagger(folder / "out", stride=stride)
