"""Checkpoints without ONNX files: exported, fused for the device, and kept in a cache folder.

The cache is $BERTFUSE_CACHE, else bertfuse/ in $XDG_CACHE_HOME or ~/.cache; a folder in it is named by the contents of
what it was made of. Anything in it may be deleted.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bertfuse import __version__
from bertfuse.errors import BertfuseError
from bertfuse.runtime.folder import MODEL_FILE, ONNX_FOLDER, ORIGINAL_FILE, find_model, folder_of
from bertfuse.runtime.padded_session import OFFSETS, PaddedSession
from bertfuse.runtime.session import InferenceSession, ort_errors
from bertfuse.runtime.tokenizer import open_tokenizer

from .devices import providers_on

log = logging.getLogger("bertfuse")

_FORMAT = 1  # of what is kept; another number leaves older folders unused


def model_for(path: Path, on_gpu: bool) -> Path:
    """The ONNX file that `path` stands for, as `find_model`; of a checkpoint without one, one that is made of it.

    On a GPU that is float16, without padding where the library can do so, else float32. Raises BertfuseError.
    """
    checkpoint = path.is_dir() and (path / "config.json").is_file() and any(path.glob("*.safetensors"))
    if not checkpoint:
        return find_model(path)
    try:
        return find_model(path)
    except BertfuseError:
        pass
    digest = _digest(path, on_gpu)
    for parent in _caches():
        target = parent / f"{path.resolve().name or 'model'}-{digest}"
        if (target / ONNX_FOLDER / MODEL_FILE).is_file():
            return target / ONNX_FOLDER / MODEL_FILE
    for parent in _caches():
        try:
            parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=parent))
        except OSError:
            continue
        target = parent / f"{path.resolve().name or 'model'}-{digest}"
        try:
            kind = _make(path, scratch / "model", on_gpu)
            if not target.exists():
                os.replace(scratch / "model", target)
        except OSError:
            if not (target / ONNX_FOLDER / MODEL_FILE).is_file():  # another process may have been there first
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        log.warning("%s: has no ONNX file; exported and fused (%s) into %s", path, kind, target)
        return target / ONNX_FOLDER / MODEL_FILE
    raise BertfuseError(f"{path}: has no ONNX file, and no folder to write one to; name one with BERTFUSE_CACHE")


def _caches() -> Iterator[Path]:
    named = os.environ.get("BERTFUSE_CACHE")
    if named:
        yield Path(named).expanduser()
        return
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "bertfuse"
    yield Path(tempfile.gettempdir()) / f"bertfuse-{os.getuid()}"


def _digest(path: Path, on_gpu: bool) -> str:
    from bertfuse.export.source import files_to_copy
    from bertfuse.runtime.library import library_path

    found = hashlib.blake2b(f"{__version__} {_FORMAT} {on_gpu}".encode(), digest_size=10)
    files = {*files_to_copy(path), *(file.relative_to(path) for file in path.glob("*.safetensors"))}
    sources = [(str(name), path / name) for name in sorted(files)]
    if on_gpu:  # which kernels there are decides what is made
        sources.append(("library", library_path()))
    for name, file in sources:
        found.update(f"\0{name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as handle:
            while chunk := handle.read(1 << 22):
                found.update(chunk)
    return found.hexdigest()


def _make(source: Path, target: Path, on_gpu: bool) -> str:
    """Makes the folder `target`; what came of it, in words."""
    from bertfuse.export import export_model
    from bertfuse.graph_rewrite import fuse_file

    log.info("%s: has no ONNX file; exporting", source)
    exported = export_model(source, target, original=True)
    keep_vectors_alone(exported)
    want = _trial(exported, "cpu")
    fused = target / ONNX_FOLDER / MODEL_FILE
    assert exported.name == ORIGINAL_FILE
    made = "keep"
    for padding in ("ragged", "keep"):
        try:
            fuse_file(exported, fused, dtype="fp16" if on_gpu else None, padding=padding)
            give_float32(fused)
            cosine = _cosine(_trial(fused, "cuda" if on_gpu else "cpu"), want)
            if not cosine >= _LEAST_COSINE:
                raise BertfuseError(f"{source}: fused, it computes something else (cosine {cosine:.4f}); report this")
        except BertfuseError as error:  # kernels for packed rows may be missing
            if padding == "keep":
                raise
            log.info("%s: with padding %s: %s", source, padding, error)
            continue
        made = padding
        break
    exported.unlink()
    exported.with_name(exported.name + ".data").unlink(missing_ok=True)
    return f"{'float16' if on_gpu else 'float32'}, {'without padding' if made == 'ragged' else 'padded'}"


# Of all outputs on the texts below. float16 gives 0.9995 and more, random weights included.
_LEAST_COSINE = 0.99
_TRIAL = ["a", "a few words more", "Some sentences are longer than others, and some are not. " * 9]


def _trial(model: Path, device: str) -> np.ndarray:
    """The first output for the trial's texts, one after the other. Raises BertfuseError where it does not run."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session: Any = InferenceSession(model, providers_on(device), sess_options=options)
    if OFFSETS in {value.name for value in session.get_inputs()}:
        session = PaddedSession(session)
    tokenizer = open_tokenizer(folder_of(model))
    output = session.get_outputs()[0].name
    found = []
    for text in _TRIAL:
        encoding = tokenizer.encode(text)
        named = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        feed = {}
        for value in session.get_inputs():
            if value.name not in named:
                raise BertfuseError(f"{model}: takes {value.name}, which texts do not give")
            feed[value.name] = np.array([named[value.name]], np.int32 if "int32" in value.type else np.int64)
        with ort_errors(str(model)):
            found.append(session.run([output], feed)[0][0])
    return np.concatenate([value.astype(np.float64).ravel() for value in found])


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def keep_vectors_alone(model: Path) -> None:
    """Of a sentence encoder's outputs only the pooled one, in float32: the others are computed, too, if nobody asks."""
    from bertfuse.graph_rewrite import io

    skeleton, weights = io.open_model(model)
    names = [value.name for value in skeleton.graph.output]
    if "sentence_embedding" not in names or len(names) == 1:
        return
    kept = [value for value in skeleton.graph.output if value.name == "sentence_embedding"]
    del skeleton.graph.output[:]
    skeleton.graph.output.extend(kept)
    io.write(skeleton, weights, model)


def give_float32(model: Path) -> None:
    """Casts the outputs of another float type to float32 in the graph: a device does so sooner than NumPy."""
    import onnx

    from bertfuse.graph_rewrite import io

    skeleton, weights = io.open_model(model)
    graph = skeleton.graph
    wanted = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    outputs = {value.name: value for value in graph.output if value.type.tensor_type.elem_type in wanted}
    if not outputs:
        return
    for node in graph.node:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name in outputs:
                    names[index] = f"{name}_half"
    for name, value in outputs.items():
        graph.node.append(onnx.helper.make_node("Cast", [f"{name}_half"], [name], to=onnx.TensorProto.FLOAT))
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    io.write(skeleton, weights, model)
