"""What stands before texts: the prompts of config_sentence_transformers.json."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.sentence_settings import SentenceSettings, read_settings

from .model import TextModel


class PromptedModel(TextModel):
    """A folder whose settings may name prompts; `prompts` and `default_prompt_name` are theirs where not given."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, **options)
        self.settings: SentenceSettings = read_settings(self.folder)
        self.prompts = {str(k): str(v) for k, v in (prompts or self.settings.prompts).items()}
        self.default_prompt_name = default_prompt_name or self.settings.default_prompt_name
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise BertfuseError(f"default_prompt_name {self.default_prompt_name!r} is none of the prompts")

    def encode(self, sentences: Any, *positional: Any, **options: Any) -> Any:
        """What the model makes of texts."""
        raise NotImplementedError

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt named "query", where there is one."""
        return self._with_prompt(("query",), sentences, options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt named "document", "passage" or "corpus", where there is one."""
        return self._with_prompt(("document", "passage", "corpus"), sentences, options)

    def _with_prompt(self, names: Sequence[str], sentences: Any, options: dict[str, Any]) -> Any:
        if options.get("prompt") is None and options.get("prompt_name") is None:
            options["prompt_name"] = next((name for name in names if name in self.prompts), None)
        return self.encode(sentences, **options)

    def prompt_text(self, name: str | None, prompt: str | None) -> str:
        """What is put before a text: `prompt`, else that of the name, else the default one."""
        if prompt is not None:
            return prompt
        name = name if name is not None else self.default_prompt_name
        if name is not None and name not in self.prompts:
            known = ", ".join(self.prompts) or "it has none"
            raise BertfuseError(f"{self.folder}: no prompt is named {name!r}: {known}")
        return self.prompts[name] if name is not None else ""
