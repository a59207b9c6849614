"""Small DeBERTa-v3 models with random weights and the tokenizer that theirs is: of pieces, made by sentencepiece."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers

WORDS = (
    "anna", "peter", "walks", "talks", "berlin", "paris", "works", "at", "the", "river", "bank", "in", "green", "house",
    "eats", "bread", "and", "sees", "lives", "near", "company", "bought", "old", "person", "city", "organization",
    "money", "this", "example", "is", "about",
)  # fmt: skip
LABELS = ("entailment", "neutral", "contradiction")
_SPECIAL = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}


def sentences(count: int, source: random.Random, longest: int = 30) -> list[str]:
    return [
        " ".join(source.choices([*WORDS, "Zürich", "xylophones,"], k=source.randint(1, longest))) for _ in range(count)
    ]


def tokenizer(folder: Path, seed: int) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer, saved in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "corpus.txt"
    text.write_text("\n".join(sentences(400, random.Random(seed))), encoding="utf-8")
    special = {key: value for i, (name, piece) in enumerate(_SPECIAL.items())
               for key, value in ((f"{name}_id", i), (f"{name}_piece", piece))}  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "spm"), vocab_size=120, hard_vocab_limit=False,
        control_symbols=["[MASK]"], minloglevel=2, **special,
    )  # fmt: skip
    text.unlink()
    made = transformers.DebertaV2TokenizerFast(vocab_file=str(folder / "spm.model"), model_max_length=64)
    made.save_pretrained(folder)
    return made


def config(vocabulary: int, **changes: Any) -> dict[str, Any]:
    """DeBERTa-v3's settings, small; weights as large that every one of them shows in the result."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    sizes |= {"vocab_size": vocabulary, "max_position_embeddings": 512, "position_buckets": 256, "type_vocab_size": 0}
    sizes |= {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1}
    sizes |= {"norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False, "pad_token_id": 0}
    return sizes | {"initializer_range": 0.3} | changes


def classifier(folder: Path, seed: int, **changes: Any) -> Path:
    """DeBERTa-v3 for natural language inference."""
    words = tokenizer(folder, seed)
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}
    made = transformers.DebertaV2Config(
        **config(len(words), pooler_hidden_size=32, pooler_dropout=0, **changes, **names)
    )
    torch.manual_seed(seed)
    transformers.DebertaV2ForSequenceClassification(made).eval().save_pretrained(folder)
    return folder
