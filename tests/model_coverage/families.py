"""Small models of every family with random weights, and one with real ones; no network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from bertfuse.cli.demo import model_folder
from bertfuse.export import TASKS
from bertfuse.export.sentence import SentenceEncoder

LAYERS, HIDDEN, HEADS, VOCABULARY, LONGEST = 2, 32, 4, 97, 40
HEAD_TASKS = ("fill-mask", "text-classification", "token-classification", "question-answering")
ALL_TASKS = ("feature-extraction", *HEAD_TASKS)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 64,
    "max_position_embeddings": LONGEST,
    "initializer_range": 0.2,
    "num_labels": 3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
# RoBERTa and its kin count positions from the padding's number on, which is 1.
_ROBERTA = {"max_position_embeddings": LONGEST + 2, "pad_token_id": 1, "type_vocab_size": 1}


@dataclass(frozen=True)
class Family:
    """One architecture. `tasks` are those of bertfuse.export.TASKS that are measured.

    `post_norm` says that a layer is BERT's: it promises one FusedAttention, two FusedGemmLayerNorm and one
    FusedGemmGelu; any other promises its attention alone.
    """

    name: str
    config: str
    changes: dict[str, Any]
    tasks: tuple[str, ...] = ("feature-extraction", "fill-mask")
    post_norm: bool = False
    wrap: Callable[[Any], Any] | None = None
    base: dict[str, Any] | None = None  # in place of what most configurations have in common
    checkpoint: Callable[[], Path] | None = None  # real weights in place of a configuration
    layers: int = LAYERS
    cls: str = ""  # of transformers, where the task's automatic class does not take the configuration
    windowed: bool = False  # a token of padding may see no key: exporters differ in what it then is

    def build(self, task: str) -> Any:
        """The task's model in inference mode, the same every time; of real weights their folder."""
        if self.checkpoint is not None:
            return self.checkpoint()
        torch.manual_seed(0)
        values = (_COMMON if self.base is None else self.base) | self.changes
        labels = 2 if task == "question-answering" else values.get("num_labels", 3)
        config = getattr(transformers, self.config)(**(values | {"num_labels": labels}))
        if self.cls:
            model = getattr(transformers, self.cls)(config).eval()
        else:
            model = getattr(transformers, TASKS[task].auto_class).from_config(config).eval()
        with torch.no_grad():  # biases start at 0 and LayerNorms at the identity: a lost one would go unseen
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return self.wrap(model).eval() if self.wrap else model

    @property
    def sees(self) -> bool:
        """Whether its input is an image."""
        return self.base is _IMAGES

    def promise(self, task: str) -> dict[str, int]:
        """What the architecture itself promises, by op."""
        counts = {"FusedAttention": self.layers}
        if self.post_norm:
            counts |= {"EmbedLayerNorm": 1, "FusedGemmLayerNorm": 2 * self.layers, "FusedGemmGelu": self.layers}
            if task == "fill-mask":
                counts["FusedGemmGeluLayerNorm"] = 1
        return counts


def _bert_like(name: str, config: str, **changes: Any) -> Family:
    return Family(name, config, changes, ALL_TASKS, post_norm=True)


def _sentence(name: str, config: str, *, pooling: str, **changes: Any) -> Family:
    return Family(
        name, config, changes, ("sentence-similarity",), True, lambda model: SentenceEncoder(model, (pooling,))
    )


def _vision(name: str, config: str) -> Family:
    return Family(name, config, {}, ("feature-extraction",), base=_IMAGES)


_DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": HIDDEN,
    "n_layers": LAYERS,
    "n_heads": HEADS,
    "hidden_dim": 64,
    "max_position_embeddings": LONGEST,
    "initializer_range": 0.2,
}
_FUNNEL = {
    "vocab_size": VOCABULARY,
    "block_sizes": [1, 1],
    "num_decoder_layers": 1,
    "d_model": HIDDEN,
    "n_head": HEADS,
    "d_head": HIDDEN // HEADS,
    "d_inner": 64,
    "architectures": ["FunnelModel"],
}
_GROUPED = {"head_dim": 16, "num_key_value_heads": 2}
_GEMMA = {
    "head_dim": 16, "num_key_value_heads": 1, "query_pre_attn_scalar": 16, "sliding_window": 8,
    "use_bidirectional_attention": True, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
_ESM = {"position_embedding_type": "rotary", "token_dropout": False, "mask_token_id": 4}
_RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}
_IMAGES = {k: v for k, v in _COMMON.items() if k not in ("vocab_size", "max_position_embeddings", "num_labels")}
_IMAGES |= {"image_size": 16, "patch_size": 4, "num_channels": 3}

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        _bert_like("bert", "BertConfig"),
        _bert_like("roberta", "RobertaConfig", **_ROBERTA),
        _bert_like("xlm-roberta", "XLMRobertaConfig", **_ROBERTA),
        _bert_like("camembert", "CamembertConfig", **_ROBERTA),
        Family("distilbert", "DistilBertConfig", {}, ALL_TASKS, post_norm=True, base=_DISTILBERT),
        _bert_like("electra", "ElectraConfig", embedding_size=16),
        _bert_like("albert", "AlbertConfig", embedding_size=16),
        _bert_like("mpnet", "MPNetConfig", **_ROBERTA),
        _bert_like("minilm", "BertConfig", hidden_size=96, num_attention_heads=12, intermediate_size=192),
        Family(
            "all-MiniLM-L6-v2 (real weights)",
            "BertConfig",
            {},
            ("feature-extraction", "sentence-similarity"),
            post_norm=True,
            checkpoint=model_folder,
            layers=6,
        ),
        _sentence("bge (bert, cls)", "BertConfig", pooling="cls"),
        _sentence("e5 (bert, mean)", "BertConfig", pooling="mean"),
        _sentence("multilingual-e5 (xlm-roberta, mean)", "XLMRobertaConfig", pooling="mean", **_ROBERTA),
        _sentence("all-mpnet (mpnet, mean)", "MPNetConfig", pooling="mean", **_ROBERTA),
        Family("cross-encoder (bert, one label)", "BertConfig", {"num_labels": 1}, ("text-classification",), True),
        Family("gte", "GteConfig", {}),
        Family("jina-embeddings-v3", "JinaEmbeddingsV3Config", {}),
        Family("nomic-bert", "NomicBertConfig", {"head_dim": 8}),
        Family(
            "modernbert",
            "ModernBertConfig",
            {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
            windowed=True,
        ),
        Family("eurobert", "EuroBertConfig", {"num_key_value_heads": HEADS, "head_dim": 8, "mask_token_id": 4}),
        Family("deberta", "DebertaConfig", _RELATIVE),
        Family("deberta-v2", "DebertaV2Config", _RELATIVE | {"position_buckets": 16, "norm_rel_ebd": "layer_norm"}),
        Family(
            "mobilebert",
            "MobileBertConfig",
            {"embedding_size": 16, "intra_bottleneck_size": 16, "num_feedforward_networks": 2},
        ),
        Family("funnel", "FunnelConfig", {}, base=_FUNNEL),
        Family("esm", "EsmConfig", _ESM),
        Family("qwen3", "Qwen3Config", _GROUPED, ("feature-extraction",)),
        Family("gemma3", "Gemma3TextConfig", _GEMMA, ("feature-extraction",), windowed=True),
        _vision("vit", "ViTConfig"),
        _vision("deit", "DeiTConfig"),
        _vision("dinov2", "Dinov2Config"),
        _vision("siglip, images", "SiglipVisionConfig"),
        Family("siglip, texts", "SiglipTextConfig", {}, ("feature-extraction",), cls="SiglipTextModel"),
        _vision("clip, images", "CLIPVisionConfig"),
        Family("clip, texts", "CLIPTextConfig", {}, ("feature-extraction",)),
    )
}  # fmt: skip
