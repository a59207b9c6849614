"""The routes of a sentence-transformers Router (up to 4.x: Asym) as folders of their own."""

from __future__ import annotations

import json
from pathlib import Path

from bertfuse.errors import ExportError
from bertfuse.model_folder.files import read_json
from bertfuse.model_folder.routes import Router
from bertfuse.model_folder.sentence_modules import Module
from bertfuse.model_folder.sentence_settings import FILE


def split_routes(router: Router, folder: Path, target: Path) -> dict[str, Path]:
    """Each route of `folder` as a sentence-transformers folder in `target`, made of links to its files.

    Raises ExportError for a route without modules.
    """
    return {route: _split(router, route, folder, target / route) for route in router.routes}


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
