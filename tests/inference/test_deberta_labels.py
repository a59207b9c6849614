"""DeBERTa with a classifier, as of natural language inference and of guards: labels of texts and of pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
import transformers

import bertfuse
from tests.checkpoints import texts, tokenizer
from tests.commands import said

LABELS = {0: "entailment", 1: "neutral", 2: "contradiction"}


def deberta(folder: Path, version: str, seed: int) -> Path:
    words = tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    sizes |= {"vocab_size": words.get_vocab_size(), "max_position_embeddings": 50, "initializer_range": 0.3}
    sizes |= {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0, "id2label": LABELS}
    if version == "V2":  # and v3
        sizes |= {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True}
        sizes |= {"position_biased_input": False, "max_relative_positions": -1}
    torch.manual_seed(seed)
    config = getattr(transformers, f"Deberta{version}Config")(**sizes)
    getattr(transformers, f"Deberta{version}ForSequenceClassification")(config).eval().save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    special |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


@pytest.mark.parametrize("version", ["", "V2"])
def test_labels(version: str, tmp_path: Path) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    source = deberta(tmp_path / "source", version, seed)
    said("optimize", source, "-o", tmp_path / "out")
    model, words = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval(), tokenizer()
    words.enable_truncation(40)
    given = texts(8, seed=seed)
    pairs = list(zip(given, texts(8, seed=seed + 1), strict=True))
    classifier = bertfuse.Classifier(tmp_path / "out")
    for asked in (given, pairs):
        found = classifier(asked, top_k=None)
        for text, labels in zip(asked, found, strict=True):
            ids = words.encode(*(text if isinstance(text, tuple) else (text,))).ids
            with torch.inference_mode():
                want = model(input_ids=torch.tensor([ids])).logits[0].softmax(dim=-1).numpy()
            scores = {row["label"]: row["score"] for row in labels}
            np.testing.assert_allclose([scores[LABELS[index]] for index in range(3)], want, atol=1e-4)
    (tmp_path / "texts.txt").write_text("\n".join(given))
    said("classify", tmp_path / "texts.txt", "-o", tmp_path / "labels", "--model", tmp_path / "out")
    (file,) = (tmp_path / "labels").glob("*.parquet")
    rows = parquet.read_table(file).to_pylist()
    assert [row["label"] for row in rows] == [
        row["label"] for row in (labels[0] for labels in classifier(given, top_k=1))
    ]
