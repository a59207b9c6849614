"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import secrets
import tempfile
from collections.abc import Iterable, Iterator

from bertfuse.errors import BertfuseError

_BESIDE_A_MODEL = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "modules.json")


def check_target(
    path: str | os.PathLike[str], read: Iterable[str | os.PathLike[str] | None] = (), onnx_file: bool = False
) -> None:
    """Raises BertfuseError where `replacing` could not write `path`: before long work, not after. Makes nothing.

    So it does where that would replace one of the files `read`, or, unless it is an ONNX file that is to be written,
    any model or what lies beside one.
    """
    path = pathlib.Path(path)
    with _writing(path):
        tempfile.TemporaryFile(dir=next(folder for folder in path.parents if folder.exists())).close()
        is_read = any(file is not None and path.resolve() == pathlib.Path(file).resolve() for file in read)
        is_models = (
            path.is_file() and not onnx_file and (path.suffix in (".onnx", ".original") or path.name in _BESIDE_A_MODEL)
        )
        if is_read or is_models:
            raise BertfuseError(f"{path}: is {'read' if is_read else 'a model file'}; name another file to write")


@contextlib.contextmanager
def _writing(path: pathlib.Path) -> Iterator[None]:
    try:
        if path.is_dir() or not path.name:
            raise BertfuseError(f"{path}: is a folder; name a file to write")
        yield
    except OSError as error:
        raise BertfuseError(f"{path}: cannot be written: {error.strerror}; choose a folder you may write to") from error


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary file beside `path` that takes its place when the block ends well and vanishes when it does not."""
    path = pathlib.Path(path)
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not by tempfile, which ignores the umask; to read that is to change it, for every thread.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        temporary.touch(exist_ok=False)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        hint = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose another place"
        raise BertfuseError(f"{path}: cannot be written: {error.strerror or error}; {hint}") from error
    finally:
        temporary.unlink(missing_ok=True)
