"""Inputs of models that take tokens without padding (`fuse(padding="ragged")`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

MASK = "attention_mask"
OFFSETS, LONGEST = "cu_seqlens", "max_seqlen"
_MOST = (1 << 31) - 1


def ragged(tokenised: Mapping[str, Any] | Sequence[Any]) -> dict[str, np.ndarray]:
    """Tokenised texts laid out one after the other.

    Args:
        tokenised: by input name ("input_ids" at least) either a list of integers for each text, as tokenizers give
            without padding, or an array [B, S] with an "attention_mask" [B, S], whose zeros are left out. Or what
            encode_batch of the tokenizers library gives, for a model that takes token types.

    Returns:
        The named inputs as int64 [T]; "cu_seqlens" int32 [B + 1]: where each text begins, then T; "max_seqlen" int32,
        as many zeros as the longest text has tokens: only its length is read.

    Raises:
        BertfuseError: inputs of different lengths, or padding that no mask tells from tokens.
    """
    if not isinstance(tokenised, Mapping):
        tokenised = _of_encodings(tokenised)
    if "input_ids" not in tokenised:
        raise BertfuseError(f"there are no input_ids among {', '.join(tokenised) or 'the inputs'}")
    mask = tokenised.get(MASK)
    rows = [np.asarray(row) for row in tokenised["input_ids"]]
    kept = [np.ones(row.shape, bool) for row in rows] if mask is None else [np.asarray(row) != 0 for row in mask]
    named = {}
    for name, values in tokenised.items():
        if name == MASK:
            continue
        given = [np.asarray(row) for row in values]
        if [row.shape for row in given] != [row.shape for row in kept]:
            raise BertfuseError(f"{name} has other lengths than {'input_ids' if mask is None else MASK}")
        if any(row.ndim != 1 or (row.size and row.dtype.kind not in "iub") for row in given):
            raise BertfuseError(f"{name} must hold integers, a row for each text")
        parts = [row[real] for row, real in zip(given, kept, strict=True)]
        named[name] = np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
    return named | bounds_of([int(real.sum()) for real in kept])


def bounds_of(lengths: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
    """ "cu_seqlens" and "max_seqlen", as in `ragged`, of texts of so many tokens."""
    lengths = np.asarray(lengths, np.int64)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    if offsets[-1] > _MOST:
        raise BertfuseError(f"{offsets[-1]} tokens are too many for one batch: at most {_MOST}")
    return {OFFSETS: offsets.astype(np.int32), LONGEST: np.zeros(lengths.max(initial=0), np.int32)}


def _of_encodings(given: Any) -> dict[str, list[Any]]:
    names = {"input_ids": "ids", MASK: "attention_mask", "token_type_ids": "type_ids"}
    encodings = [given] if hasattr(given, "type_ids") else list(given)
    if not all(hasattr(encoding, "type_ids") for encoding in encodings):
        raise BertfuseError("give a mapping with input_ids, as transformers' tokenizers make, or tokenizers' encodings")
    return {name: [getattr(encoding, attribute) for encoding in encodings] for name, attribute in names.items()}
