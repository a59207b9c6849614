"""How many tokens texts have, and texts of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertfuse.inference.model import Text
from bertfuse.runtime.folder import folder_of
from bertfuse.runtime.tokenizer import open_tokenizer

from .requests import RequestError


class Tokens:
    """The tokenizer of a model, without its limit of length."""

    def __init__(self, model: str) -> None:
        self._tokenizer = open_tokenizer(folder_of(Path(model)))
        self._tokenizer.no_truncation()

    def count(self, texts: Sequence[Text]) -> list[int]:
        """Tokens of each text, special ones included."""
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [len(encoding) for encoding in encode(list(texts))]

    def text(self, ids: Sequence[int], where: str) -> str:
        """The text whose token ids these are, with or without the special tokens around them.

        Raises RequestError where no text is found that has just these ids.
        """
        size = self._tokenizer.get_vocab_size()
        for token in ids:
            if not 0 <= token < size:
                raise RequestError(
                    f"{where} has the token id {token}: the model's vocabulary has {size}.", param="input"
                )
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        if text and any(self._tokenizer.encode(text, add_special_tokens=s).ids == list(ids) for s in (False, True)):
            return text
        raise RequestError(f"{where} is not what the model's tokenizer makes of a text: send the text.", param="input")
