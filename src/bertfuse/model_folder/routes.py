"""Folders whose modules part: a Router's routes, such as one for queries and one for documents, or a text and an image
tower."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bertfuse.errors import BertfuseError

from .files import read_json
from .sentence_modules import ROUTERS, Module, check_keys, kind_of, module_list
from .towers import IMAGE, TEXT, towers_of

ROUTES = "routes"  # in a folder that was exported: the folder of the routes' models, each by its name


@dataclass(frozen=True)
class Router:
    """Where a folder's modules part: those before, those of each route, and those after; with `towers` each route is
    that part of the one module.
    """

    before: tuple[Module, ...]
    routes: dict[str, tuple[Module, ...]]
    after: tuple[Module, ...]
    default: str | None
    by_task: dict[str | None, str]  # the routes of texts, by task; None: of any task
    towers: bool = False

    def route(self, task: str | None) -> str | None:
        """The route of texts of that task; None where nothing says which. Raises KeyError for an unknown task."""
        for key in (task, None):
            if key in self.by_task:
                return self.by_task[key]
        if task is not None:
            if task not in self.routes:
                if self.towers:  # one for texts of whatever kind
                    return TEXT
                raise KeyError(task)
            return task
        return "text" if "text" in self.routes else self.default


def route_names(folder: Path) -> list[str]:
    """The names of the folder's routes; empty where its modules do not part."""
    router = read_router(folder)
    return [] if router is None else list(router.routes)


def read_router(folder: Path, source: str = "") -> Router | None:
    """The Router (or Asym, as it was called) among the folder's modules, or its towers; None where there is neither.

    Raises BertfuseError for one that cannot be read, or whose routes are not for texts.
    """
    source = source or str(folder)
    listed = module_list(folder, source) or []
    at = [index for index, module in enumerate(listed) if module.kind in ROUTERS]
    if not at:
        towers = towers_of(folder, source)
        if towers is None:
            return None
        return Router((), {name: (towers[0],) for name in (TEXT, IMAGE)}, towers[1], TEXT, {}, towers=True)
    if len(at) > 1:
        raise BertfuseError(f"{source}: modules.json has {len(at)} routers; one can be exported")
    home = listed[at[0]].folder
    name = next(
        (name for name in ("router_config.json", "config.json") if (home / name).is_file()), "router_config.json"
    )
    config = read_json(home / name)
    where = f"{source}: {(home / name).relative_to(folder)}"
    types, structure, parameters = (config.get(key) or {} for key in ("types", "structure", "parameters"))
    if not (isinstance(types, dict) and isinstance(structure, dict) and isinstance(parameters, dict)) or not structure:
        raise BertfuseError(f"{where}: names no routes (types, structure, parameters)")
    check_keys(parameters, ("default_route", "allow_empty_key", "route_mappings"), where)
    routes = {}
    for route, names in structure.items():
        if not isinstance(names, list) or not set(names) <= set(types):
            raise BertfuseError(f"{where}: route {route} has a module without a type")
        if not route or "/" in route or route.startswith("."):
            raise BertfuseError(f"{where}: {route!r} is no name for a route's folder")
        routes[route] = tuple(Module(kind_of(types[name]), home / name) for name in names)
    default = parameters.get("default_route")
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(routes))
    by_task = _mappings(parameters.get("route_mappings") or {}, where)
    for route in (*by_task.values(), *([default] if default else [])):
        if route not in routes:
            raise BertfuseError(f"{where}: {route} is none of its routes: {', '.join(routes)}")
    return Router(tuple(listed[: at[0]]), routes, tuple(listed[at[0] + 1 :]), default, by_task)


def _mappings(found: Mapping[str, str], where: str) -> dict[str | None, str]:
    """Of entries "('query', 'text')": "route" those that texts take, by task; of two for a task the one for texts."""
    made: dict[str | None, str] = {}
    for modality in (None, "text"):
        for key, route in found.items():
            try:
                task, kind = ast.literal_eval(key)
            except (ValueError, SyntaxError, TypeError) as error:
                raise BertfuseError(f"{where}: route_mappings: {key!r} is no pair of task and kind") from error
            if kind == modality:
                made[task] = route
    return made
