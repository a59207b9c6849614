"""Small GLiNER models with random weights, of each kind of encoder and head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from gliner import GLiNER

from . import deberta_models


def made(kind: str, folder: Path, seed: int) -> GLiNER:
    """A model with random weights; its own heads' are large, so that scores differ."""
    words = deberta_models.tokenizer(folder / "encoder", seed)
    bert = {"model_type": "bert", "vocab_size": len(words), "hidden_size": 32, "num_hidden_layers": 2}
    bert |= {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 96}
    encoder = {"model_type": "deberta-v2"} | deberta_models.config(len(words))
    changes: dict[str, Any] = {"span_mode": "token_level" if kind.startswith("token") else "markerV0"}
    if "every layer" in kind:
        changes["fuse_layers"] = True
    elif "convolution" in kind:
        encoder |= {"conv_kernel_size": 3, "conv_act": "gelu"}
    elif "T5" in kind:
        encoder = {"model_type": "t5", "vocab_size": len(words), "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2}
        encoder |= {"num_heads": 4, "feed_forward_proj": "gated-gelu", "pad_token_id": 0}
    elif "two encoders" in kind:
        words.save_pretrained(folder / "labels")
        transformers.AutoConfig.for_model(**bert).save_pretrained(folder / "labels")
        changes |= {"labels_encoder": str(folder / "labels"), "labels_encoder_config": bert}
    transformers.AutoConfig.for_model(**encoder).save_pretrained(folder / "encoder")
    settings = {"model_name": str(folder / "encoder"), "encoder_config": encoder, "hidden_size": 24, "max_width": 4}
    torch.manual_seed(seed)
    model = GLiNER.from_config(settings | changes, backbone_from_pretrained=False)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "token_rep_layer" not in name and weights.ndim > 1:
                weights.mul_(3)
    return model.eval()
