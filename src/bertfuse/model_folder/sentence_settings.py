"""config_sentence_transformers.json: prompts, similarity, length of vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError

from .files import read_json

FILE = "config_sentence_transformers.json"
LATE = ("MultiVectorEncoder", "ColBERT")  # of sentence-transformers, and of PyLate up to 3.x
LATE_SIMILARITY_NAMES = ("maxsim", "meanmaxsim")
SIMILARITY_NAMES = ("cosine", "dot", "euclidean", "manhattan")

# Keys that change no result: what wrote the folder, what it needs, and which weights a half-precision load keeps.
_NEUTRAL = {"__version__", "model_type", "requirements", "keep_in_fp32_modules"}
_PROMPTS = {"prompts", "default_prompt_name"}
_PYLATE = {"query_length", "document_length", "query_expansion", "do_query_expansion", "attend_to_expansion_tokens"}
_PYLATE |= {"query_prefix", "document_prefix", "skiplist_words", "truncate_dim"}
# By model_type: the keys that are applied.
KEYS: dict[str, set[str]] = {
    "SentenceTransformer": {*_NEUTRAL, *_PROMPTS, "similarity_fn_name", "truncate_dim"},
    "CrossEncoder": {*_NEUTRAL, *_PROMPTS, "activation_fn"},
    "SparseEncoder": {*_NEUTRAL, *_PROMPTS, "similarity_fn_name", "max_active_dims"},
    **{kind: {*_NEUTRAL, *_PROMPTS, *_PYLATE, "similarity_fn_name"} for kind in LATE},
}


@dataclass(frozen=True)
class SentenceSettings:
    """What the file says; defaults where it does not, or where there is none."""

    model_type: str = "SentenceTransformer"
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity_fn_name: str = "cosine"
    truncate_dim: int | None = None
    max_active_dims: int | None = None


def read_settings(folder: Path, source: str = "") -> SentenceSettings:
    """The settings of the folder, which errors call `source`.

    Raises BertfuseError for a key that is not known here and a value that cannot be applied.
    """
    found = read_json(folder / FILE)
    where = f"{source or folder}: {FILE}"
    kind = found.get("model_type") or "SentenceTransformer"
    if kind not in KEYS:
        raise BertfuseError(f"{where}: is of a {kind}; only {', '.join(KEYS)} can be run here")
    for key in sorted(set(found) - KEYS[kind]):
        if found[key] is not None:
            raise BertfuseError(f"{where}: has {key}, which is not known here, so results may be others; take it out")
    prompts, name = found.get("prompts") or {}, found.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise BertfuseError(f"{where}: prompts is not an object of texts")
    prompts = {key: text or "" for key, text in prompts.items()}
    if name is not None and name not in prompts:
        raise BertfuseError(f"{where}: default_prompt_name is {name!r}, which is none of its prompts")
    if name is not None and prompts[name] and kind == "CrossEncoder":
        raise BertfuseError(f"{where}: puts its prompt {name!r} before each pair, which cannot be done here")
    for key in ("truncate_dim", "max_active_dims"):
        size = found.get(key)
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise BertfuseError(f"{where}: {key} is {size!r}, not a whole number of 1 or more")
    similarity: Any = found.get("similarity_fn_name") or ("dot" if kind == "SparseEncoder" else "cosine")
    if kind in LATE:
        if found.get("truncate_dim") is not None:
            raise BertfuseError(f"{where}: has truncate_dim, which vectors of tokens do not have here")
        similarity = similarity if similarity in LATE_SIMILARITY_NAMES else LATE_SIMILARITY_NAMES[0]
    else:
        check_similarity(similarity, where)
    return SentenceSettings(kind, prompts, name, similarity, found.get("truncate_dim"), found.get("max_active_dims"))


def check_similarity(name: Any, where: str = "similarity_fn_name") -> str:
    """The name; BertfuseError for one that is unknown."""
    if name not in SIMILARITY_NAMES:
        raise BertfuseError(f"{where}: similarity {name!r} is unknown: choose from {', '.join(SIMILARITY_NAMES)}")
    return str(name)
