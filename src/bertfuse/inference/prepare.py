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
from collections.abc import Callable, Iterator
from pathlib import Path

from bertfuse import __version__
from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import MODEL_FILE, ONNX_FOLDER, find_model
from bertfuse.model_folder.multi_vector import is_multi_vector, read_multi_vector
from bertfuse.model_folder.routes import ROUTES, read_router, route_names
from bertfuse.model_folder.sentence_modules import TABLES, first_module, pools_prompt
from bertfuse.model_folder.towers import vector_output

from .devices import providers_on
from .progress import steps

log = logging.getLogger("bertfuse")

_FORMAT = 1  # of what is kept; another number leaves older folders unused


def has_routes(folder: Path) -> bool:
    """Whether `folder` is one whose modules part, each route a model of its own."""
    return folder.is_dir() and read_router(folder) is not None


def route_folder(folder: Path, route: str, on_gpu: bool) -> Path:
    """The folder of a route of `folder`, or the ONNX file that `model_for` gives of it. Raises BertfuseError."""
    router = read_router(folder) if folder.is_dir() else None
    if router is None or route not in router.routes:
        known = ", ".join(router.routes) if router else "it has none"
        raise BertfuseError(f"{folder}: has no route {route!r}: {known}")
    made = folder / ROUTES / route
    if made.is_dir():
        return made
    from bertfuse.export.routes import split_routes

    with tempfile.TemporaryDirectory() as links:
        return model_for(split_routes(router, folder, Path(links))[route], on_gpu, name=f"{folder}, route {route}")


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is a folder with weights that can be exported."""
    if not path.is_dir():
        return False
    first = first_module(path)
    there = first.kind in TABLES or (path / "config.json").is_file()
    return there and any(first.folder.glob("*.safetensors"))


def model_for(path: Path, on_gpu: bool, tokens: bool = False, name: str = "") -> Path:
    """The ONNX file that `path` stands for, as `find_model`; of a checkpoint without one, one that is made of it, which
    messages call `name`.

    On a GPU that is float16, without padding where the library can do so, else float32. Of a sentence encoder it has
    the vectors alone, and with `tokens` also the rows of all tokens. Raises BertfuseError.
    """
    if has_routes(path):
        there = f"as {path / ROUTES}/NAME" if (path / ROUTES).is_dir() else "after 'bertfuse optimize' has made them"
        names = ", ".join(route_names(path))
        raise BertfuseError(f"{path}: its modules part in routes ({names}), each a model of its own: name one, {there}")
    if not is_checkpoint(path):
        return find_model(path)
    try:
        return find_model(path)
    except BertfuseError:
        pass
    tokens = tokens or not pools_prompt(path)
    digest = _digest(path, on_gpu, tokens)
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
            log.warning("%s: has no ONNX file; exporting and fusing it, once, takes half a minute or so", name or path)
            with steps() as say:
                kind = _make(path, scratch / "model", on_gpu, tokens, say)
            if not target.exists():
                os.replace(scratch / "model", target)
        except OSError:
            if not (target / ONNX_FOLDER / MODEL_FILE).is_file():  # another process may have been there first
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        log.warning("%s: exported and fused (%s) into %s", name or path, kind, target)
        return target / ONNX_FOLDER / MODEL_FILE
    raise BertfuseError(f"{path}: has no ONNX file, and no folder to write one to; name one with BERTFUSE_CACHE")


def _caches() -> Iterator[Path]:
    named = os.environ.get("BERTFUSE_CACHE")
    if named:
        yield Path(named).expanduser()
        return
    yield Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "bertfuse"
    yield Path(tempfile.gettempdir()) / f"bertfuse-{os.getuid()}"


def _digest(path: Path, on_gpu: bool, tokens: bool) -> str:
    from bertfuse.export.source import files_to_copy
    from bertfuse.runtime.library import library_path

    found = hashlib.blake2b(f"{__version__} {_FORMAT} {on_gpu} {tokens}".encode(), digest_size=10)
    weights = [*path.glob("*.safetensors"), *path.glob("*_linear.pt")]
    files = {*files_to_copy(path), *(file.relative_to(path) for file in weights)}
    sources = [(str(name), path / name) for name in sorted(files)]
    if on_gpu:  # which kernels there are decides what is made
        sources.append(("library", library_path()))
    for name, file in sources:
        found.update(f"\0{name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as handle:
            while chunk := handle.read(1 << 22):
                found.update(chunk)
    return found.hexdigest()


def _make(source: Path, target: Path, on_gpu: bool, tokens: bool, say: Callable[[str], None]) -> str:
    """Makes the folder `target`; what came of it, in words."""
    from bertfuse.graph_rewrite import FuseOptions
    from bertfuse.optimization import optimize

    dtypes = ("fp16", None) if on_gpu else (None,)
    # Kernels for packed rows may be missing, and float16 may be too coarse for a model.
    paddings = ("ragged", "keep")
    if is_multi_vector(source):
        expansion = read_multi_vector(source).expansion
        if expansion is not None and not expansion.attend:
            paddings = ("keep",)  # queries have vectors of tokens that no other sees
    options = [FuseOptions(dtype=dtype, padding=padding) for dtype in dtypes for padding in paddings]
    providers = providers_on("cuda" if on_gpu else "cpu")
    made = optimize(
        source,
        target,
        options,
        providers=providers,
        # The others would be computed even if nobody asks.
        outputs=() if tokens else ["sentence_embedding", vector_output(source) or "sentence_embedding"],
        float32_outputs=True,
        progress=say,
    )
    if not made.passed:
        reason = made.not_compared or f"{made.comparison.first_difference.name} differs"
        raise BertfuseError(f"{source}: fused, it computes something else ({reason}); report this")
    made.original.unlink()
    made.original.with_name(made.original.name + ".data").unlink(missing_ok=True)
    kind = "float16" if made.options.dtype else "float32"
    return f"{kind}, {'without padding' if made.options.padding == 'ragged' else 'padded'}"
