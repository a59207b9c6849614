"""Folders that three major releases of sentence-transformers save: bertfuse gives the vectors that they give."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import bertfuse
from bertfuse.model_folder import sentence_modules, sentence_settings

ENVIRONMENT = Path(sys.prefix)
# Of sums in another order; vectors that are not normalised are as long as 40.
ATOL = 5e-5
NAMES = ("poolings", "prompts", "modules", "settings", "layers", "mpnet", "static", "routes", "late", "residual")
SAVED = {"3.4.1": NAMES[:8], "5.7.0": NAMES[:9], "6.2.0": NAMES}


def paths_of(release: str) -> list[Path]:
    """What comes before this environment's packages where that release runs."""
    if release == "3.4.1":
        return [ENVIRONMENT / "older"]
    return [ENVIRONMENT / "newer", Path(torch.__file__).parents[1]] if release == "6.2.0" else []


def _package(release: str) -> Path:
    import sentence_transformers

    above = paths_of(release)
    return above[0] / "sentence_transformers" if above else Path(sentence_transformers.__file__).parent


RELEASES = ("3.4.1", "5.7.0", "6.2.0")


def saver(tmp_path_factory: pytest.TempPathFactory, module: str) -> Callable[[str], Path]:
    """The folder in which the module has saved folders by a release, which it does once."""
    made: dict[str, Path] = {}

    def folder(release: str) -> Path:
        if release not in made:
            made[release] = tmp_path_factory.mktemp(f"saved-{release}")
            seed = random.randrange(1 << 30)
            print(f"release {release}, seed {seed}")
            paths = os.pathsep.join(map(str, [*paths_of(release), Path(__file__).parents[2]]))
            save(made[release], module, paths, seed)
        return made[release]

    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return saver(tmp_path_factory, "tests.ecosystem.saved_folders")


def save(folder: Path, module: str, paths: str, seed: int) -> None:
    """Runs the module, which saves folders in `folder`, with those paths before this environment's."""
    command = [sys.executable, "-m", module, str(folder), str(seed)]
    ran = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]


def _compare(encoder: bertfuse.Encoder, saved: Path, name: str) -> None:
    given = json.loads((saved / "texts.json").read_text())
    want = np.load(saved / f"{name}.npz")
    assert len(want.files) >= 2
    for key in want.files:
        kind, _, asked = key.partition(":")
        options = {"prompt": {"prompt": "a river "}, "name": {"prompt_name": asked}, "task": {"task": asked}}
        method = encoder.encode if kind in ("plain", *options) else getattr(encoder, kind)
        np.testing.assert_allclose(
            method(given, **options.get(kind, {})), want[key], atol=ATOL, err_msg=f"{name} {key}"
        )


@pytest.mark.parametrize(("release", "name"), [(release, name) for release in RELEASES for name in SAVED[release]])
def test_optimized(release: str, name: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    from tests.commands import said

    folder = saved(release)
    said("optimize", folder / name, "-o", tmp_path / "out", "--exporter", "torchscript")
    _compare(bertfuse.Encoder(tmp_path / "out"), folder, name)


@pytest.mark.parametrize("name", ["prompts", "modules", "mpnet", "static", "routes"])
def test_as_saved(name: str, saved: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_CACHE", str(tmp_path))
    _compare(bertfuse.Encoder(saved("5.7.0") / name), saved("5.7.0"), name)


@pytest.mark.parametrize("name", ["poolings", "settings", "modules", "mpnet", "static"])
def test_optimized_folders_in_sentence_transformers(name: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    from tests.commands import said

    folder = saved("5.7.0")
    said("optimize", folder / name, "-o", tmp_path / "out", "--exporter", "torchscript")
    given = json.loads((folder / "texts.json").read_text())
    model = SentenceTransformer(str(tmp_path / "out"), backend="onnx", device="cpu")
    want = np.load(folder / f"{name}.npz")["plain"]
    np.testing.assert_allclose(model.encode(given), want, atol=ATOL)


def _keys_of_modules(package: Path) -> Iterator[tuple[str, str]]:
    """(class, key) of what each module writes: `config_keys`, of the class or of an object."""
    for file in package.rglob("*.py"):
        for kind in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(kind, ast.ClassDef):
                continue
            for node in ast.walk(kind):
                target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
                named = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", None)
                if named == "config_keys" and isinstance(getattr(node, "value", None), ast.List):
                    for key in node.value.elts:
                        yield kind.name, ast.literal_eval(key)


@pytest.mark.parametrize("release", RELEASES)
def test_every_key_of_every_module_is_known(release: str) -> None:
    found: dict[str, set[str]] = {}
    for kind, key in _keys_of_modules(_package(release)):
        found.setdefault(kind, set()).add(key)
    assert {"Pooling", "Transformer"} <= set(found), found.keys()
    known = sentence_modules.KEYS | {"Transformer": sentence_modules.TRANSFORMER_KEYS}
    known |= {"Router": {"default_route", "allow_empty_key", "route_mappings"}, "Asym": {"allow_empty_key"}}
    for kind, keys in found.items():
        if kind in known:
            assert keys <= known[kind], f"{kind}: {keys - known[kind]}"


_WRITERS = ("_get_model_config", "_parse_model_config", "save")


@pytest.mark.parametrize("release", RELEASES)
def test_every_key_of_a_model_is_known(release: str) -> None:
    """Those that are written to config_sentence_transformers.json: named in what makes or reads `model_config`."""
    known = set().union(*sentence_settings.KEYS.values())
    seen = set()
    for file in _package(release).rglob("*.py"):
        if "multi_vector_encoder" in file.parts:
            continue  # its model_type is refused
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef) or function.name not in (
                "_get_model_config",
                "_parse_model_config",
                "save",
            ):
                continue
            for node in ast.walk(function):
                seen |= _config_keys(node)
    if release != "3.4.1":
        assert {"similarity_fn_name", "truncate_dim", "prompts"} <= seen
    assert {"prompts", "default_prompt_name"} <= seen and seen <= known, seen - known


def _config_keys(node: ast.AST) -> set[str]:
    """The keys that `node` writes to or reads of something called (model_)config."""
    names = ("config", "model_config", "_model_config")
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        holder = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        return {node.slice.value} if holder in names else set()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        inner = node.func.value
        holder = inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")
        return {node.args[0].value} if holder in names and isinstance(node.args[0], ast.Constant) else set()
    if isinstance(node, ast.Return):
        held = node.value
        while isinstance(held, ast.BinOp):
            held = held.right if isinstance(held.right, ast.Dict) else held.left
        if isinstance(held, ast.Dict):
            return {key.value for key in held.keys if isinstance(key, ast.Constant)}
    return set()
