"""Model folders: where ONNX files, configuration and tokenizer lie.

`bertfuse optimize` writes what other tools look for: DIR/onnx/model.onnx is the fused model, and in DIR lie
config.json, tokenizer and everything else that the source has. The model before fusion is beside the fused one under a
name that no tool takes for a model (sentence-transformers and optimum warn of every second .onnx file). A folder with
model.onnx and model.fused.onnx in it is understood as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError

ONNX_FOLDER, MODEL_FILE = "onnx", "model.onnx"
FUSED_FILE = "model.fused.onnx"
ORIGINAL_FILE = "model.onnx.original"

# Where a folder's model before fusion and its fused model lie, in the order in which they are looked for.
_PAIRS = (
    (Path(ONNX_FOLDER, ORIGINAL_FILE), Path(ONNX_FOLDER, MODEL_FILE)),
    (Path(ORIGINAL_FILE), Path(MODEL_FILE)),
    (Path(MODEL_FILE), Path(FUSED_FILE)),
    (Path(ONNX_FOLDER, MODEL_FILE), Path(ONNX_FOLDER, FUSED_FILE)),
)
_ALONE = (Path(FUSED_FILE), Path(ONNX_FOLDER, FUSED_FILE), Path(ONNX_FOLDER, MODEL_FILE), Path(MODEL_FILE))

_SIZES = ("max_position_embeddings", "pad_token_id", "vocab_size", "type_vocab_size")
# They number positions from pad_token_id + 1 on: as many rows of their position tables are no token's.
_POSITIONS_AFTER_PADDING = (
    "camembert",
    "data2vec-text",
    "ibert",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)


def find_model(path: str | Path, prefer_fused: bool = True) -> Path:
    """The model file that `path` (a file, or a folder that export or optimize wrote) stands for."""
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise BertfuseError(f"{path}: no such file or folder; check the path")
        return path
    pair = _find_pair(path)
    if pair is not None:
        return pair[1 if prefer_fused else 0]
    for name in _ALONE:
        if (path / name).is_file():
            return path / name
    raise BertfuseError(
        f"{path}: holds neither {ONNX_FOLDER}/{MODEL_FILE} nor {MODEL_FILE}; run 'bertfuse optimize' or 'export' first"
    )


def model_pair(folder: Path) -> tuple[Path, Path]:
    """A folder's model before fusion and its fused model; BertfuseError where one is missing."""
    if folder.is_file():
        raise BertfuseError(f"{folder}: is a file; give the folder that 'bertfuse optimize' wrote")
    pair = _find_pair(folder)
    if pair is None:
        there = next((f"{name} alone" for name in _ALONE if (folder / name).is_file()), "no model")
        original, fused = _PAIRS[0]
        raise BertfuseError(
            f"{folder}: has {there}, needs both {original} and {fused}; make them with 'bertfuse optimize MODEL -o DIR'"
        )
    return pair


def _find_pair(folder: Path) -> tuple[Path, Path] | None:
    for original, fused in _PAIRS:
        if (folder / original).is_file() and (folder / fused).is_file():
            return folder / original, folder / fused
    return None


def folder_of(model: str | Path) -> Path:
    """The folder with configuration and tokenizer of a model file: its own, or the one above where that is onnx/."""
    parent = Path(model).parent
    if parent.resolve().name == ONNX_FOLDER and not (parent / "config.json").is_file():
        above = parent.parent if parent.name == ONNX_FOLDER else parent.resolve().parent
        if (above / "config.json").is_file():
            return above
    return parent


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of the folder; empty where there is none. Raises BertfuseError where a size in it is no number."""
    file = folder / "config.json"
    config = read_json(file)
    for key in _SIZES:
        if not isinstance(config.get(key), int | None):
            raise BertfuseError(f"{file}: {key} is {config[key]!r}, not a whole number; export the model again")
    return config


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; empty where there is no such file. Raises BertfuseError when it holds none."""
    found = read_any_json(file)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BertfuseError(f"{file}: does not hold a JSON object; export the model again")
    return found


def read_any_json(file: Path) -> Any:
    """What `file` holds; None where there is no such file. Raises BertfuseError when it is no JSON."""
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise BertfuseError(f"{file}: cannot be read: {error}; copy or export the model again") from error


def of_texts(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that is about texts: all of it, but for models of texts and images."""
    part = config.get("text_config")
    return part if isinstance(part, dict) else config


def longest_sequence(config: Mapping[str, Any]) -> int | None:
    """The most tokens that a model with this config.json takes in a row; None where it does not say."""
    config = of_texts(config)
    longest = config.get("max_position_embeddings") or 0
    if config.get("model_type") in _POSITIONS_AFTER_PADDING:
        padding = config.get("pad_token_id")
        longest -= (1 if padding is None else padding) + 1
    return longest if longest > 0 else None
