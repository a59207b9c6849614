"""A checkpoint, from a local folder or the hub, as a PyTorch model and its tokenizer."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfuse.errors import ExportError

from .tasks import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .sentence import SentenceEncoder

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)


def require_packages(purpose: str, *packages: str) -> None:
    """Raises ExportError, which names `purpose`, where one of these packages of the extra "export" is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f"{purpose}: needs {', '.join(missing)}: pip install 'bertfuse[export]'")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def check_source(source: str, allow_pickle: bool) -> None:
    """Says what is wrong with a folder (or a hub id that cannot be one) before anything heavy is imported."""
    path = Path(source).expanduser()
    if not path.exists():
        if _HUB_ID.match(source) is None:
            raise ExportError(f"{source}: no such folder; give a folder with config.json or a hub id such as org/name")
        return
    if not path.is_dir():
        raise ExportError(f"{source}: is a file; give the folder that holds config.json and model.safetensors")
    if not (path / "config.json").is_file():
        raise ExportError(f"{source}: has no config.json, so it is no Hugging Face model folder")
    pickles = sorted(path.glob("*.bin"))
    if not any(path.glob("*.safetensors")):
        if not pickles:
            raise ExportError(f"{source}: has no model.safetensors; save the model with save_pretrained first")
        if not allow_pickle:
            raise ExportError(
                f"{source}: only a pickle checkpoint ({pickles[0].name}), which can run code when it is read;"
                " convert it to safetensors, or pass --allow-pickle (allow_pickle=True) if you trust its source"
            )


def load_model(
    source: str, task: Task, attention: str, allow_pickle: bool
) -> tuple[PreTrainedModel | SentenceEncoder, list[str]]:
    """Loads the checkpoint in float32 for `task`; also returns the names of parameters that it lacks.

    Raises ExportError when the checkpoint cannot be found or read, or has no weights for the task's head.
    """
    import torch
    import transformers

    path = Path(source).expanduser()
    try:
        model, info = getattr(transformers, task.auto_class).from_pretrained(
            str(path) if path.exists() else source,
            attn_implementation=attention,
            use_safetensors=None if allow_pickle else True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises OSError, ValueError, RuntimeError, safetensors its own
        hint = _load_hint(error, path.exists(), allow_pickle)
        raise ExportError(f"{source}: cannot load it for {task.name}: {first_line(error)}{hint}") from error
    missing = sorted(info["missing_keys"], key=lambda name: ("pooler" in name, name))  # a lost head says more
    needed = [name for name in missing if not (task.auto_class == "AutoModel" and "pooler" in name)]
    if needed:
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise ExportError(
            f"{source}: the checkpoint has no weights for {needed[0]}{more}, which task {task.name} needs;"
            " choose the task that it was trained for (--task)"
        )
    if task.name == "sentence-similarity":
        from .sentence import sentence_encoder

        model = sentence_encoder(model, str(path) if path.exists() else source)
    return model, missing


def _load_hint(error: Exception, local: bool, allow_pickle: bool) -> str:
    text = str(error)
    if "safetensors" in text and not allow_pickle and not local:
        return "; pass --allow-pickle if it only has a pickle checkpoint and you trust where it comes from"
    if not local and isinstance(error, OSError):
        return "; check the name and the network, or give a local folder"
    if "trust_remote_code" in text or "custom code" in text:
        return "; models that bring their own code are not loaded"
    return ""


def load_tokenizer(source: str) -> Any | None:
    """The checkpoint's tokenizer, or None where it has none."""
    from transformers import AutoTokenizer

    path = Path(source).expanduser()
    # Without any of its files transformers 5 builds a tokenizer with an empty vocabulary.
    if path.is_dir() and not any((path / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(str(path) if path.is_dir() else source, trust_remote_code=False)
    except Exception:
        return None
