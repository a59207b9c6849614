"""The routes of a sentence-transformers Router (up to 4.x: Asym), and the towers of CLIP and SigLIP, as folders."""

from __future__ import annotations

import json
from pathlib import Path

from bertfuse.errors import ExportError
from bertfuse.model_folder.files import read_json
from bertfuse.model_folder.routes import Router
from bertfuse.model_folder.sentence_modules import SENTENCE, TRANSFORMER_FILES, Module, transformer_settings
from bertfuse.model_folder.sentence_settings import FILE
from bertfuse.model_folder.towers import IMAGE, TEXT, TOWERS

from .folder import TOKENIZER_FILES

# Files that are the other tower's.
_OTHERS = {
    IMAGE: {*TOKENIZER_FILES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"},
    TEXT: {"preprocessor_config.json", "processor_config.json"},
}


def split_routes(router: Router, folder: Path, target: Path) -> dict[str, Path]:
    """Each route of `folder` as a sentence-transformers folder in `target`, made of links to its files.

    Raises ExportError for a route without modules.
    """
    split = _tower if router.towers else _split
    return {route: split(router, route, folder, target / route) for route in router.routes}


def _tower(router: Router, route: str, folder: Path, made: Path) -> Path:
    """A tower as transformers saves it alone; with the modules after both, where sentence-transformers saved them."""
    from transformers import AutoConfig

    home = router.routes[route][0].folder
    both = AutoConfig.from_pretrained(str(home), trust_remote_code=False, local_files_only=True)
    config = both.vision_config if route == IMAGE else both.text_config
    kind, output = TOWERS[both.architectures[0]][route]
    config.architectures = [kind]
    if hasattr(both, "projection_dim"):
        config.projection_dim = both.projection_dim
    made.mkdir(parents=True)
    config.save_pretrained(made)
    left = _OTHERS[route] | {"config.json", "modules.json", "README.md", *TRANSFORMER_FILES}
    for file in home.iterdir():
        if file.is_file() and file.name not in left:
            (made / file.name).symlink_to(file.resolve())
    if (folder / "modules.json").is_file():
        listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for index, module in enumerate(router.after, 1):
            place = f"{index}_{module.kind}"
            kind = f"sentence_transformers.{module.kind}"
            listed.append({"idx": index, "name": str(index), "path": place, "type": kind})
            _link(module, made / place, top=False)
        (made / "modules.json").write_text(json.dumps(listed, indent=2), encoding="utf-8")
        given = transformer_settings(home)[1]
        given["modality_config"] = {route: {"method": "forward", "method_output_name": output}}
        given["module_output_name"] = SENTENCE
        (made / TRANSFORMER_FILES[0]).write_text(json.dumps(given, indent=2), encoding="utf-8")
    if (folder / FILE).is_file():
        settings = read_json(folder / FILE)
        (made / FILE).write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return made


def _split(router: Router, route: str, folder: Path, made: Path) -> Path:
    modules = (*router.before, *router.routes[route], *router.after)
    if not modules:
        raise ExportError(f"{folder}: route {route} has no modules")
    listed = []
    for index, module in enumerate(modules):
        place = "" if index == 0 else f"{index}_{module.kind}"
        listed.append({"idx": index, "name": str(index), "path": place, "type": f"sentence_transformers.{module.kind}"})
        _link(module, made / place, top=index == 0)
    (made / "modules.json").write_text(json.dumps(listed, indent=2), encoding="utf-8")
    settings = read_json(folder / FILE)
    (made / FILE).write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return made


def _link(module: Module, target: Path, top: bool) -> None:
    target.mkdir(parents=True, exist_ok=True)
    left = {"modules.json", "router_config.json", FILE, "README.md"} if top else set()
    for file in module.folder.iterdir() if module.folder.is_dir() else ():
        if file.is_file() and file.name not in left:
            (target / file.name).symlink_to(file.resolve())
