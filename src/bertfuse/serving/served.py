"""What is served: which folders, and what must be known of a model to check and count requests without it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# sparse: a masked language model's weights of words, as SPLADE has them.
KINDS = ("embed", "rerank", "classify", "sparse")


@dataclass(frozen=True)
class ModelOptions:
    """A folder and how it is to be served, as the command line has it; None is for `look.describe` to find out."""

    folder: str
    name: str | None = None
    kind: str = "auto"
    library: str = "auto"
    max_length: int | None = None
    max_batch_tokens: int | None = None
    deterministic_rows: bool = False


@dataclass(frozen=True)
class Served:
    """A model, and what must be known of it to check and count requests without it."""

    path: str  # of the .onnx file
    name: str
    kind: str  # one of KINDS
    device: str
    library: str
    dtype: str
    max_input_tokens: int
    max_batch_tokens: int
    dimension: int = 0  # of a vector
    unit_length: bool = False  # whether vectors have length 1
    token_rows: bool = False  # whether a vector of each token can be had
    labels: int = 0  # of a reranker or a classifier
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str = ""
    resident_bytes: int = 0  # by which the engine's process grew with it

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_dict(cls, found: dict[str, Any]) -> Served:
        return cls(**(found | {"prompts": tuple((name, text) for name, text in found["prompts"])}))
