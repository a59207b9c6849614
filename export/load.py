"""A checkpoint in a folder as a PyTorch model and its tokenizer."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bertfuse.errors import ExportError, first_line
from bertfuse.model_folder.files import read_json
from bertfuse.model_folder.multi_vector import read_multi_vector
from bertfuse.model_folder.sparse import read_sparse

from .folder import TOKENIZER_FILES
from .tasks import AUTO, LATE_TASK, SPARSE, TOWERS, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .sentence import SentenceEncoder


def require_packages(purpose: str, *packages: str) -> None:
    """Raises ExportError, which names `purpose`, where one of these packages of the extra "export" is missing."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(f"{purpose}: needs {', '.join(missing)}: pip install 'bertfuse[export]'")


def load_model(
    folder: Path, task: Task, attention: str, allow_pickle: bool, name: str = "", keep_heads: bool = False
) -> tuple[PreTrainedModel | SentenceEncoder, list[str]]:
    """Loads the checkpoint in float32 for `task`; also returns the names of parameters that it lacks.

    `attention` is "sdpa", "eager" or "auto"; `name` is what errors call it. Raises ExportError when it cannot be read,
    has no weights for the task's head, or, with `keep_heads`, has weights of a head that the task leaves out.
    """
    import torch
    import transformers

    name = name or str(folder)
    named = read_json(folder / "config.json").get("architectures") or [""]
    tower = named[0] if task.auto_class == "AutoModel" and named[0] in TOWERS else ""

    def load(implementation: str) -> Any:
        return getattr(transformers, tower or task.auto_class).from_pretrained(
            str(folder),
            attn_implementation=implementation,
            use_safetensors=None if allow_pickle else True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            local_files_only=True,
        )

    try:
        model, info = with_attention(load, attention)
    except Exception as error:  # transformers raises OSError, ValueError, RuntimeError, safetensors its own
        raise ExportError(f"{name}: cannot load it for {task.name}: {first_line(error)}{_load_hint(error)}") from error
    missing = sorted(info["missing_keys"], key=lambda name: ("pooler" in name, name))  # a lost head says more
    needed = [name for name in missing if not (task.auto_class == "AutoModel" and "pooler" in name)]
    if needed:
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        raise ExportError(
            f"{name}: the checkpoint has no weights for {needed[0]}{more}, which task {task.name} needs;"
            " choose the task that it was trained for (--task)"
        )
    dropped = sorted(name for name in info["unexpected_keys"] if _HEAD.match(name))
    if keep_heads and dropped:
        raise ExportError(
            f"{name}: config.json names no head, but the checkpoint has weights of one ({dropped[0]}); name its task"
            " (--task), feature-extraction for the encoder alone"
        )
    if task.name == SPARSE.name:
        from .sparse import splade_encoder

        return splade_encoder(model, read_sparse(folder, name)), missing
    if task.name == LATE_TASK.name:
        from .sentence import token_encoder

        return token_encoder(model, read_multi_vector(folder, name)), missing
    if task.name == "sentence-similarity":
        from .sentence import sentence_encoder

        model = sentence_encoder(model, folder, name)
    return model, missing


Made = TypeVar("Made")


def with_attention(make: Callable[[str], Made], attention: str) -> Made:
    """What `make` makes with that attention implementation; with "auto" sdpa, or eager where a model has no sdpa."""
    if attention != AUTO:
        return make(attention)
    try:
        return make("sdpa")
    except (ValueError, ImportError) as error:
        if "sdpa" not in str(error) and "scaled_dot_product" not in str(error):
            raise
        return make("eager")


# Names of heads in transformers' BERT-family checkpoints.
_HEAD = re.compile(
    r"^(cls\.|classifier|qa_outputs|lm_head|vocab_(transform|projector)|predictions|generator_|discriminator_|pre_classifier)"
)


def _load_hint(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text or "custom code" in text:
        return "; models that bring their own code are not loaded"
    return ""


def load_tokenizer(folder: Path) -> Any | None:
    """The checkpoint's tokenizer, or None where it has none."""
    from transformers import AutoTokenizer

    # Without any of its files transformers 5 builds a tokenizer with an empty vocabulary.
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    except Exception:
        return None
