"""Folders of sentence-transformers' SparseEncoder: weights of words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertfuse.errors import BertfuseError

from .files import read_json
from .sentence_modules import MLM, SPARSE_STATIC, TRANSFORMER, Module, check_keys, check_transformer, module_list
from .sentence_settings import read_settings

_SPLADE_KEYS = {
    "pooling_strategy",
    "activation_function",
    "embedding_dimension",
    "word_embedding_dimension",
    "chunk_size",
}
STRATEGIES, ACTIVATIONS = ("max", "sum"), ("relu", "log1p_relu")


@dataclass(frozen=True)
class Sparse:
    """The module that texts go into; of a masked language model how its logits come to weights of words."""

    first: Module
    strategy: str = "max"
    activation: str = "relu"

    @property
    def static(self) -> bool:
        """Whether each word of a text has one weight, whatever stands beside it."""
        return self.first.kind == SPARSE_STATIC


def is_sparse(folder: Path) -> bool:
    """Whether the folder's modules make weights of words."""
    return read_settings(folder).model_type == "SparseEncoder"


def read_sparse(folder: Path, source: str = "") -> Sparse:
    """The modules of the folder, which errors call `source`.

    Raises BertfuseError for whatever would make other weights than sentence-transformers makes.
    """
    source = source or str(folder)
    listed = module_list(folder, source) or []
    kinds = [module.kind for module in listed]
    if kinds == [SPARSE_STATIC]:
        config = read_json(listed[0].folder / "config.json")
        check_keys(config, {"frozen"}, f"{source}: {SPARSE_STATIC}")
        return Sparse(listed[0])
    if len(kinds) != 2 or kinds[0] not in (MLM, TRANSFORMER) or kinds[1] != "SpladePooling":
        raise BertfuseError(
            f"{source}: modules.json has {', '.join(kinds) or 'no modules'}; of a SparseEncoder a masked language model"
            f" with SpladePooling and {SPARSE_STATIC} can be exported"
        )
    check_transformer(listed[0].folder, source, "fill-mask", ("logits", None))
    config = read_json(listed[1].folder / "config.json")
    where = f"{source}: {listed[1].folder.name}/config.json"
    check_keys(config, _SPLADE_KEYS, where)
    made = Sparse(listed[0], config.get("pooling_strategy", "max"), config.get("activation_function", "relu"))
    if made.strategy not in STRATEGIES or made.activation not in ACTIVATIONS:
        raise BertfuseError(f"{where}: {made.strategy} of {made.activation} is not known here")
    return made
