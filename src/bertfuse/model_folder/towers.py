"""Models of texts and images, CLIP and SigLIP: each of their towers is a route of its own."""

from __future__ import annotations

from pathlib import Path

from bertfuse.errors import BertfuseError

from .files import read_config, read_json
from .sentence_modules import TRANSFORMER, Module, module_list, transformer_settings

TEXT, IMAGE = "text", "image"
CLIP = "CLIPModel"  # the module of sentence-transformers; what it saves is transformers'
# By config.json's architectures: the class of each tower, and which of its outputs is the vector.
TOWERS: dict[str, dict[str, tuple[str, str]]] = {
    "CLIPModel": {
        TEXT: ("CLIPTextModelWithProjection", "text_embeds"),
        IMAGE: ("CLIPVisionModelWithProjection", "image_embeds"),
    },
    "SiglipModel": {TEXT: ("SiglipTextModel", "pooler_output"), IMAGE: ("SiglipVisionModel", "pooler_output")},
}
_VECTORS = {kind: output for towers in TOWERS.values() for kind, output in towers.values()}
# Every text is filled up to so many tokens as there are positions, and all of them are seen.
_ALWAYS_FULL = ("siglip_text_model",)


def towers_of(folder: Path, source: str = "") -> tuple[Module, tuple[Module, ...]] | None:
    """The module that holds both towers, and those after it; None where the folder has no towers.

    Raises BertfuseError for towers whose settings would make other vectors.
    """
    source = source or str(folder)
    listed = module_list(folder, source) or [Module(TRANSFORMER, folder)]
    first = listed[0]
    if first.kind not in (CLIP, TRANSFORMER):
        return None
    named = read_json(first.folder / "config.json").get("architectures") or [""]
    if named[0] not in TOWERS:
        if first.kind == CLIP:
            what = named[0] or "model without a name"
            raise BertfuseError(f"{source}: {first.folder.name} is a {what}; {', '.join(TOWERS)} are known here")
        return None
    if module_list(folder) is not None:
        _check_modalities(first.folder, source)
    return first, tuple(listed[1:])


def _check_modalities(folder: Path, source: str) -> None:
    name, config = transformer_settings(folder)
    modalities = config.get("modality_config") or {}
    for modality, wanted in ((TEXT, "get_text_features"), (IMAGE, "get_image_features")):
        found = modalities.get(modality)
        if modalities and (not isinstance(found, dict) or found.get("method") != wanted):
            raise BertfuseError(f"{source}: {name}: modality_config has no {modality} that goes through {wanted}")
    if config.get("module_output_name", "sentence_embedding") != "sentence_embedding":
        raise BertfuseError(f"{source}: {name}: module_output_name is not sentence_embedding, the towers' vector")


def vector_output(folder: Path) -> str | None:
    """Of a tower's own folder: which output of the model is the vector; None for any other model."""
    named = read_json(folder / "config.json").get("architectures") or [""]
    return _VECTORS.get(str(named[0]))


def takes_images(folder: Path) -> bool:
    """Whether the folder's model is of images alone."""
    config = read_config(folder)
    return "image_size" in config and "vocab_size" not in config


def always_full(folder: Path) -> bool:
    """Whether texts are filled up to the model's length with padding that it sees."""
    return read_config(folder).get("model_type") in _ALWAYS_FULL
