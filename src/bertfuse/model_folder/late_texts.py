"""How a folder of late interaction reads queries and documents: where they are cut, filled up, and what is skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

from .files import longest_sequence, read_config
from .multi_vector import MultiVector
from .tokenizer import cut, open_tokenizer, special_token

QUERY, DOCUMENT = "query", "document"


@dataclass(frozen=True)
class Reading:
    """How texts of one task are read.

    Args:
        tokenizer: which cuts them at `longest` tokens, and fills queries up.
        unseen: whether tokens that fill up are seen by no other.
        skipped: int64, ids of tokens without a vector.
        prefixes: that are one token wherever they stand.
    """

    tokenizer: Any
    longest: int
    unseen: bool
    skipped: np.ndarray
    prefixes: tuple[str, ...] = ()


def read_texts(folder: Path, late: MultiVector, task: str, longest: int) -> Reading:
    """How texts of `task` are read; `longest` holds where the folder says no length. Raises BertfuseError."""
    expansion = late.expansion if task == QUERY else None
    asked = late.query_length if task == QUERY else late.document_length
    if expansion is not None and expansion.fixed:
        asked = expansion.length
    longest = min(asked or longest, longest_sequence(read_config(folder)) or 1 << 30)
    tokenizer = open_tokenizer(folder, longest)
    know_prefixes(tokenizer, late.prefixes)
    cut(tokenizer, folder, longest)
    if expansion is not None:
        names = (expansion.token, special_token(folder, "mask_token"), special_token(folder, "eos_token"))
        token = next((name for name in names if name is not None), "")
        filler = tokenizer.token_to_id(token)
        if filler is None:
            raise BertfuseError(f"{folder}: queries are filled up with {token!r}, which its tokenizer lacks")
        tokenizer.enable_padding(length=expansion.length, pad_id=filler, pad_token=token)
    unseen = expansion is not None and not expansion.attend
    return Reading(tokenizer, longest, unseen, skipped_ids(folder, late, tokenizer, task), late.prefixes)


def know_prefixes(tokenizer: Any, prefixes: Sequence[str]) -> None:
    """Makes those that the tokenizer has as one token that token wherever they stand."""
    from tokenizers import AddedToken

    known = [AddedToken(p, normalized=False, special=True) for p in prefixes if tokenizer.token_to_id(p)]
    if known:
        tokenizer.add_special_tokens(known)


def skipped_ids(folder: Path, late: MultiVector, tokenizer: Any, task: str) -> np.ndarray:
    """int64, ids of tokens without a vector in texts of `task`."""
    found = (tokenizer.token_to_id(word) for word in (late.skipped if task in late.skipped_in else ()))
    unknown = tokenizer.token_to_id(special_token(folder, "unk_token") or "[UNK]")
    return np.array(sorted({word for word in found if word is not None and word != unknown}), np.int64)
