"""What sentence-transformers saves beside a transformer: modules, their settings and random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.checkpoints import save, tokenizer

HIDDEN = 32
Module = tuple[str, Mapping[str, Any]]


def pooling(*modes: str, **settings: Any) -> Module:
    return "Pooling", {"embedding_dimension": HIDDEN, "pooling_mode": list(modes), **settings}


def dense(into: int, out: int, activation: str = "Tanh", **settings: Any) -> Module:
    sizes = {"in_features": into, "out_features": out, "bias": True}
    return "Dense", sizes | {"activation_function": f"torch.nn.modules.activation.{activation}"} | settings


def _tensors(kind: str, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    if kind == "Dense":
        into, out = config["in_features"], config["out_features"]
        made = {"linear.weight": torch.randn(out, into) / into**0.5, "linear.bias": torch.randn(out)}
        if config.get("use_residual") and into != out:
            made["residual.weight"] = torch.randn(out, into)
        return made
    if kind == "LayerNorm":
        return {"norm.weight": torch.randn(config["dimension"]), "norm.bias": torch.randn(config["dimension"])}
    if kind == "WeightedLayerPooling":
        return {"layer_weights": torch.rand(config["num_hidden_layers"] + 1 - config["layer_start"]) + 0.1}
    return {}


def write_module(folder: Path, kind: str, config: Mapping[str, Any], name: str = "config.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(dict(config)))
    tensors = _tensors(kind, config)
    if tensors:
        save_file(tensors, folder / "model.safetensors")


def write_static(folder: Path, size: int = HIDDEN) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    made.save(str(folder / "tokenizer.json"))
    save_file({"embedding.weight": torch.randn(made.get_vocab_size(), size)}, folder / "model.safetensors")


def write_settings(folder: Path, **settings: Any) -> None:
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


def sentence_folder(folder: Path, *modules: Module, seed: int = 0, static: int = 0, **settings: Any) -> Path:
    """A checkpoint whose transformer, or static embeddings of that size, these modules come after."""
    torch.manual_seed(seed)
    if static:
        write_static(folder, static)
    else:
        save("encoder", folder)
    rows = [{"idx": 0, "name": "0", "path": "", "type": f"sentence_transformers.{_first(static)}"}]
    for index, (kind, config) in enumerate(modules, 1):
        write_module(folder / f"{index}_{kind}", kind, config)
        rows.append({"idx": index, "path": f"{index}_{kind}", "type": f"sentence_transformers.models.{kind}"})
    (folder / "modules.json").write_text(json.dumps(rows))
    if settings:
        write_settings(folder, **settings)
    if any(kind == "WeightedLayerPooling" for kind, _ in modules):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"output_hidden_states": True}))
    return folder


def _first(static: int) -> str:
    return "models.StaticEmbedding" if static else "models.Transformer"


def router_folder(folder: Path, size: int = 6, **parameters: Any) -> Path:
    """Queries by static embeddings, documents by a transformer with its pooling; a projection after both."""
    torch.manual_seed(1)
    folder.mkdir()
    types = {"query_0_StaticEmbedding": "StaticEmbedding", "document_0_Transformer": "Transformer"}
    types |= {"document_1_Pooling": "Pooling"}
    write_static(folder / "query_0_StaticEmbedding")
    save("encoder", folder / "document_0_Transformer")
    write_module(folder / "document_1_Pooling", *pooling("mean"))
    write_module(folder / "1_Dense", *dense(HIDDEN, size))
    structure = {"query": ["query_0_StaticEmbedding"], "document": ["document_0_Transformer", "document_1_Pooling"]}
    routes = {"types": {name: f"sentence_transformers.models.{kind}" for name, kind in types.items()}}
    routes |= {"structure": structure, "parameters": {"default_route": "document"} | parameters}
    (folder / "router_config.json").write_text(json.dumps(routes))
    rows = [{"path": "", "type": "sentence_transformers.Router"}, {"path": "1_Dense", "type": "x.Dense"}]
    (folder / "modules.json").write_text(json.dumps(rows))
    write_settings(folder, prompts={"query": "the ", "document": ""})
    return folder
