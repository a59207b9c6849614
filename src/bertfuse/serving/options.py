"""What the command line's words mean, found out before any process is started."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import find_model
from bertfuse.model_folder.routes import ROUTES, read_router

from .served import KINDS, ModelOptions

_NEEDED = ("uvicorn", "httptools", "starlette", "orjson", "prometheus_client", "tokenizers", "onnxruntime")


def check_installed(ray: bool, grpc: bool = False) -> None:
    """Raises BertfuseError for a package that is missing; finding one does not import it."""
    for package in (*_NEEDED, *(("ray",) if ray else ()), *(("grpc", "google.protobuf") if grpc else ())):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:  # of the package that it is in
            found = None
        if found is None:
            extras = {"ray": "serve,ray", "onnxruntime": "cpu", "grpc": "serve,grpc", "google.protobuf": "serve,grpc"}
            extra = extras.get(package, "serve")
            raise BertfuseError(f"{package} is not installed: pip install 'bertfuse[{extra}]'")


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raises BertfuseError for files that a server cannot speak HTTPS with."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise BertfuseError("--tls-certificate and --tls-key go together: give both")
    for file in (certificate, key):
        if not file.is_file():
            raise BertfuseError(f"{file}: no such file; name the certificate and its key")
    import ssl

    try:  # an empty password: OpenSSL would ask for one
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        why = f"{certificate} and {key} are not a certificate and its key without a password, both in PEM: {error}"
        raise BertfuseError(why) from error


def named_models(
    words: Sequence[str], name: str | None, *, on_gpu: bool, here: bool, **options: Any
) -> list[ModelOptions]:
    """The models of "FOLDER" or "NAME=FOLDER"; a checkpoint without ONNX files is exported first, in a process that
    takes PyTorch with it when it ends. `here`: whether the folders must be on this machine.
    """
    if name is not None and len(words) > 1:
        raise BertfuseError("--name is for a single model: write NAME=FOLDER for each of several")
    if options.get("kind", "auto") not in ("auto", *KINDS):
        raise BertfuseError(f"--task {options['kind']}: choose from auto, {', '.join(KINDS)}")
    made = []
    for word in words:
        given, equals, folder = word.partition("=")
        if not equals or Path(word).exists():
            given, folder = "", word
        called = given or name
        if called is not None and not re.fullmatch(r"[\w./:-]{1,256}", called or "x"):
            raise BertfuseError(f"{called!r} is no name of a model: letters, digits and . _ - / : make one")
        asked = ModelOptions(folder, called or Path(folder).resolve().name, **options)
        if not here:
            made.append(asked)
            continue
        made += [replace(part, folder=str(_prepared(Path(part.folder), on_gpu))) for part in apart(asked, on_gpu)]
    return made


def apart(options: ModelOptions, on_gpu: bool) -> list[ModelOptions]:
    """A folder with a tower of texts and one of images as two models of one name; any other as it is."""
    folder = Path(options.folder)
    router = read_router(folder) if folder.is_dir() else None
    if router is None or not router.towers:
        return [options]
    return [replace(options, folder=str(_tower(folder, name, on_gpu))) for name in router.routes]


def _tower(folder: Path, name: str, on_gpu: bool) -> Path:
    made = folder / ROUTES / name
    return made if made.is_dir() else _elsewhere("route_folder", folder, name, on_gpu)


def _prepared(folder: Path, on_gpu: bool) -> Path:
    if not (folder.is_dir() and (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))):
        find_model(folder)
        return folder
    try:
        find_model(folder)
    except BertfuseError:
        return _elsewhere("model_for", folder, on_gpu)
    return folder


def _elsewhere(function: str, *arguments: Any) -> Path:
    """What a function of inference/prepare.py gives, in a process that takes PyTorch with it when it ends."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_prepare, function, *arguments).result()


def _prepare(function: str, *arguments: Any) -> Path:
    from bertfuse.inference import prepare

    return getattr(prepare, function)(*arguments)


def devices_of(provider: str, replicas: int | None) -> tuple[str, ...]:
    """The device of each engine: all GPUs, or the first of them where fewer engines are asked for."""
    if provider not in ("cpu", "cuda"):
        raise BertfuseError(f"provider {provider!r} is unknown: choose one of cpu, cuda")
    if provider == "cpu":
        return ("cpu",) * (replicas or 1)
    count = _gpu_count()
    if not count:
        raise BertfuseError("--provider cuda: the driver gives this process no GPU")
    return tuple(f"cuda:{index % count}" for index in range(replicas or count))


def _gpu_count() -> int:
    # As inference.devices.gpu_count, which would import onnxruntime here.
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if found else 0


def warm_sizes(text: str | None, provider: str) -> tuple[int, ...]:
    """Tokens of the batches that are run first."""
    if text is None:
        return (16, 512, 16384) if provider == "cuda" else (16,)
    if not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", text):
        raise BertfuseError(f"--warm {text}: write numbers of tokens with commas between, as in 16,512")
    return tuple(map(int, text.split(",")))
