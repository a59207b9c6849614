"""Writing a model folder: all of it appears, or nothing does."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bertfuse.errors import ExportError
from bertfuse.model_folder.files import FUSED_FILE, MODEL_FILE, ONNX_FOLDER, ORIGINAL_FILE

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_MODELS = [f"{name}{data}" for name in (MODEL_FILE, FUSED_FILE, ORIGINAL_FILE) for data in ("", ".data")]
# What an earlier model left in the folder and this model's users would take for its own.
STALE_MODELS = {*_MODELS, *(f"{ONNX_FOLDER}/{name}" for name in _MODELS)}
STALE_SETTINGS = {
    *TOKENIZER_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "router_config.json",
}


def check_apart(source: Path, target: Path) -> None:
    """Raises ExportError where writing to the folder `target` would write over the model that is read."""
    if source.resolve() == target.resolve():
        raise ExportError(f"{target}: is the model that is read; name another folder to write to")


@contextmanager
def output_folder(target: Path, stale: Iterable[str]) -> Iterator[Path]:
    """A scratch folder inside `target` whose files move to `target` at the end, and vanish on any failure.

    Files of `target` named in `stale` go as the new ones come.
    """
    made: list[Path] = []
    scratch: Path | None = None
    try:
        if target.exists() and not target.is_dir():
            raise ExportError(f"{target}: is a file; give a folder to write to")
        made = [path for path in (target, *target.parents) if not path.exists()]
        target.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".bertfuse-", dir=target))
        yield scratch
        # The model goes last: whoever finds it finds the rest, too.
        new = [Path(folder, name).relative_to(scratch) for folder, _, names in os.walk(scratch) for name in names]
        new.sort(key=lambda file: (file.name in (MODEL_FILE, ORIGINAL_FILE), file))
        for name in set(stale).difference(map(str, new)):
            if (target / name).is_file():
                (target / name).unlink()
        for file in new:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(scratch / file, target / file)
        made = []
    except OSError as error:
        raise ExportError(f"{target}: cannot write the model: {error.strerror or error}; nothing was kept") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
