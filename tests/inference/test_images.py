"""Encoder of images and texts: transformers' own vectors of CLIP and SigLIP, in whatever folder they are saved.

That folders of sentence-transformers give its vectors is tested in tests/ecosystem.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.inference.image_processing import ImageProcessor
from bertfuse.optimization import optimize
from tests.commands import said
from tests.vision_models import LONGEST, SIZE, pictures, save, sentences

CLOSE = {"atol": 2e-4, "rtol": 2e-4}
PROCESSORS = ("CLIP", "Siglip", "ViT", "DeiT", "Bit")


def seeded() -> np.random.Generator:
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def wanted(folder: Path, texts: list[str], images: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """transformers' vectors, one text and one image at a time."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    siglip = model.config.model_type == "siglip"
    padding = {"padding": "max_length", "max_length": LONGEST} if siglip else {"max_length": LONGEST}
    processor = ImageProcessor(folder)  # whose numbers are transformers' own, by the test below
    found: tuple[list[Any], list[Any]] = ([], [])
    with torch.inference_mode():
        for text in texts:
            ids = tokenizer(text, truncation=True, return_tensors="pt", **padding)["input_ids"]
            found[0].append(model.get_text_features(input_ids=ids))
        for image in images:
            found[1].append(model.get_image_features(pixel_values=torch.from_numpy(processor(image))[None]))
    vectors = [torch.cat([getattr(one, "pooler_output", one) for one in part]).numpy() for part in found]
    return vectors[0], vectors[1]


@pytest.mark.parametrize("name", PROCESSORS)
def test_images_are_processed_as_transformers_does(name: str, tmp_path: Path) -> None:
    random = seeded()
    kind = getattr(transformers, f"{name}ImageProcessorPil", None) or getattr(transformers, f"{name}ImageProcessor")
    for number in range(20):
        height, width, crop = ({"height": int(h), "width": int(w)} for h, w in random.integers(4, 50, (3, 2)))
        edge = name in ("CLIP", "Bit")
        settings: dict[str, Any] = {"size": {"shortest_edge": height["height"]} if edge else width}
        settings |= {"resample": int(random.integers(0, 6))} if random.random() < 0.5 else {}
        settings |= {"crop_size": crop} if name in ("CLIP", "DeiT", "Bit") else {}
        settings |= {key: False for key in ("do_rescale", "do_normalize", "do_resize") if random.random() < 0.1}
        theirs = kind(**settings)
        theirs.save_pretrained(tmp_path / str(number))
        (image,) = pictures(1, random)
        image = image.convert("RGB")
        want = theirs(image, return_tensors="np")["pixel_values"][0]
        found = ImageProcessor(tmp_path / str(number))(image)
        np.testing.assert_allclose(found, want, atol=1e-4, rtol=1e-5, err_msg=f"{settings} {image.size}")


@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_vectors(name: str, padding: str, tmp_path: Path) -> None:
    random = seeded()
    source = save(name, tmp_path / "source", int(random.integers(1 << 30)))
    options = bertfuse.FuseOptions(padding=padding)
    try:
        made = optimize(source, tmp_path / "out", [options, bertfuse.FuseOptions()], exporter="torchscript")
    except BertfuseError as error:
        pytest.fail(str(error))
    assert set(made.routes) == {"text", "image"} and all(one.passed for one in made.routes.values())
    texts, images = sentences(9, random), pictures(11, random)
    want = wanted(source, texts, images)
    encoder = bertfuse.Encoder(tmp_path / "out")
    np.testing.assert_allclose(encoder.encode(texts), want[0], **CLOSE)
    np.testing.assert_allclose(encoder.encode(images), want[1], **CLOSE)
    np.testing.assert_allclose(encoder.encode(images, batch_size=2), want[1], **CLOSE)
    images[2].save(tmp_path / "an image.png")
    mixed = [texts[0], images[2], tmp_path / "an image.png", str(tmp_path / "an image.png"), texts[1]]
    both = np.stack([want[0][0], want[1][2], want[1][2], want[1][2], want[0][1]])
    np.testing.assert_allclose(encoder.encode(mixed), both, **CLOSE)
    np.testing.assert_allclose(encoder.encode_document(mixed, truncate_dim=5), both[:, :5], **CLOSE)
    found = encoder.encode(mixed, precision="ubinary")
    np.testing.assert_array_equal(found, np.packbits(encoder.encode(mixed) > 0, axis=-1))
    found = encoder.encode(images, precision="int8")
    assert found.dtype == np.int8 and found.shape == want[1].shape
    assert encoder.encode(images[0]).shape == encoder.encode(str(tmp_path / "an image.png")).shape == want[1][0].shape
    alone = bertfuse.Encoder(tmp_path / "out", route="image")
    np.testing.assert_allclose(alone.encode(images, normalize_embeddings=True), unit(want[1]), **CLOSE)
    assert alone.get_sentence_embedding_dimension() == want[1].shape[1]
    np.testing.assert_allclose(
        bertfuse.Encoder(tmp_path / "out" / "routes" / "text").encode(texts[:2]), want[0][:2], **CLOSE
    )


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_a_checkpoint_that_nobody_optimized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = seeded()
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path / "cache"))
    source = save("clip", tmp_path / "source")
    texts, images = sentences(5, random), pictures(3, random)
    want, encoder = wanted(source, texts, images), bertfuse.Encoder(source)
    np.testing.assert_allclose(encoder.encode(texts), want[0], **CLOSE)
    np.testing.assert_allclose(encoder.encode(images), want[1], **CLOSE)


def test_a_folder_of_sentence_transformers_clip_model(tmp_path: Path) -> None:
    """clip-ViT-B-32's layout: the model in a folder of its own below."""
    random = seeded()
    source = tmp_path / "source"
    save("clip", source / "0_CLIPModel")
    module = {"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}
    (source / "modules.json").write_text(json.dumps([module]))
    said("optimize", source, "-o", tmp_path / "out", "--exporter", "torchscript")
    texts, images = sentences(5, random), pictures(3, random)
    want, encoder = wanted(source / "0_CLIPModel", texts, images), bertfuse.Encoder(tmp_path / "out")
    assert "sentence_embedding" in encoder.routes["image"].outputs
    np.testing.assert_allclose(encoder.encode(texts), want[0], **CLOSE)
    np.testing.assert_allclose(encoder.encode(images), want[1], **CLOSE)
    assert (tmp_path / "out" / "0_CLIPModel" / "model.safetensors").is_file()


def test_a_corpus_of_images(tmp_path: Path) -> None:
    random = seeded()
    source = save("clip", tmp_path / "source")
    said("optimize", source, "-o", tmp_path / "out", "--exporter", "torchscript")
    paths = [tmp_path / f"{index}.png" for index in range(5)]
    images = pictures(5, random)
    for path, image in zip(paths, images, strict=True):
        image.save(path)
    (tmp_path / "paths.txt").write_text("".join(f"{path}\n" for path in paths))
    arguments = ("--route", "image", "--model", tmp_path / "out", "--format", "npy", "-o", tmp_path / "vectors")
    said("embed", tmp_path / "paths.txt", *arguments)
    found = np.load(tmp_path / "vectors" / "part-000000.npy")
    np.testing.assert_allclose(found, wanted(source, ["w5"], images)[1], **CLOSE)


def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path) -> None:
    source = save("clip", tmp_path / "source")
    made = optimize(source, tmp_path / "out", exporter="torchscript")
    assert made.passed
    encoder = bertfuse.Encoder(tmp_path / "out")
    (tmp_path / "no.png").write_bytes(b"not an image")
    for given, said_of_it in (
        (tmp_path / "no.png", "cannot be read as an image"),
        (tmp_path / "absent.png", "no such file"),
        (np.zeros((3, 4, 5), np.uint8), "give uint8"),
        (7.0, "is a float"),
    ):
        with pytest.raises(BertfuseError, match=said_of_it):
            encoder.encode([given])
    with pytest.raises(BertfuseError, match="have no input_ids"):
        encoder.encode(Image.new("RGB", (4, 4)), output_value=None)
    with pytest.raises(BertfuseError, match="no length in tokens"):
        bertfuse.Encoder(tmp_path / "out" / "routes" / "image", max_seq_length=5)
    file = tmp_path / "out" / "routes" / "image" / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    for change, said_of_it in (
        ({"feature_extractor_type": "DonutFeatureExtractor"}, "not known here"),
        ({"crop_pct": 0.9}, "has crop_pct"),
        ({"size": {"longest_edge": 4}}, "size .* is not known"),
        ({"crop_size": SIZE + 1}, "takes images"),
    ):
        file.write_text(json.dumps(settings | change))
        with pytest.raises(BertfuseError, match=said_of_it):
            bertfuse.Encoder(tmp_path / "out").encode([Image.new("RGB", (40, 40))])
