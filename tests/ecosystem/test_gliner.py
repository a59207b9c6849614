"""Files that gliner exports, fused, in gliner: the same entities, whatever encoder and head they have."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from gliner import GLiNER

import bertfuse
from bertfuse.measuring.differences import TOLERANCES
from tests.commands import invoke, said

from . import deberta_models
from .gliner_models import made

SEED = secrets.randbelow(1 << 30)
LABELS = ["person", "city", "organization"]
DEBERTA = {"EmbedLayerNorm": 1, "FusedAttentionVariant": 2, "FusedGemmLayerNorm": 4, "FusedGemmGelu": 2}
BERT = {"EmbedLayerNorm": 1, "FusedAttention": 2, "FusedGemmLayerNorm": 4, "FusedGemmGelu": 2}
# Which words and labels there are, and what is computed of words.
GLINERS_OWN = ("LSTM", "NonZero", "ScatterND", "ScatterElements", "TopK", "Einsum")
# What is fused of each kind: an encoder of texts, and of a bi-encoder one of labels.
KINDS: dict[str, dict[str, int]] = {
    "span": DEBERTA,
    "token": DEBERTA,
    "span, every layer": DEBERTA,
    "span, with a convolution": DEBERTA,
    "span, T5": {"FusedAttentionVariant": 2, "FusedGatedGemm": 2, "FusedGemmResidualNorm": 4, "FusedRMSNorm": 1},
    "span, two encoders": {op: DEBERTA.get(op, 0) + BERT.get(op, 0) for op in DEBERTA | BERT},
    "token, two encoders": {op: DEBERTA.get(op, 0) + BERT.get(op, 0) for op in DEBERTA | BERT},
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder that gliner itself writes of the kind, made once."""
    print(f"seed {SEED}")
    folders: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("gliner") / "model"
            made(kind, folders[kind].parent, SEED).export_to_onnx(folders[kind])
        return folders[kind]

    return folder


def entities(folder: Path, file: str, texts: list[str], threshold: float, register: bool) -> tuple[list, list]:
    """What gliner finds in texts, one by one and together, and the logits."""
    options = onnxruntime.SessionOptions()
    if register:
        bertfuse.register(options)
    model = GLiNER.from_pretrained(
        str(folder), load_onnx_model=True, onnx_model_file=file, session_options=options, local_files_only=True
    )
    run, logits = model.model.run_inference, []

    def kept(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = run(inputs)
        logits.append(outputs["logits"])
        return outputs

    model.model.run_inference = kept
    found = [
        [[(e["start"], e["end"], e["label"], e["score"]) for e in text] for text in batch]
        for size in (1, 7)
        for batch in (model.inference(texts, LABELS, threshold=threshold, batch_size=size),)
    ]
    return found, logits


def between_scores(logits: list[np.ndarray], share: float) -> float:
    """A threshold that no score is near, and which about that share of them are below."""
    scores = np.sort(1 / (1 + np.exp(-np.concatenate([x.ravel() for x in logits]).astype(np.float64))))
    near = scores[int((share - 0.05) * len(scores)) : int((share + 0.05) * len(scores))]
    widest = int(np.argmax(np.diff(near)))
    return float(near[widest : widest + 2].mean())


@pytest.mark.parametrize("kind", list(KINDS))
def test_entities(kind: str, exported: Callable[[str], Path]) -> None:
    print(f"seed {SEED}")
    folder, texts = exported(kind), deberta_models.sentences(20, random.Random(SEED))
    report = said("fuse", folder / "model.onnx", "-o", folder / "fused.onnx", "--strict")
    assert report["fused"] == KINDS[kind]
    before, after = (Counter(n.op_type for n in onnx.load(folder / f"{n}.onnx").graph.node) for n in ("model", "fused"))
    assert all(before[op] == after[op] for op in GLINERS_OWN) and before["ScatterND"]
    _, logits = entities(folder, "model.onnx", texts, 0.5, register=False)
    for share in (0.9, 0.7, 0.5, 0.3, 0.1):  # many scores are of spans that are none
        threshold = between_scores(logits, share)
        want, logits = entities(folder, "model.onnx", texts, threshold, register=False)
        if sum(map(len, want[0])) > 10:
            break
    assert sum(map(len, want[0])) > 10
    for register in (False, True):
        found, others = entities(folder, "fused.onnx", texts, threshold, register)
        for a, b in zip(logits, others, strict=True):
            np.testing.assert_allclose(b, a, *TOLERANCES["float32"][::-1])
        for one, other in zip(found, want, strict=True):
            assert [[e[:3] for e in text] for text in one] == [[e[:3] for e in text] for text in other]


@pytest.mark.parametrize("kind", ["span", "token"])
def test_half_precision(kind: str, exported: Callable[[str], Path]) -> None:
    print(f"seed {SEED}")
    folder, texts = exported(kind), deberta_models.sentences(8, random.Random(SEED + 1))
    said("fuse", folder / "model.onnx", "-o", folder / "half.onnx", "--dtype", "fp16", "--strict", "--overwrite")
    _, logits = entities(folder, "model.onnx", texts, 0.5, register=False)
    _, others = entities(folder, "half.onnx", texts, 0.5, register=True)
    scale = max(np.abs(x).max() for x in logits)
    for a, b in zip(logits, others, strict=True):
        assert b.dtype == np.float16
        np.testing.assert_allclose(b / scale, a / scale, *TOLERANCES["float16"][::-1])


def test_commands_of_the_page(exported: Callable[[str], Path], tmp_path: Path) -> None:
    """compare needs inputs that go together; padding stays, with the reason."""
    folder = exported("span")
    said("fuse", folder / "model.onnx", "-o", tmp_path / "fused.onnx")
    refused = invoke("compare", folder / "model.onnx", tmp_path / "fused.onnx", code=2)
    assert "give arrays (--input file.npz)" in refused.stderr
    model = GLiNER.from_pretrained(str(folder), load_onnx_model=True, onnx_model_file="model.onnx")
    run = model.model.run_inference

    def kept(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        np.savez(tmp_path / "inputs.npz", **inputs)
        return run(inputs)

    model.model.run_inference = kept
    model.inference(deberta_models.sentences(6, random.Random(SEED)), LABELS)
    given = ("compare", folder / "model.onnx", tmp_path / "fused.onnx", "--input", tmp_path / "inputs.npz")
    assert said(*given)["passed"]
    text = invoke("fuse", folder / "model.onnx", "-o", tmp_path / "packed.onnx", "--padding", "remove").stdout
    assert "remove padding: left as it is: what padding gives is needed" in text
