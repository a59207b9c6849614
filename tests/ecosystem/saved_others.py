"""Saves folders of sentence-transformers' other classes, as saved_folders does, and what these give of texts.

    python -m tests.ecosystem.saved_others FOLDER SEED

writes FOLDER/NAME, FOLDER/NAME.npz (arrays by method; of vectors of tokens those of all texts, and their counts), and
FOLDER/texts.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.checkpoints import save, texts
from tests.ecosystem.saved_folders import HIDDEN, MAJOR
from tests.vision_models import pictures
from tests.vision_models import save as save_pair
from tests.vision_models import sentences as pair_sentences


def sparse(base: Path) -> dict[str, Any]:
    """SPLADE, and queries by a table with documents by SPLADE."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder import models

    save("masks", base / "masks")

    def documents() -> list[Any]:
        return [models.MLMTransformer(str(base / "masks"), max_seq_length=30), models.SpladePooling("max")]

    words = transformers.AutoTokenizer.from_pretrained(base / "masks")
    weights = torch.rand(len(words))
    router = models.Router.for_query_document([models.SparseStaticEmbedding(words, weights)], documents())
    return {
        "splade": SparseEncoder(modules=documents(), device="cpu"),
        "sparse-routes": SparseEncoder(modules=[router], device="cpu"),
    }


def late(base: Path) -> dict[str, Any]:
    """Late interaction, with queries that are filled up."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    save("encoder", base / "late")
    names = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    expansion = {"strategy": "fixed", "attend": False, "length": 12}
    modules = [
        Transformer(str(base / "late"), document_length=25, query_expansion=expansion),
        Dense(HIDDEN, 16, bias=False, activation_function=torch.nn.Identity(), **names),
        Normalize(**names),
        MultiVectorMask(skiplist_words=[".", ","]),
    ]
    prompts = {"query": "the ", "document": "a "}
    return {"late-interaction": MultiVectorEncoder(modules=modules, device="cpu", prompts=prompts)}


def main(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    given = [*texts(20, seed=seed), "", "word " * 80]
    (folder / "texts.json").write_text(json.dumps(given))
    made = sparse(folder / "checkpoints") if MAJOR >= 5 else {}
    made |= late(folder / "checkpoints") if MAJOR >= 6 else {}
    for name, model in made.items():
        model.save(str(folder / name))
        saved = type(model)(str(folder / name), device="cpu")
        found = {}
        for method in ("encode", "encode_query", "encode_document"):
            vectors = getattr(saved, method)(given)
            if isinstance(vectors, list):
                found[f"{method}:counts"] = np.array([len(one) for one in vectors])
                found[method] = np.concatenate([np.asarray(one) for one in vectors])
            else:
                found[method] = vectors.to_dense().numpy()
        np.savez(folder / f"{name}.npz", **found)
    clip(folder, random)


def clip(folder: Path, random: np.random.Generator) -> None:
    """CLIP: images are saved beside it."""
    from sentence_transformers import SentenceTransformer, models

    save_pair("clip", folder / "checkpoints" / "clip", int(random.integers(1 << 30)))
    # An image of one row or three transformers takes for one of so many channels.
    drawn = [image.convert("RGB") for image in pictures(20, random) if image.height > 3]
    given, images = pair_sentences(6, random, 20), drawn[:5]
    for index, image in enumerate(images):
        image.save(folder / f"{index}.png")
    (folder / "pair_texts.json").write_text(json.dumps(given))
    modules = [models.CLIPModel(str(folder / "checkpoints" / "clip"))]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / "clip"))
    saved = SentenceTransformer(str(folder / "clip"), device="cpu")
    np.savez(folder / "clip.npz", texts=saved.encode(given), images=saved.encode(images))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
