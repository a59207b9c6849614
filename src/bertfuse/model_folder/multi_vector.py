"""Folders of late interaction: sentence-transformers' MultiVectorEncoder, and PyLate's ColBERT."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError

from .files import read_json
from .sentence_modules import (
    ACTIVATIONS,
    KEYS,
    TOKENS,
    TRANSFORMER,
    Module,
    check_keys,
    check_transformer,
    module_list,
    transformer_settings,
)
from .sentence_settings import FILE, LATE, read_settings

_MASK = "MultiVectorMask"
_MASK_KEYS = {"skiplist_words", "skiplist_tasks", "keep_only_token_ids"}
_PYLATE = {"do_query_expansion", "attend_to_expansion_tokens", "query_prefix", "document_prefix"}
_LATE_ONLY = ("query_length", "document_length", "query_expansion")


@dataclass(frozen=True)
class Expansion:
    """How short queries are filled up.

    Args:
        length: to so many tokens.
        fixed: whether longer ones are cut there.
        attend: whether other tokens see those that fill up.
        token: with which; None: the mask token, or the one at a text's end.
    """

    length: int
    fixed: bool = True
    attend: bool = False
    token: str | None = None


@dataclass(frozen=True)
class MultiVector:
    """What comes after the transformer, and how texts are read.

    Args:
        first, later: the modules; all read and write rows of tokens.
        query_length, document_length: at how many tokens texts are cut; None: as others of this folder.
        skipped, skipped_in: words without a vector, in texts of these tasks.
        prefixes: texts before others that are one token where the tokenizer knows them.
    """

    first: Module
    later: tuple[Module, ...]
    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skipped: tuple[str, ...] = ()
    skipped_in: tuple[str, ...] = ("document",)
    prefixes: tuple[str, ...] = ()


def is_multi_vector(folder: Path) -> bool:
    """Whether the folder's model has a vector for each token."""
    return read_settings(folder).model_type in LATE


def read_multi_vector(folder: Path, source: str = "") -> MultiVector:
    """The modules and settings of the folder, which errors call `source`.

    Raises BertfuseError for whatever would make other vectors than sentence-transformers makes.
    """
    source = source or str(folder)
    listed = module_list(folder, source)
    if not listed or listed[0].kind != TRANSFORMER:
        raise BertfuseError(f"{source}: modules.json has no Transformer as its first module")
    first = listed[0]
    check_transformer(first.folder, source, late=True)
    old = read_settings(folder, source).model_type == "ColBERT"
    later, skipped, tasks = [], tuple(string.punctuation) if old else (), ("document",)
    for module in listed[1:]:
        where = f"{source}: {module.folder.name}/config.json"
        config = read_json(module.folder / "config.json")
        if module.kind == _MASK:
            check_keys(config, _MASK_KEYS, where)
            if config.get("keep_only_token_ids"):
                raise BertfuseError(f"{where}: keep_only_token_ids is for images, which are not known here")
            skipped = tuple(config.get("skiplist_words") or ())
            named = config.get("skiplist_tasks") or ["document"]
            tasks = (named,) if isinstance(named, str) else tuple(named)
            continue
        if module.kind not in ("Dense", "Normalize"):
            raise BertfuseError(
                f"{source}: modules.json has a {module.kind} module, which vectors of tokens cannot have"
            )
        check_keys(config, KEYS[module.kind], where)
        found = Module(module.kind, module.folder, {"module_input_name": TOKENS} | config)
        if (found.reads, found.writes) != (TOKENS, TOKENS):
            raise BertfuseError(f"{where}: reads {found.reads} and writes {found.writes}, not rows of tokens")
        if module.kind == "Dense" and found.activation not in ACTIVATIONS:
            raise BertfuseError(
                f"{where}: activation {found.activation} is unknown: choose from {', '.join(ACTIVATIONS)}"
            )
        later.append(found)
    if old and not any(module.kind == "Normalize" for module in later):
        later.append(Module("Normalize", folder, {"module_input_name": TOKENS}))
    made = MultiVector(first, tuple(later), skipped=skipped, skipped_in=tasks)
    return _with_lengths(made, folder, source)


def _with_lengths(made: MultiVector, folder: Path, source: str) -> MultiVector:
    name, config = transformer_settings(made.first.folder)
    settings = read_json(folder / FILE)
    values = {key: config.get(key, settings.get(key)) for key in _LATE_ONLY}
    expansion = values["query_expansion"]
    old = settings.keys() & _PYLATE and "query_expansion" not in config.keys() | settings.keys()
    if old and settings.get("do_query_expansion") is not False:
        length = values["query_length"] or 32
        expansion = {"strategy": "fixed", "length": length, "attend": bool(settings.get("attend_to_expansion_tokens"))}
        values["query_length"] = None
    if expansion is not None:
        where = f"{source}: {name}: query_expansion"
        check_keys(expansion, ("strategy", "attend", "token", "length"), where)
        if expansion.get("strategy") not in ("fixed", "min") or not _is_length(expansion.get("length")):
            raise BertfuseError(f"{where}: {expansion!r} is not known here")
    for key in _LATE_ONLY[:2]:
        if values[key] is not None and not _is_length(values[key]):
            raise BertfuseError(f"{source}: {key} is {values[key]!r}, not a whole number of 1 or more")
    words = settings.get("skiplist_words")
    prefixes = [settings.get(key) for key in ("query_prefix", "document_prefix")]
    return replace(
        made,
        query_length=values["query_length"],
        document_length=values["document_length"],
        expansion=None
        if expansion is None
        else Expansion(
            expansion["length"], expansion["strategy"] == "fixed", bool(expansion.get("attend")), expansion.get("token")
        ),
        skipped=made.skipped if words is None else tuple(words),
        prefixes=tuple(prefix for prefix in prefixes if prefix),
    )


def _is_length(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
