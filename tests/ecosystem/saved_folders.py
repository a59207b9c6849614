"""Saves a folder of each kind with the sentence-transformers at hand, and the vectors that it gives of texts.

    python -m tests.ecosystem.saved_folders FOLDER SEED

writes FOLDER/NAME, FOLDER/NAME.npz (vectors by what was asked for) and FOLDER/texts.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer, models

from tests.checkpoints import save, texts, tokenizer

MAJOR = int(sentence_transformers.__version__.split(".")[0])
HIDDEN = 32
FLAGS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
Saved = tuple[list[Any], dict[str, Any]]  # modules, and SentenceTransformer's arguments


def pooling(*flags: str, include_prompt: bool = True) -> Any:
    wanted = {f"pooling_mode_{flag}": flag in flags for flag in FLAGS}
    return models.Pooling(HIDDEN, include_prompt=include_prompt, **wanted)


def norm(size: int) -> Any:
    made = models.LayerNorm(size)
    torch.nn.init.normal_(made.norm.weight)
    torch.nn.init.normal_(made.norm.bias)
    return made


def layers() -> Any:
    made = models.WeightedLayerPooling(HIDDEN, num_hidden_layers=2, layer_start=1)
    torch.nn.init.uniform_(made.layer_weights, 0.1, 1)
    return made


def checkpoints(base: Path) -> Callable[[str], Any]:
    """A Transformer of a checkpoint: "bert", "layers" (which gives those of all layers), or "mpnet"."""
    save("encoder", base / "bert")
    save("encoder", base / "layers")
    file = base / "layers" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"output_hidden_states": True}))
    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    made = tokenizer()
    size = made.get_vocab_size()
    config = transformers.MPNetConfig(
        vocab_size=size, max_position_embeddings=52, initializer_range=0.5, pad_token_id=0, **sizes
    )
    transformers.MPNetModel(config).eval().save_pretrained(base / "mpnet")
    made.save(str(base / "mpnet" / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    special |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}
    (base / "mpnet" / "tokenizer_config.json").write_text(json.dumps(special))
    return lambda name: models.Transformer(str(base / name), max_seq_length=30)


def folders(base: Path) -> Iterator[tuple[str, Saved]]:
    transformer = checkpoints(base)
    prompts = {"query": "the house: ", "document": ""}
    yield "poolings", ([transformer("bert"), pooling(*FLAGS)], {})
    left_out = pooling("mean_tokens", "weightedmean_tokens", "lasttoken", "max_tokens", include_prompt=False)
    yield "prompts", ([transformer("bert"), left_out, models.Normalize()], {"prompts": {"query": prompts["query"]}})
    later = [models.Dense(2 * HIDDEN, 20), norm(20), models.Dropout(0.3), models.Normalize(), models.Normalize()]
    yield "modules", ([transformer("bert"), pooling("mean_tokens", "max_tokens"), *later], {"truncate_dim": 9})
    settings = {"prompts": prompts, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    gelu = models.Dense(HIDDEN, 12, bias=False, activation_function=torch.nn.GELU())
    yield "settings", ([transformer("bert"), pooling("cls_token"), gelu], settings)
    yield "layers", ([transformer("layers"), layers(), pooling("mean_tokens")], {})
    yield "mpnet", ([transformer("mpnet"), pooling("mean_tokens"), models.Normalize()], {})
    static = models.StaticEmbedding(tokenizer(), embedding_dim=24)
    yield "static", ([static, models.Dense(24, 8), models.Normalize()], {"prompts": prompts})
    if MAJOR < 5:
        routes = {task: [models.Dense(HIDDEN, 8)] for task in prompts}
        yield "routes", ([transformer("bert"), pooling("cls_token"), models.Asym(routes)], {})
        return
    static = models.StaticEmbedding(tokenizer(), embedding_dim=HIDDEN)
    router = models.Router.for_query_document([static], [transformer("bert"), pooling("mean_tokens")])
    yield "routes", ([router, models.Normalize()], {"prompts": prompts})
    late = models.Router({"query": [models.Dense(HIDDEN, 8)], "document": [norm(HIDDEN), models.Dense(HIDDEN, 8)]})
    yield "late", ([transformer("bert"), pooling("cls_token"), late], {})
    if MAJOR < 6:
        return
    residual = [models.Dense(HIDDEN, 12, use_residual=True), models.Dense(12, 12, use_residual=True)]
    yield "residual", ([transformer("bert"), pooling("mean_tokens"), *residual], {})


def vectors(model: Any, name: str, given: list[str]) -> dict[str, np.ndarray]:
    """By what is asked for: "plain", "prompt", "name:…" of a prompt, "task:…", or a method."""
    if name == "routes" and MAJOR < 5:
        asked = {f"task:{task}": model.encode([{task: text} for text in given]) for task in ("query", "document")}
        return {key: np.asarray(found) for key, found in asked.items()}
    found = {"plain": model.encode(given), "prompt": model.encode(given, prompt="a river ")}
    found |= {f"name:{prompt}": model.encode(given, prompt_name=prompt) for prompt in model.prompts}
    if name in ("routes", "late"):
        found |= {f"task:{task}": model.encode(given, task=task) for task in ("query", "document")}
        found |= {"encode_query": model.encode_query(given), "encode_document": model.encode_document(given)}
    return found


def main(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    given = [*texts(20, seed=seed), "", "word " * 80, "  The house "]
    (folder / "texts.json").write_text(json.dumps(given))
    for name, (modules, settings) in folders(folder / "checkpoints"):
        SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder / name))
        saved = SentenceTransformer(str(folder / name), device="cpu")
        np.savez(folder / f"{name}.npz", **vectors(saved, name, given))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
