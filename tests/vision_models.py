"""Tiny random models of images, and of images and texts, as transformers saves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

SIZE, VOCABULARY, LONGEST = 16, 97, 24
_LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_IMAGES = _LAYERS | {"image_size": SIZE, "patch_size": 4}
# The last token of a text is the one of the largest number, or the one that the configuration names.
_TEXTS = _LAYERS | {"vocab_size": VOCABULARY, "max_position_embeddings": LONGEST}
_CLIP_TEXTS = _TEXTS | {"bos_token_id": 95, "eos_token_id": 96, "pad_token_id": 96}


def _clip() -> Any:
    parts = {"text_config": _CLIP_TEXTS, "vision_config": _IMAGES, "projection_dim": 24}
    return transformers.CLIPModel(transformers.CLIPConfig(**parts))


def _siglip() -> Any:
    parts = {"text_config": _TEXTS | {"pad_token_id": 1}, "vision_config": _IMAGES}
    return transformers.SiglipModel(transformers.SiglipConfig(**parts))


def _of(model: str, config: str, **values: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**values))


# name: the model; of what it takes, the inputs that it is exported with.
MODELS: dict[str, Callable[[], Any]] = {
    "vit": _of("ViTModel", "ViTConfig", **_IMAGES),
    "vit-classifier": _of("ViTForImageClassification", "ViTConfig", num_labels=5, **_IMAGES),
    "deit": _of("DeiTModel", "DeiTConfig", **_IMAGES),
    "dinov2": _of("Dinov2Model", "Dinov2Config", **_IMAGES),
    "clip-images": _of("CLIPVisionModel", "CLIPVisionConfig", **_IMAGES),
    "clip-image-vectors": _of("CLIPVisionModelWithProjection", "CLIPVisionConfig", projection_dim=24, **_IMAGES),
    "clip-texts": _of("CLIPTextModel", "CLIPTextConfig", **_CLIP_TEXTS),
    "clip-text-vectors": _of("CLIPTextModelWithProjection", "CLIPTextConfig", projection_dim=24, **_CLIP_TEXTS),
    "siglip-images": _of("SiglipVisionModel", "SiglipVisionConfig", **_IMAGES),
    "siglip-texts": _of("SiglipTextModel", "SiglipTextConfig", **_TEXTS),
    "clip": _clip,
    "siglip": _siglip,
}


def build(name: str, seed: int = 0) -> Any:
    """The model with random weights and biases, in inference mode."""
    torch.manual_seed(seed)
    model = MODELS[name]()
    with torch.no_grad():  # biases start at 0 and LayerNorms at the identity: a lost one would go unseen
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def save(name: str, folder: Path, seed: int = 0) -> Path:
    """The model's folder, without tokenizer or processor."""
    build(name, seed).save_pretrained(folder)
    return folder
