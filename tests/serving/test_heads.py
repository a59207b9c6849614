"""Models over one backbone: one session computes them, in one run where requests for several wait."""

from __future__ import annotations

import base64
import http.client
import json
import random
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import bertfuse
from bertfuse.export import export_model
from bertfuse.serving.engine import Engine
from bertfuse.serving.heads import Shared, share
from bertfuse.serving.scheduler import Batch, Job
from bertfuse.serving.served import ModelOptions
from bertfuse.serving.work import Answer, Work
from tests import made_once
from tests.checkpoints import save, texts
from tests.corpora import model_folder
from tests.servers import served
from tests.tiny_models import sentence_files

NAMES = ("encoder", "classifier", "reranker")


@cache
def over_one_backbone(name: str) -> Path:
    """The tiny checkpoint `name` with the backbone of "encoder", exported."""

    def make(folder: Path) -> None:
        bases = {other: folder.with_name(f"{folder.name}-{other}") for other in {name, "encoder"}}
        for other, base in bases.items():
            shutil.rmtree(base, ignore_errors=True)
            save(other, base)
        if name == "encoder":
            sentence_files(bases[name], "Normalize")
        else:
            file = bases[name] / "model.safetensors"
            weights, backbone = (safetensors.numpy.load_file(bases[n] / "model.safetensors") for n in (name, "encoder"))
            taken = {f"bert.{key}": array for key, array in backbone.items()}
            assert taken.keys() <= weights.keys()
            safetensors.numpy.save_file(weights | taken, file, {"format": "pt"})
        export_model(bases[name], folder, exporter="torchscript")

    return made_once(f"one-backbone/{name}", make)


def options(*folders: Path) -> list[ModelOptions]:
    return [ModelOptions(str(folder)) for folder in folders]


def engine(models: list[ModelOptions], shared: list[Shared]) -> Engine:
    return Engine(models, threads=2, shared=shared)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[ModelOptions], list[Shared]]:
    models = options(*map(over_one_backbone, NAMES), model_folder("classifier"))
    return models, share(models, False, tmp_path_factory.mktemp("shared"))


def test_who_shares(shared: tuple[list[ModelOptions], list[Shared]], tmp_path: Path) -> None:
    """Models of equal backbones, and not the one whose backbone has other weights."""
    models, (one,) = shared
    assert one.models == [0, 1, 2]
    assert len({one.outputs[1]["logits"], one.outputs[2]["logits"], one.outputs[0]["sentence_embedding"]}) == 3
    sizes = [next(Path(model.folder).rglob("model.onnx")).stat().st_size for model in models[:3]]
    assert Path(one.path).stat().st_size < 1.5 * max(sizes)
    assert share(models[3:] + models[:1], False, tmp_path) == [] == share(models[:1], False, tmp_path)
    missing = ModelOptions(str(tmp_path / "nowhere"))
    assert share([missing, missing, *models[:1]], False, tmp_path) == []


def ask(of: Engine, work: Work) -> np.ndarray:
    done, found = threading.Event(), []

    def finished(_: Job, answer: Answer | Exception) -> None:
        found.append(answer)
        done.set()

    assert of.submit(work, finished) is not None and done.wait(60)
    assert isinstance(found[0], Answer), found
    return found[0].rows


def random_work(source: random.Random, model: int, what: str) -> Work:
    lengths = np.array([source.randint(2, 30) for _ in range(source.randint(1, 9))], np.int32)
    ids = np.array([source.randint(5, 20) for _ in range(lengths.sum())], np.int32)
    types = np.array([source.randint(0, 1) for _ in range(lengths.sum())], np.uint8) if model else None
    return Work(model, what, lengths, ids, types)


def test_answers(shared: tuple[list[ModelOptions], list[Shared]]) -> None:
    """Of a request alone those of the model alone, to the bit; in one run with requests for others, near them."""
    models, groups = shared
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    source = random.Random(seed)
    together, apart = engine(models, groups), engine(models, [])
    kinds = [(0, "vectors"), (1, "logits"), (2, "logits"), (3, "logits"), (0, "tokens")]
    works = [random_work(source, *source.choice(kinds)) for _ in range(60)] + [random_work(source, *k) for k in kinds]
    want = [ask(apart, work) for work in works]
    for work, rows in zip(works, want, strict=True):
        np.testing.assert_array_equal(ask(together, work), rows)
    run_of = together._scheduler._run_of  # all that may be computed together, in one run
    found: dict[int, Any] = {}
    for first in {run_of(work.kind): work for work in works}.values():
        alike = [at for at, work in enumerate(works) if run_of(work.kind) == run_of(first.kind)]
        jobs = [Job(works[at], lambda job, answer: found.update({id(job): answer})) for at in alike]
        source.shuffle(order := list(range(len(jobs))))
        jobs, alike = [jobs[at] for at in order], [alike[at] for at in order]
        together._run(Batch(jobs, [job.rows for job in jobs], 0), 0)
        for job, at in zip(jobs, alike, strict=True):
            np.testing.assert_allclose(found[id(job)].rows, want[at], atol=1e-5)
            assert found[id(job)].timing.batch_requests == len(jobs)
    runs = [run_of(random_work(source, *kind).kind) for kind in kinds]
    assert runs[0] == runs[1] == runs[2] and len(set(runs)) == 3
    for one in (together, apart):
        one.close()


@pytest.mark.slow
def test_a_server() -> None:
    folders = {name: over_one_backbone(name) for name in NAMES}
    given = texts(40, seed=11)
    vectors = bertfuse.Encoder(folders["encoder"], device="cpu").encode(given)
    pairs = [("who eats", text) for text in given]
    scores = bertfuse.Reranker(folders["reranker"], device="cpu").predict(pairs)
    best = bertfuse.Classifier(folders["classifier"], device="cpu")(given)
    with served(*folders.values(), "--auto-truncate") as server:

        def post(path: str, body: dict[str, Any]) -> Any:
            connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            found = json.loads(answer.read())
            assert answer.status == 200, found
            return found

        def encoded(_: int) -> None:
            found = post("/v1/embeddings", {"model": "encoder", "input": given, "encoding_format": "base64"})["data"]
            rows = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in found]
            np.testing.assert_allclose(rows, vectors, atol=1e-5)

        def ranked(_: int) -> None:
            found = post("/rerank", {"model": "reranker", "query": "who eats", "texts": given})
            np.testing.assert_allclose(
                [row["score"] for row in sorted(found, key=lambda row: row["index"])], scores, atol=1e-5
            )

        def classified(_: int) -> None:
            found = post("/classify", {"model": "classifier", "inputs": [[text] for text in given]})
            np.testing.assert_allclose([rows[0]["score"] for rows in found], [row["score"] for row in best], atol=1e-5)

        kinds: list[Callable[[int], None]] = [encoded, ranked, classified]
        with ThreadPoolExecutor(9) as pool:
            for done in [pool.submit(kinds[at % 3], at) for at in range(45)]:
                done.result()
        assert "encoder and classifier and reranker have one backbone" in "".join(server.said)
