"""A model folder's tokenizer, of the tokenizers library, set up as sentence-transformers and transformers do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError

from .files import longest_sequence, read_config, read_json
from .sentence_modules import STATIC, TABLES, first_module, longest_asked, pools_prompt, transformer_settings
from .towers import always_full

UNLIMITED = 1 << 30  # tokens: for models without positions


def longest_text(folder: str | Path) -> int:
    """At how many tokens a text is cut, special tokens included: what sentence-transformers and transformers take.

    What sentence_bert_config.json says, else tokenizer_config.json's model_max_length, and never more than the model
    has positions; 512 where nothing says. Static embeddings take texts whole.
    """
    first = first_module(Path(folder))
    if first.kind == STATIC:
        return UNLIMITED
    limit = longest_sequence(read_config(Path(folder)))
    asked = longest_asked(first.folder)
    value = read_json(first.folder / "tokenizer_config.json").get("model_max_length")
    # Tokenizers without a limit say 1e30.
    if asked is None and isinstance(value, int | float) and not isinstance(value, bool) and 2 < value < UNLIMITED:
        asked = int(value)
    found = [value for value in (asked, limit) if value]
    return min(found) if found else 512


def open_tokenizer(folder: str | Path, longest: int | None = None) -> Any:
    """A new tokenizers.Tokenizer, which cuts at `longest` tokens (by default where the folder says), and does not pad,
    but for models whose texts are always full.

    What tokenizer.json itself says of padding and truncation is left out, as transformers does: all-MiniLM-L6-v2's pads
    every text to 128. Raises BertfuseError where there is no tokenizer.json, or one that cannot be read.
    """
    from tokenizers import Tokenizer, normalizers

    folder = Path(folder)
    first = first_module(folder)
    file = first.folder / "tokenizer.json"
    if not file.is_file():
        raise BertfuseError(f"{folder}: has no tokenizer.json, so it cannot take text; give arrays (--input file.npz)")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare Exception
        raise BertfuseError(f"{file}: cannot be read: {error}; export the model again") from error
    tokenizer.no_padding()
    if first.kind in TABLES:
        tokenizer.post_processor = None  # it alone adds special tokens
    else:
        check_tokenizer(folder, tokenizer)
        if transformer_settings(first.folder)[1].get("do_lower_case"):
            given = [tokenizer.normalizer] if tokenizer.normalizer is not None else []
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *given])
    if read_json(first.folder / "tokenizer_config.json").get("split_special_tokens"):
        tokenizer.encode_special_tokens = True
    cut(tokenizer, folder, longest or longest_text(folder))
    return tokenizer


def cut(tokenizer: Any, folder: Path, longest: int, stride: int = 0) -> None:
    """Makes the tokenizer cut texts at `longest` tokens, at the end that tokenizer_config.json names, and
    fill them up to so many where the model wants that.
    """
    side = read_json(first_module(folder).folder / "tokenizer_config.json").get("truncation_side") or "right"
    if side not in ("left", "right"):
        raise BertfuseError(f"{folder}: tokenizer_config.json: truncation_side is {side!r}, neither left nor right")
    tokenizer.enable_truncation(longest, stride=stride, direction=side)
    if always_full(folder):
        pad_id, token = padding_token(folder, tokenizer)
        tokenizer.enable_padding(length=longest, pad_id=pad_id, pad_token=token)


def check_tokenizer(folder: Path, tokenizer: Any, config: Mapping[str, Any] | None = None) -> None:
    """Raises BertfuseError for a tokenizer that is not the model's: one with tokens that the model, by its
    configuration, has no rows for, or without those that its own settings name.
    """
    rows = (read_config(folder) if config is None else config).get("vocab_size")
    tokens = tokenizer.get_vocab_size(with_added_tokens=True)
    if isinstance(rows, int) and tokens > rows:
        raise BertfuseError(
            f"{folder}: its tokenizer has {tokens} tokens, the model's embeddings {rows} rows: this tokenizer belongs"
            " to another model"
        )
    for name in ("cls_token", "sep_token", "pad_token"):
        token = special_token(folder, name)
        if token is not None and tokenizer.token_to_id(token) is None:
            raise BertfuseError(
                f"{folder}: its tokenizer.json does not know the {name} {token!r} that its tokenizer_config.json names:"
                " they belong to different models"
            )


def takes_types(folder: Path) -> bool:
    """Whether the tokenizer's type ids go into the model: where model_input_names has none, all are 0."""
    names = read_json(first_module(folder).folder / "tokenizer_config.json").get("model_input_names")
    return not isinstance(names, list) or "token_type_ids" in names


def left_out(folder: Path, tokenizer: Any, prompt: str) -> int:
    """How many tokens of a text with that prompt before it the folder's pooling leaves out (include_prompt)."""
    if not prompt or pools_prompt(folder):
        return 0
    encoding = tokenizer.encode(prompt)
    return len(encoding) - (encoding.special_tokens_mask[-1] if len(encoding) else 0)


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
