"""Images behind the routes: Encoder's vectors of CLIP and SigLIP, limits, and what a client may send as an image."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import bertfuse
from bertfuse.optimization import optimize
from bertfuse.serving import answers, pictures
from bertfuse.serving.checks import Limits
from tests import made_once
from tests.corpora import model_folder
from tests.serving.in_process import Here, here
from tests.vision_models import pictures as some_pictures
from tests.vision_models import save, sentences

LIMITS = Limits(max_texts=100, max_pixels=200_000)
KINDS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")


@pytest.fixture(scope="module")
def folders() -> Callable[[str], Path]:
    def folder(name: str) -> Path:
        def make(target: Path) -> None:
            source = save(name, target.with_name(f"{target.name}-source"), seed=5)
            assert optimize(source, target, exporter="torchscript").passed

        return made_once(f"towers/{name}", make)

    return folder


@pytest.fixture(scope="module", params=["clip", "siglip"])
def server(request: Any, folders: Callable[[str], Path]) -> Iterator[tuple[Here, Any]]:
    folder = folders(request.param)
    with here(folder, model_folder("encoder"), limits=LIMITS) as made:
        yield made, bertfuse.Encoder(folder, device="cpu")


@pytest.fixture(scope="module")
def alone(folders: Callable[[str], Path]) -> Iterator[Here]:
    with here(folders("clip"), limits=LIMITS) as made:
        yield made


def file_of(image: Any, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def uri_of(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def embedded(ask: Here, given: Any, **more: Any) -> tuple[int, Any]:
    status, found = ask("/v1/embeddings", {"input": given, "modality": "image", "encoding_format": "base64"} | more)
    if status != 200:
        return status, found["error"]["message"]
    return status, np.stack([np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in found["data"]])


def test_vectors(server: tuple[Here, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ask, encoder = server
    numbers = np.random.default_rng(7)
    images = some_pictures(21, numbers)
    want = encoder.encode(images)
    given = [uri_of(file_of(image)) for image in images]
    for most in (64, 4):
        monkeypatch.setattr(answers, "PICTURES", most)
        status, found = embedded(ask, given)
        assert status == 200, found
        np.testing.assert_allclose(found, want, atol=1e-5)
        if most == 64:
            np.testing.assert_array_equal(found, want)
    np.testing.assert_allclose(embedded(ask, given[0])[1], want[:1], atol=1e-5)
    np.testing.assert_allclose(embedded(ask, given, dimensions=5)[1], want[:, :5], atol=1e-5)
    for kind in KINDS:
        data = file_of(images[0].convert("RGB"), kind)
        (tmp_path / "image").write_bytes(data)
        status, found = embedded(ask, uri_of(data, kind.lower()))
        assert status == 200, found
        np.testing.assert_allclose(found[0], encoder.encode(tmp_path / "image"), atol=1e-5)
    texts = [text or "w5" for text in sentences(9, numbers, 12)]
    for modality in ({}, {"modality": "text"}):
        status, found = ask("/v1/embeddings", {"input": texts, **modality})
        assert status == 200, found
        np.testing.assert_allclose([row["embedding"] for row in found["data"]], encoder.encode(texts), atol=1e-5)
    found = ask("/v1/embeddings", {"input": given[:2], "modality": "image"})[1]
    assert found["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


def test_what_it_is(server: tuple[Here, Any]) -> None:
    ask, _ = server
    name = ask.front.models[0].served.name
    models = {row["id"]: row["capabilities"] for row in ask("/v1/models")[1]["data"]}
    assert models == {name: ["embed", "image_embed"], "encoder": ["embed"]}
    info = ask("/info")[1]["models"]
    assert [(one["model_id"], one["modality"]) for one in info] == [
        (name, "text"),
        (name, "image"),
        ("encoder", "text"),
    ]
    status, message = embedded(ask, uri_of(file_of(Image.new("RGB", (3, 3)))), model="encoder")
    assert status == 404 and message == 'encoder takes no images: leave "modality" out.'


def test_an_image_tower_alone(folders: Callable[[str], Path]) -> None:
    folder = folders("clip") / "routes" / "image"
    with here(folder) as ask:
        status, found = ask("/v1/embeddings", {"input": "a text"})
        assert status == 404 and "image takes images alone: send them as data URIs" in found["error"]["message"]
        for path, body in (("/tokenize", {"inputs": "a"}), ("/embed", {"inputs": "a"})):
            assert ask(path, body)[0] == 404
        image = Image.new("RGB", (9, 5), "red")
        want = bertfuse.Encoder(folder, device="cpu").encode([image])
        np.testing.assert_allclose(embedded(ask, uri_of(file_of(image)))[1], want, atol=1e-5)


def broken() -> Iterator[tuple[Any, int, str]]:
    """What is sent, the status and a part of the sentence."""
    wanted = "send the image itself, as data:image/png;base64,…"
    for url in ("http://169.254.169.254/latest", "https://example.org/a.png", "file:///etc/passwd", "HTTP://a/b"):
        yield url, 400, f"input[0] is a URL, and this server fetches none: {wanted}."
    yield "/etc/passwd", 400, f"input[0] is no data URI with an image in base64: {wanted}."
    yield "data:image/png,abc", 400, "is no data URI with an image in base64"
    yield "data:text/html;base64,YQ==", 400, "is no data URI with an image in base64"
    yield "data:image/png;base64,", 400, "input[0] holds nothing"
    yield "data:image/png;base64,é", 400, "is not base64"
    yield "data:image/png;base64,YQ=", 400, "is not base64"
    yield "data:image/png;base64,YQ==", 400, "cannot be read as an image: JPEG, PNG, GIF, BMP, TIFF, WEBP are known."
    yield 7, 400, "input is a number: give a data URI, or a list of them"
    yield [], 400, "input is empty: give at least one image"
    yield [7], 400, "input[0] is a number, not a string"
    yield ["data:image/png;base64,YQ=="] * 101, 413, "input has 101 images: 100 are taken at most"
    good = uri_of(file_of(Image.new("RGB", (4, 4))))
    yield [good, good, "http://a"], 400, "input[2] is a URL"
    # Few bytes, many pixels: one image, many together, and a line that would become one when its short edge is resized.
    bomb = uri_of(file_of(Image.new("1", (20_000, 20_000))))
    assert len(bomb) < 200_000
    yield bomb, 413, "with it the request's images have more than 200000 pixels: send smaller ones, or fewer."
    yield [uri_of(file_of(Image.new("1", (300, 300))))] * 3, 413, "input[2]: with it the request's images have more"
    yield uri_of(file_of(Image.new("1", (150_000, 1)))), 400, "is 150000 x 1: too long for its shorter edge"
    header = file_of(Image.new("RGB", (9, 9)))
    yield uri_of(header[:16] + b"\x7f\xff\xff\xff\x7f\xff\xff\xff" + header[24:]), 400, "cannot be read as an image"
    yield uri_of(header[:40]), 400, "cannot be read as an image"
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    yield uri_of(eps), 400, "are known"


def test_what_is_no_image_is_refused_in_one_sentence(alone: Here) -> None:
    good = uri_of(file_of(Image.new("RGB", (4, 4))))
    want = embedded(alone, good)[1]
    process = alone.front.pictures._process
    for given, status, sentence in broken():
        found = embedded(alone, given)
        assert found[0] == status and sentence in found[1] and found[1].endswith("."), (str(given)[:60], found)
        assert "\n" not in found[1] and len(found[1]) < 300
    for body, sentence in (
        ({"input": good, "modality": "audio"}, 'modality is "audio": choose text or image.'),
        ({"input": good, "modality": []}, "modality is []"),
        ({"input": good, "modality": "image", "dimensions": 25}, "dimensions is 25"),
        ({"input": good, "modality": "image", "encoding_format": "hex"}, 'encoding_format is "hex": choose'),
    ):
        status, found = alone("/v1/embeddings", body)
        assert status == 400 and found["error"]["message"].startswith(sentence), found
    assert alone.front.pictures._process is process, "nothing of it ended the process"
    np.testing.assert_array_equal(embedded(alone, good)[1], want)


def test_files_with_wrong_bytes(alone: Here) -> None:
    """Each is read, or refused; the process that reads goes on."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    source = random.Random(seed)
    files = [
        file_of(image.convert("RGB"), kind) for kind in KINDS for image in some_pictures(2, np.random.default_rng(seed))
    ]
    for _ in range(120):
        data = bytearray(source.choice(files))
        for _ in range(source.choice((1, 3, 20))):
            data[source.randrange(len(data))] = source.randrange(256)
        status, found = embedded(
            alone, uri_of(bytes(data[: source.choice((len(data), source.randrange(1, len(data) + 1)))]))
        )
        assert status in (200, 400, 413), found
        assert status == 200 or (found.endswith(".") and "crash" not in found and "\n" not in found), found


def test_a_process_that_ends_or_hangs(alone: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    good = uri_of(file_of(Image.new("RGB", (4, 4))))
    want = embedded(alone, good)[1]
    reader = alone.front.pictures
    assert reader is not None and reader._process is not None
    os.kill(reader._process.pid, signal.SIGKILL)
    np.testing.assert_array_equal(embedded(alone, good)[1], want)
    os.kill(reader._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(pictures, "SECONDS", 0.3)
    status, message = embedded(alone, good)
    assert (status, message) == (400, "input[0] takes longer than 0.3 seconds to read.")
    monkeypatch.undo()
    np.testing.assert_array_equal(embedded(alone, good)[1], want)
    started = reader.start

    async def ending() -> None:
        await started()
        os.kill(reader._process.pid, signal.SIGKILL)

    monkeypatch.setattr(reader, "start", ending)
    os.kill(reader._process.pid, signal.SIGKILL)
    status, message = embedded(alone, good)
    assert (status, message) == (400, "input[0] cannot be read as an image: whatever reads it crashes.")
    monkeypatch.undo()
    np.testing.assert_array_equal(embedded(alone, good)[1], want)


def test_in_company_and_gone(server: tuple[Here, Any]) -> None:
    """Requests of several at once have their own vectors, also where others give up."""
    ask, encoder = server
    numbers = np.random.default_rng(3)
    images = some_pictures(12, numbers)
    want, uris = encoder.encode(images), [uri_of(file_of(image)) for image in images]

    async def one(rows: list[int], leaves: bool) -> Any:
        asking = ask.ask("/v1/embeddings", {"input": [uris[row] for row in rows], "modality": "image"})
        if not leaves:
            return rows, await asking
        task = asyncio.ensure_future(asking)
        await asyncio.sleep(numbers.uniform(0, 0.05))
        task.cancel()

    async def several() -> list[Any]:
        asked = [numbers.integers(0, 12, numbers.integers(1, 9)).tolist() for _ in range(20)]
        return await asyncio.gather(*(one(rows, at % 3 == 0) for at, rows in enumerate(asked)), return_exceptions=True)

    found = [result for result in ask.loop.run_until_complete(several()) if result is not None]
    assert len(found) == 13
    for rows, (status, body) in found:
        assert status == 200
        np.testing.assert_allclose([row["embedding"] for row in body["data"]], want[rows], atol=1e-5)
