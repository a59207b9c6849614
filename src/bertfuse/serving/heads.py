"""Models over one backbone: which of those that are served have one, and a session of all of them for each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import folder_of, read_config
from bertfuse.model_folder.multi_vector import is_multi_vector
from bertfuse.model_folder.towers import takes_images

from .served import ModelOptions


@dataclass(frozen=True)
class Shared:
    """An ONNX file that computes what several models do.

    Args:
        path: of the file.
        models: positions among those that are served.
        outputs: of each, its outputs' names in that file.
        metadata: of each, as its own file has it.
    """

    path: str
    models: list[int]
    outputs: list[dict[str, str]]
    metadata: list[dict[str, str]]


class Head:
    """What is used of a session, of one model in a session of several."""

    def __init__(self, session: Any, outputs: Mapping[str, str], metadata: Mapping[str, str]) -> None:
        self.session, self.outputs, self._metadata = session, outputs, metadata

    def get_inputs(self) -> list[Any]:
        return self.session.get_inputs()

    def get_outputs(self) -> list[SimpleNamespace]:
        found = {value.name: value for value in self.session.get_outputs()}
        return [
            SimpleNamespace(name=name, type=found[called].type, shape=found[called].shape)
            for name, called in self.outputs.items()
        ]

    def get_modelmeta(self) -> SimpleNamespace:
        return SimpleNamespace(custom_metadata_map=dict(self._metadata))

    def get_providers(self) -> list[str]:
        return self.session.get_providers()

    def get_provider_options(self) -> dict[str, Any]:
        return self.session.get_provider_options()

    def run(self, names: Sequence[str] | None, feed: Mapping[str, Any], options: Any = None) -> list[Any]:
        return self.session.run([self.outputs[name] for name in names or self.outputs], feed, options)


def share(models: Sequence[ModelOptions], on_gpu: bool, into: Path) -> list[Shared]:
    """Those of `models` that compute nearly the same (see graph_rewrite/one_graph.py), each as one model in `into`."""
    if len(models) < 2 or not any(len(alike) > 1 for alike in _alike(models)):
        return []
    # In a process of its own, which takes the models' weights with it when it ends, also where memory is short.
    asked = orjson.dumps({"models": [asdict(options) for options in models], "on_gpu": on_gpu, "into": str(into)})
    told = subprocess.run([sys.executable, "-m", __spec__.name], input=asked, stdout=subprocess.PIPE, check=False)
    return [] if told.returncode else [Shared(**one) for one in orjson.loads(told.stdout)]


def _alike(models: Sequence[ModelOptions]) -> list[list[int]]:
    """Positions of models that may have one backbone by config.json: a look at the files themselves takes seconds."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for index, options in enumerate(models):
        path = Path(options.folder)
        try:
            home = path if path.is_dir() else folder_of(path)
            config, alone = read_config(home), is_multi_vector(home) or takes_images(home)
        except (BertfuseError, OSError):  # the engine says so
            continue
        if alone:
            continue
        sizes = (config.get(name) for name in ("model_type", "vocab_size", "hidden_size", "num_hidden_layers"))
        found.setdefault((*map(str, sizes), options.library, options.max_batch_tokens), []).append(index)
    return list(found.values())


def _share(models: Sequence[ModelOptions], on_gpu: bool, into: Path) -> list[Shared]:
    from bertfuse.graph_rewrite.one_graph import one_graph
    from bertfuse.inference.prepare import model_for

    made = []
    for alike in _alike(models):
        try:
            paths = {index: model_for(Path(models[index].folder), on_gpu) for index in alike}
        except (BertfuseError, OSError):
            continue
        left = list(alike)
        while len(left) > 1:
            group, found = [left.pop(0)], None
            for index in list(left):
                target = into / f"shared-{group[0]}.onnx"
                try:
                    members = one_graph([paths[member] for member in (*group, index)], target)
                except (BertfuseError, OSError):  # as where the disk is full
                    members = None
                if members is not None:
                    found = members
                    group.append(index)
                    left.remove(index)
            if found is None:
                continue
            outputs, metadata = [member.outputs for member in found], [member.metadata for member in found]
            made.append(Shared(str(target), group, outputs, metadata))
    return made


def _main() -> None:
    asked = orjson.loads(sys.stdin.buffer.read())
    models = [ModelOptions(**options) for options in asked["models"]]
    found = _share(models, asked["on_gpu"], Path(asked["into"]))
    sys.stdout.buffer.write(orjson.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    _main()
