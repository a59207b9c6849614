"""`bertfuse triton`: a real tritonserver on what it writes, and its configurations by Triton's own definition."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

import bertfuse
from tests.checkpoints import texts
from tests.commands import said
from tests.engine_stand_in import plan_of
from tests.servers import eventually, free_port

HERE = Path(__file__).parent
ENVIRONMENT = Path(sys.prefix) / "triton"
CLIENTS = 32
Folders = Callable[[str], Path]


@dataclass
class Server:
    grpc: str
    metrics: str
    process: subprocess.Popen[bytes]
    log: Path

    def metric(self, name: str, model: str) -> float:
        with urllib.request.urlopen(self.metrics) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f'{name}{{model="{model}"'))


@contextlib.contextmanager
def tritonserver(repository: Path, folder: Path) -> Iterator[Server]:
    (packages,) = ENVIRONMENT.glob("lib/python3.*/site-packages")
    home = packages / "pytriton" / "tritonserver"
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True)
    for file in home.glob("backends/python/*.*"):
        (backend / file.name).symlink_to(file)
    stub = home / "python_backend_stubs" / f"3.{sys.version_info.minor}" / "triton_python_backend_stub"
    shutil.copy(stub, backend)
    http, grpc, metrics = random.sample(sorted({free_port() for _ in range(9)}), 3)
    log = folder / "tritonserver.log"
    options = {
        "model-repository": repository,
        "backend-directory": backend.parent,
        "http-address": "127.0.0.1",
        "grpc-address": "127.0.0.1",
        "metrics-address": "127.0.0.1",
        "http-port": http,
        "grpc-port": grpc,
        "metrics-port": metrics,
        "allow-gpu-metrics": "false",
    }
    command = [home / "bin" / "tritonserver", *(f"--{name}={value}" for name, value in options.items())]
    environment = os.environ | {
        "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"),
    }
    with log.open("wb") as written:
        process = subprocess.Popen(command, env=environment, stdout=written, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 300
        while True:
            # The metrics port opens after the others, so that a server that is ready may still refuse it.
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                for url in (f"http://127.0.0.1:{http}/v2/health/ready", f"http://127.0.0.1:{metrics}/metrics"):
                    urllib.request.urlopen(url).close()
                break
            assert process.poll() is None and time.monotonic() < end, log.read_text(errors="replace")
            time.sleep(0.2)
        yield Server(f"127.0.0.1:{grpc}", f"http://127.0.0.1:{metrics}/metrics", process, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, log.read_text(errors="replace")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ask(client: triton.InferenceServerClient, model: str, output: str, **inputs: list[Any]) -> np.ndarray:
    given = []
    for name, values in inputs.items():
        encoded = [[value if isinstance(value, bytes) else value.encode()] for value in values]
        given.append(triton.InferInput(name, [len(values), 1], "BYTES"))
        given[-1].set_data_from_numpy(np.array(encoded, dtype=object))
    found = client.infer(model, given, client_timeout=60).as_numpy(output)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def ragged(sources: Folders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exported in the environment below this one: the masks of transformers 4 cannot be had without padding."""
    folder = tmp_path_factory.mktemp("ragged") / "ragged"
    python = next(parent for parent in Path(torch.__file__).parents if (parent / "pyvenv.cfg").exists()) / "bin/python"
    arguments = ("-m", "bertfuse.cli", "optimize", sources("encoder"), "-o", folder, "--padding", "ragged")
    command = [python, *arguments, "--exporter", "torchscript"]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(scope="module")
def server(folders: Folders, ragged: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not ENVIRONMENT.is_dir():
        log = ENVIRONMENT.with_name("triton.log")
        pytest.skip(f"nvidia-pytriton does not install here: {log.read_text().strip() if log.exists() else 'no log'}")
    base = tmp_path_factory.mktemp("triton")
    repository = base / "repository"
    for name in ("minilm", "reranker", "classifier"):
        made = said("triton", folders(name), "-o", repository, "--backend", "python", "--provider", "cpu")
        assert made["models"] == [name]
    for name, folder in (("encoder", folders("encoder")), ("ragged", ragged)):
        assert said("triton", folder, "-o", repository, "--provider", "cpu")["models"] == [name, f"{name}_onnx"]
        written = repository / f"{name}_onnx" / "config.pbtxt"
        written.write_text(written.read_text().replace('"onnxruntime"', '"python"'))
        shutil.copy(HERE / "ort_stand_in.py", repository / f"{name}_onnx" / "1" / "model.py")
    with tritonserver(repository, base) as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.grpc) as made:
        yield made


def test_vectors_for_many_clients(folders: Folders, server: Server) -> None:
    """32 clients at once get what Encoder gives, batches are put together, and the metrics count all of it."""
    model = "minilm"
    seed = random.randrange(1 << 30)
    source = random.Random(seed)
    given = [[" ".join(source.choices(["a", "river", "of", "many", "blue", "stones"], k=source.randint(1, 12)))
              for _ in range(source.randint(1, 3))] for _ in range(3 * CLIENTS)]  # fmt: skip
    before = {name: server.metric(f"nv_inference_{name}", model) for name in ("request_success", "count", "exec_count")}

    def client_of(number: int) -> list[np.ndarray]:
        with triton.InferenceServerClient(server.grpc) as client:
            return [ask(client, model, "embedding", text=rows) for rows in given[number::CLIENTS]]

    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(client_of, range(CLIENTS)))
    encoder = bertfuse.Encoder(folders(model))
    for number, answers in enumerate(found):
        for rows, vectors in zip(given[number::CLIENTS], answers, strict=True):
            np.testing.assert_allclose(vectors, encoder.encode(rows), atol=1e-5, err_msg=f"seed {seed}")

    def counted(name: str) -> float:
        return server.metric(f"nv_inference_{name}", model) - before[name]

    # Triton counts behind its answers.
    assert eventually(lambda: counted("request_success") == len(given) and counted("count") == sum(map(len, given)))
    assert 0 < counted("exec_count") < len(given)


def test_the_documents_client(folders: Folders, server: Server) -> None:
    document = (HERE.parents[1] / "docs" / "deployment.md").read_text(encoding="utf-8")
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "tritonclient" in text)
    names: dict[str, Any] = {}
    exec(block.replace("127.0.0.1:8001", server.grpc), names)
    sentences = ["A man is eating a piece of bread.", "Someone is having a meal."]
    np.testing.assert_allclose(names["vectors"], bertfuse.Encoder(folders("minilm")).encode(sentences), atol=1e-5)


@pytest.mark.parametrize("model", ["encoder", "ragged"])
def test_a_model_that_calls_the_onnx_model(
    model: str, folders: Folders, client: triton.InferenceServerClient, server: Server
) -> None:
    given = [*texts(70, seed=random.randrange(1 << 30)), ""]
    want = bertfuse.Encoder(folders("encoder")).encode(given)
    found = np.concatenate([ask(client, model, "embedding", text=rows) for rows in (given[:64], given[64:], given[:1])])
    np.testing.assert_allclose(found, np.concatenate([want, want[:1]]), atol=1e-5)
    assert eventually(lambda: server.metric("nv_inference_count", f"{model}_onnx") == 72)
    if model == "ragged":  # a request for each text, put together by Triton
        assert eventually(lambda: server.metric("nv_inference_request_success", f"{model}_onnx") == 72)
        assert server.metric("nv_inference_exec_count", f"{model}_onnx") < 72


def test_scores(folders: Folders, client: triton.InferenceServerClient) -> None:
    given = texts(9, seed=random.randrange(1 << 30))
    scores = ask(client, "reranker", "score", query=["see a house"] * 9, text=given)
    want = bertfuse.Reranker(folders("reranker")).predict([("see a house", text) for text in given])
    np.testing.assert_allclose(scores[:, 0], want, atol=1e-5)
    named = [
        {entry["label"]: entry["score"] for entry in row}
        for row in bertfuse.Classifier(folders("classifier"))(given, top_k=None)
    ]
    found = ask(client, "classifier", "scores", text=given)
    np.testing.assert_allclose(found, [[row["bad"], row["so so"], row["good"]] for row in named], atol=1e-5)
    value = triton.InferInput("text", [1, 1], "BYTES")
    value.set_data_from_numpy(np.array([[given[0].encode()]], dtype=object))
    best = client.infer("classifier", [value], outputs=[triton.InferRequestedOutput("scores", class_count=1)])
    assert best.as_numpy("scores")[0][0].decode().split(":")[-1] == max(named[0], key=named[0].__getitem__)


def test_a_bad_text_is_an_error_of_its_own(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="text is not UTF-8: invalid start byte at byte 1"):
        ask(client, "minilm", "embedding", text=[b"a\xff"])
    assert ask(client, "minilm", "embedding", text=["a"]).shape == (1, 384)


def test_configurations_are_what_triton_defines(folders: Folders, ragged: Path, tmp_path: Path) -> None:
    made = [
        said("triton", folders("encoder"), "-o", tmp_path, "--name", "padded"),
        said("triton", ragged, "-o", tmp_path, "--libraries", "/somewhere/"),
        said("triton", folders("classifier"), "-o", tmp_path, "--backend", "python", "--instances", 2),
        said("triton", folders("reranker"), "-o", tmp_path, "--max-batch-size", 7, "--queue-delay", 90),
        said("triton", folders("encoder"), "-o", tmp_path, "--name", "engine", "--backend", "tensorrt",
             "--plan", plan_of(tmp_path.with_suffix(".plan"))),
    ]  # fmt: skip
    read = {}
    for name in (name for models in made for name in models["models"]):
        read[name] = text_format.Parse((tmp_path / name / "config.pbtxt").read_text(), ModelConfig())
        assert read[name].name == name and read[name].HasField("dynamic_batching")
        assert (tmp_path / name / "1").is_dir()
    operations = [
        read[name].model_operations.op_library_filename for name in ("padded_onnx", "ragged_onnx", "engine_plan")
    ]
    assert [list(files) for files in operations] == [
        ["/opt/bertfuse/libbertfuse_ort.so"], ["/somewhere/libbertfuse_ort.so"], []]  # fmt: skip
    assert {value.name for value in read["ragged_onnx"].input if value.allow_ragged_batch} == {
        "input_ids",
        "token_type_ids",
    }
    assert [list(value.target_name) for value in read["ragged_onnx"].batch_input] == [["cu_seqlens"], ["max_seqlen"]]
    assert read["engine_plan"].max_batch_size == 24 and read["engine_plan"].output[0].data_type == 10  # TYPE_FP16
    pipeline = json.loads((tmp_path / "engine" / "1" / "pipeline.json").read_text())
    assert (pipeline["runs"]["shortest"], pipeline["max_seq_length"]) == (16, 40)
    assert read["reranker"].max_batch_size == 7 and read["classifier"].instance_group[0].count == 2
    assert read["classifier"].output[0].label_filename == "labels.txt"
    assert (tmp_path / "classifier" / "labels.txt").read_text() == "bad\nso so\ngood\n"
