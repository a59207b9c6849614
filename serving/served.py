"""What is served: a model folder, looked at once before any server starts, so that a mistake is one line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.inference import Classifier, Encoder, Reranker
from bertfuse.inference.answers import task_of
from bertfuse.inference.model import TextModel
from bertfuse.inference.prepare import model_for
from bertfuse.runtime.session import providers_of

KINDS = ("embed", "rerank", "classify")
# Tokens of the requests that are answered together. A CPU gains nothing by more, and the first of them waits for all.
MAX_BATCH_TOKENS = {"cpu": 2048, "cuda": 32768}


@dataclass(frozen=True)
class Served:
    """A model, and what must be known of it to check and count requests without it."""

    path: str
    name: str
    kind: str  # one of KINDS
    device: str
    library: str
    dtype: str
    max_input_tokens: int
    max_batch_tokens: int
    dimension: int = 0  # of a vector
    unit_length: bool = False  # whether vectors have length 1
    prompts: tuple[tuple[str, str], ...] = ()
    default_prompt: str = ""
    threads: int = 0  # of a session on the CPU; 0: a thread for each core

    def open(self) -> Any:
        """A new Encoder, Reranker or Classifier."""
        options: dict[str, Any] = {"device": self.device, "library": self.library}
        if self.threads:
            import onnxruntime

            options["sess_options"] = onnxruntime.SessionOptions()
            options["sess_options"].intra_op_num_threads = self.threads
        kind = {"embed": Encoder, "rerank": Reranker, "classify": Classifier}[self.kind]
        return kind(self.path, max_seq_length=self.max_input_tokens, **options)


def look_at(
    folder: Path,
    *,
    kind: str = "auto",
    name: str | None = None,
    device: str = "cpu",
    library: str = "auto",
    max_length: int | None = None,
    max_batch_tokens: int | None = None,
    here: bool = True,
) -> Served:
    """Loads the model and runs it once. Raises BertfuseError for a model that cannot be served as `kind`.

    Args:
        folder: as TextModel takes it.
        kind: one of KINDS, or "auto": by the model's task; a classifier with one label is a reranker, as
            text-embeddings-inference has it.
        name: how clients call the model; None: the folder's name.
        max_length: tokens of a text; None takes what the folder says, which more than it cannot be.
        max_batch_tokens: None takes MAX_BATCH_TOKENS.
        here: whether `device` must be there on this machine.
    """
    if kind not in ("auto", *KINDS):
        raise BertfuseError(f"--task {kind}: choose from auto, {', '.join(KINDS)}")
    for option, value in (("--max-length", max_length), ("--max-batch-tokens", max_batch_tokens)):
        if value is not None and value < 1:
            raise BertfuseError(f"{option} {value}: give 1 or more")
    if here:
        providers_of(device)
    # On the CPU, whatever the replicas have: this process needs no memory of a GPU.
    model = TextModel(model_for(folder, here and device != "cpu"), device="cpu")
    if max_length is not None and max_length > model.max_seq_length:
        raise BertfuseError(f"--max-length {max_length}: {model.path} takes {model.max_seq_length} tokens at most")
    task = task_of(model)
    tasks = {"sentence-similarity": "embed", "feature-extraction": "embed", "text-classification": "classify"}
    if task not in tasks:
        raise BertfuseError(f"{model.path}: is a model for {task}, which is not served; {', '.join(KINDS)} are")
    labels = 0
    if tasks[task] == "classify":
        scores = Reranker(model.path, session=model.session).predict([("a", "b")])
        labels = 1 if scores.ndim == 1 else scores.shape[1]
    found = tasks[task] if labels != 1 else "rerank"
    if kind == "auto":
        kind = found
    elif (kind == "embed") != (found == "embed") or (kind == "rerank" and labels > 1):
        what = f"{labels} labels" if labels else "no labels"
        raise BertfuseError(f"--task {kind}: {model.path} is a model for {task} with {what}; leave --task out")
    return Served(
        path=str(model.path.resolve()),
        name=name or model.folder.resolve().name,
        kind=kind,
        device=device,
        library=library,
        dtype=_dtype(model),
        max_input_tokens=max_length or model.max_seq_length,
        max_batch_tokens=max_batch_tokens or MAX_BATCH_TOKENS[device],
        **(_vectors(model) if kind == "embed" else {}),
    )


def _vectors(model: TextModel) -> dict[str, Any]:
    encoder = Encoder(model.path, session=model.session)
    vectors = encoder.encode(["a", "the river"])
    lengths = np.linalg.norm(vectors, axis=1)
    return {
        "dimension": int(vectors.shape[1]),
        "unit_length": bool(np.allclose(lengths, 1, atol=1e-2)),
        "prompts": tuple(encoder.prompts.items()),
        "default_prompt": encoder.prompts.get(encoder.default_prompt_name or "", ""),
    }


def _dtype(model: TextModel) -> str:
    """What the model computes in, by the type of its first output."""
    named = {"float": "float32"}
    kind = model.session.get_outputs()[0].type.removeprefix("tensor(").removesuffix(")")
    return named.get(kind, kind)
