"""A real tritonserver, and bertfuse from a wheel: its vectors are Encoder's, for 16 clients too; it stops when told."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import bertfuse

TEXTS = ["A sentence.", "Another one, a little longer than the first.", "", "Käse, 東京 und 🧀"]
CLIENTS = 16


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in listening]


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def start(repository: Path, http: int, grpc: int, metrics: int) -> subprocess.Popen[bytes]:
    packages = Path(sysconfig.get_path("purelib"))
    home, backend = packages / "pytriton" / "tritonserver", Path("backends/python")
    shutil.copytree(home / "backends" / "python", backend)
    shutil.copy(home / f"python_backend_stubs/3.{sys.version_info.minor}/triton_python_backend_stub", backend)
    options = {"model-repository": repository, "backend-directory": backend.parent.resolve()}
    options |= {"http-port": http, "grpc-port": grpc, "metrics-port": metrics, "http-address": "127.0.0.1"}
    command = [home / "bin" / "tritonserver", *(f"--{name}={value}" for name, value in options.items())]
    environment = os.environ | {"LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs")}
    with Path("tritonserver.log").open("wb") as log:
        return subprocess.Popen(list(map(str, command)), env=environment, stdout=log, stderr=log)


def main() -> None:
    assert importlib.util.find_spec("torch") is None, "this environment has torch: it shows nothing"
    assert Path(bertfuse.__file__).is_relative_to(sys.prefix), bertfuse.__file__
    folder, repository = Path(sys.argv[1]), Path("repository").resolve()
    made = ["triton", folder, "-o", repository, "--name", "encoder", "--backend", "python", "--provider", "cpu"]
    subprocess.run(["bertfuse", *map(str, made)], check=True)
    http, grpc, metrics = free_ports(3)
    server, log = start(repository, http, grpc, metrics), Path("tritonserver.log")
    try:
        end = time.monotonic() + 300
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready").close()
                break
            assert server.poll() is None and time.monotonic() < end, log.read_text(errors="replace")
            time.sleep(0.2)
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/models/encoder") as answer:
            about = json.load(answer)
        (name,), output = [one["name"] for one in about["inputs"]], about["outputs"][0]["name"]

        def vectors(texts: list[str]) -> np.ndarray:
            given = {"name": name, "datatype": "BYTES", "shape": [len(texts), 1], "data": [[text] for text in texts]}
            body = {"inputs": [given], "outputs": [{"name": output, "parameters": {"binary_data": False}}]}
            (found,) = post(f"http://127.0.0.1:{http}/v2/models/encoder/infer", body)["outputs"]
            return np.array(found["data"], np.float32).reshape(found["shape"])

        want = bertfuse.Encoder(folder, device="cpu").encode(TEXTS)
        np.testing.assert_allclose(vectors(TEXTS), want, atol=1e-6)
        with ThreadPoolExecutor(CLIENTS) as pool:  # which Triton puts into batches of their own making
            asked = [TEXTS[number % len(TEXTS)] for number in range(8 * CLIENTS)]
            answers = list(pool.map(lambda text: vectors([text])[0], asked))
        worst = max(np.abs(a - want[TEXTS.index(text)]).max() for a, text in zip(answers, asked, strict=True))
        assert worst < 1e-5, worst
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0, log.read_text(errors="replace")
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    print(f"Triton serves bertfuse {bertfuse.__version__}: {len(asked)} requests, largest difference {worst:.1e}")


if __name__ == "__main__":
    main()
