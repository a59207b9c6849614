"""Where a model comes from: a local folder or the hub; and which of its files are not weights."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from bertfuse.errors import ExportError
from bertfuse.model_folder.routes import ROUTES, read_router
from bertfuse.model_folder.sentence_modules import (
    SPARSE_STATIC,
    STATIC,
    TABLES,
    first_module,
    module_list,
    read_modules,
)
from bertfuse.model_folder.sparse import read_sparse

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
# Files of other frameworks and formats, and of quantised variants, are not fetched.
_NOT_FETCHED = ["*.h5", "*.msgpack", "*.ot", "*.onnx", "*.onnx_data", "*.tflite", "*.gguf", "*.mlmodel", "*.npz"]
_NOT_FETCHED += ["onnx/*", "openvino/*", "coreml/*", "*.pth", "*.ckpt"]
_NOT_FETCHED += ["*[!r].pt", "optimizer.pt", "scheduler.pt"]  # but bge-m3's sparse_linear.pt and colbert_linear.pt
_WEIGHT_SUFFIXES = [".safetensors", ".bin", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".gguf"]
_WEIGHT_SUFFIXES += [".mlmodel", ".npz", ".pt", ".pth", ".ckpt", ".data", ".original", ".plan"]
_NOT_COPIED = re.compile(r"^(\..*|__pycache__|onnx|openvino|coreml|checkpoint-\d+)$")
_OUR_REPORTS = {"bench.json", "bench.png", "report.html"}  # of the model that is read, not of what is made of it
REACH_SECONDS = 3.0


def check_source(source: str, allow_pickle: bool) -> None:
    """Says what is wrong with a folder (or a hub id that cannot be one) before anything heavy is imported."""
    path = Path(source).expanduser()
    if not path.exists():
        if _HUB_ID.match(source) is None:
            raise ExportError(f"{source}: no such folder; give a folder with config.json or a hub id such as org/name")
        return
    if not path.is_dir():
        raise ExportError(f"{source}: is a file; give the folder that holds config.json and model.safetensors")
    if read_router(path, source) is not None:
        return  # each of its routes is checked as a folder of its own
    if first_module(path).kind == STATIC:
        read_modules(path, source)
        return
    if first_module(path).kind == SPARSE_STATIC:
        read_sparse(path, source)
        return
    if not (path / "config.json").is_file():
        raise ExportError(f"{source}: has no config.json, so it is not a Hugging Face model folder")
    pickles = sorted(path.glob("*.bin"))
    if not any(path.glob("*.safetensors")):
        if not pickles:
            raise ExportError(f"{source}: has no model.safetensors; save the model with save_pretrained first")
        if not allow_pickle:
            raise ExportError(
                f"{source}: only a pickle checkpoint ({pickles[0].name}), which can run code when it is read;"
                " convert it to safetensors, or pass --allow-pickle (allow_pickle=True) if you trust its source"
            )


def local_folder(source: str, allow_pickle: bool, say: Callable[[str], None]) -> Path:
    """The folder of the model: `source` itself, or what the hub has under that id, fetched or from its cache.

    Raises ExportError, within seconds where the hub is not reached.
    """
    path = Path(source).expanduser()
    if path.exists():
        return path
    # No heavy import: only the hub's client.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import constants, snapshot_download

    def fetch(offline: bool, pickles: bool = False) -> Path:
        ignored = [*_NOT_FETCHED, *([] if pickles else ["*.bin"])]
        return Path(snapshot_download(source, ignore_patterns=ignored, local_files_only=offline))

    offline = constants.HF_HUB_OFFLINE
    if not offline:
        say(f"Fetching {source}")
        offline = not _reached(constants.ENDPOINT)
    try:
        folder = fetch(offline)
        if allow_pickle and not any(folder.glob("*.safetensors")):
            folder = fetch(offline, pickles=True)
    except Exception as error:  # the client's own, its transport's, OSError
        if offline:
            why = "no such folder, and the hub is not reached; check name and network, or give a local folder"
            raise ExportError(f"{source}: {why}") from error
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(f"{source}: cannot be fetched: {lines[0]}; check the name, or give a local folder") from error
    try:
        check_source(str(folder), allow_pickle)
    except ExportError as error:
        raise ExportError(str(error).replace(str(folder), source)) from error
    return folder


def _reached(endpoint: str) -> bool:
    """Whether anything answers there, asked once: the client itself retries for half a minute."""
    import urllib.error
    import urllib.request

    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=REACH_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def files_to_copy(source: Path, without: Path | None = None) -> Iterator[Path]:
    """The files of a model folder that are not its weights, relative to it; nothing below `without`.

    Weights of modules that come after the transformer (2_Dense/model.safetensors) are among them: others read them. So
    are those of static embeddings and of routes, for which sentence-transformers reads no ONNX file.
    """
    modules = module_list(source) or []
    router = read_router(source)
    # Of towers that transformers saved there are the routes' own: nothing else reads them here.
    routes = router is not None and not (router.towers and not modules)
    later = [module.folder for module in modules if routes or module.folder != source or module.kind in TABLES]
    for folder, folders, names in os.walk(source):
        at = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not (_NOT_COPIED.match(name) or (routes and name == ROUTES))
            and (without is None or (at / name).resolve() != without.resolve())
        )
        kept = any(at == place or (place != source and at.is_relative_to(place)) or routes for place in later)
        for name in sorted(names):
            weights = Path(name).suffix in _WEIGHT_SUFFIXES or name.endswith(".index.json")
            ours = at == source and name in _OUR_REPORTS
            if name[0] != "." and (kept or not weights) and not ours and (at / name).is_file():
                yield (at / name).relative_to(source)


def copy_files(source: Path, target: Path, without: Path | None = None) -> None:
    """Copies `files_to_copy` of `source`, byte for byte."""
    for name in files_to_copy(source, without):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)
