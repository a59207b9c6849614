"""What is served: which folders, and what must be known of a model to check and count requests without it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from bertfuse.model_folder.towers import TEXT

# sparse: a masked language model's weights of words, as SPLADE has them; late: vectors of tokens, of late interaction.
KINDS = ("embed", "rerank", "classify", "sparse", "late")


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
    modality: str = TEXT  # what it takes, TEXT or IMAGE; of two towers each is a model, of one name
    image_size: tuple[int, int] = (0, 0)  # height and width of images as the model takes them
    takes_queries: bool = True  # of late interaction: whether queries can be computed as it reads them
    resident_bytes: int = 0  # by which the engine's process grew with it

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_dict(cls, found: dict[str, Any]) -> Served:
        prompts = tuple((name, text) for name, text in found["prompts"])
        return cls(**(found | {"prompts": prompts, "image_size": tuple(found["image_size"])}))
