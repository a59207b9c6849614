"""Models of images, and of images and texts: inputs and outputs as optimum names them, and PyTorch's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from bertfuse.optimization import optimize
from tests.tiny_models import EXPORTERS
from tests.vision_models import LONGEST, MODELS, SIZE, VOCABULARY, build

OUTPUTS = {
    "vit": ["last_hidden_state", "pooler_output"],
    "vit-classifier": ["logits"],
    "deit": ["last_hidden_state", "pooler_output"],
    "dinov2": ["last_hidden_state", "pooler_output"],
    "clip-images": ["last_hidden_state", "pooler_output"],
    "clip-image-vectors": ["image_embeds", "last_hidden_state"],
    "clip-texts": ["last_hidden_state", "pooler_output"],
    "clip-text-vectors": ["text_embeds", "last_hidden_state"],
    "siglip-images": ["last_hidden_state", "pooler_output"],
    "siglip-texts": ["last_hidden_state", "pooler_output"],
    "clip": ["logits_per_image", "logits_per_text", "text_embeds", "image_embeds"],
    "siglip": ["logits_per_image", "logits_per_text", "text_embeds", "image_embeds"],
}


def feed_of(names: list[str], random: np.random.Generator) -> dict[str, np.ndarray]:
    """Of images and texts of random counts and lengths those that the model takes."""
    images, texts, length = random.integers(1, 5), random.integers(1, 5), random.integers(2, LONGEST + 1)
    ids = random.integers(2, VOCABULARY - 1, (texts, length))
    lengths = random.integers(1, length + 1, texts)
    ids[np.arange(texts), lengths - 1] = VOCABULARY - 1
    feed = {
        "input_ids": ids,
        "attention_mask": (np.arange(length) < lengths[:, None]).astype(np.int64),
        "pixel_values": random.standard_normal((images, 3, SIZE, SIZE)).astype(np.float32),
    }
    return {name: feed[name] for name in names}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODELS)
def test_the_fused_model_computes_what_pytorch_does(name: str, exporter: str, tmp_path: Path) -> None:
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    random, model = np.random.default_rng(seed), build(name, seed)
    made = optimize(model, tmp_path, exporter=exporter)
    assert made.passed and made.fusion.fused
    layers = 4 if name in ("clip", "siglip") else 2
    attentions = made.fusion.fused.get("FusedAttention", 0) + made.fusion.fused.get("FusedAttentionVariant", 0)
    assert attentions == layers
    session = bertfuse.InferenceSession(made.model)
    assert [value.name for value in session.get_outputs()] == OUTPUTS[name]
    feed = feed_of([value.name for value in session.get_inputs()], random)
    found = session.run(None, feed)
    with torch.inference_mode():
        want = model(**{key: torch.from_numpy(array) for key, array in feed.items()})
    for output, array, value in zip(OUTPUTS[name], found, session.get_outputs(), strict=True):
        np.testing.assert_allclose(array, want[output].numpy(), atol=2e-4, rtol=2e-4, err_msg=output)
        assert all(isinstance(size, int) for size in value.shape[2:]), value.shape


def test_images_of_which_no_size_is_known_are_refused(tmp_path: Path) -> None:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
    model = transformers.ResNetModel(transformers.ResNetConfig(**sizes)).eval()
    with pytest.raises(BertfuseError, match="has no image_size"):
        export_model(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
