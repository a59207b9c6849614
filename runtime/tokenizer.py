"""A model folder's tokenizer, of the tokenizers library, set up as sentence-transformers and transformers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError

from .folder import longest_text, read_json


def open_tokenizer(folder: str | Path, longest: int | None = None) -> Any:
    """A new tokenizers.Tokenizer that does not pad, and cuts at `longest` tokens (by default where the folder says).

    What tokenizer.json itself says of padding and truncation is left out, as transformers does: all-MiniLM-L6-v2's pads
    every text to 128. Raises BertfuseError where there is no tokenizer.json, or one that cannot be read.
    """
    from tokenizers import Tokenizer, normalizers

    folder = Path(folder)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise BertfuseError(f"{folder}: has no tokenizer.json, so it cannot take text; give arrays (--input file.npz)")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare Exception
        raise BertfuseError(f"{file}: cannot be read: {error}; export the model again") from error
    if read_json(folder / "sentence_bert_config.json").get("do_lower_case"):
        given = [tokenizer.normalizer] if tokenizer.normalizer is not None else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *given])
    tokenizer.no_padding()
    tokenizer.enable_truncation(longest or longest_text(folder))
    return tokenizer


def special_token(folder: Path, name: str) -> str | None:
    """A special token ("pad_token", "mask_token") by tokenizer_config.json or special_tokens_map.json."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(folder / file).get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return None


def padding_token(folder: Path, tokenizer: Any) -> tuple[int, str]:
    """Id and text of the token that rows are filled up with."""
    token = special_token(folder, "pad_token") or "[PAD]"
    return tokenizer.token_to_id(token) or 0, token
