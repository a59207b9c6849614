"""Tiny random models of images, and of images and texts, as transformers saves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

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
    """The folder of "clip" or "siglip", with tokenizer and image processing."""
    build(name, seed).save_pretrained(folder)
    special = ["[PAD]", "</s>", "<unk>"] if name == "siglip" else ["<unk>", "<pad>", "<none>"]
    words = [*special, *(f"w{number}" for number in range(3, 95)), "<s>", "</t>"]
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    end = "</s>" if name == "siglip" else "</t>"
    single, tokens = ("$A </s>", ["</s>"]) if name == "siglip" else ("<s> $A </t>", ["<s>", "</t>"])
    made.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(token, words.index(token)) for token in tokens]
    )
    settings = {"pad_token": end, "eos_token": end, "unk_token": "<unk>", "model_max_length": LONGEST}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **settings).save_pretrained(folder)
    images = {"do_resize": True, "do_normalize": True, "do_rescale": True, "rescale_factor": 1 / 255, "resample": 3}
    if name == "siglip":
        images |= {"image_processor_type": "SiglipImageProcessor", "size": {"height": SIZE, "width": SIZE}}
        images |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    else:  # as the first releases of transformers wrote it
        images |= {"feature_extractor_type": "CLIPFeatureExtractor", "size": SIZE, "crop_size": SIZE}
        images |= {"do_center_crop": True, "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return folder


def pictures(count: int, random: np.random.Generator) -> list[Any]:
    """Images of random sizes, some grey."""
    sizes = random.integers(1, 60, (count, 2))
    made = [Image.fromarray(random.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]
    return [image.convert("L") if random.random() < 0.2 else image for image in made]


def sentences(count: int, random: np.random.Generator, longest: int = 2 * LONGEST) -> list[str]:
    """Texts of random words, of which the tokenizer of `save` knows most."""
    lengths = random.integers(0, longest, count)
    return [" ".join(f"w{number}" for number in random.integers(0, 99, length)) for length in lengths]
