"""What each task's model is called in transformers, which outputs it has, and which task a model is for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfuse.errors import ExportError
from bertfuse.model_folder.files import read_any_json, read_json
from bertfuse.model_folder.sentence_modules import M3_FILES
from bertfuse.model_folder.sentence_settings import LATE

AUTO = "auto"

PIXELS = "pixel_values"
INPUTS = ("input_ids", PIXELS, "attention_mask", "token_type_ids")

_BATCH, _SEQUENCE = {0: "batch"}, {0: "batch", 1: "sequence"}
_IMAGES, _TEXTS = {0: "image_batch"}, {0: "text_batch"}


@dataclass(frozen=True)
class Task:
    """One task. `outputs` maps output names to dynamic axes; a model may lack those in `optional`."""

    name: str
    auto_class: str
    outputs: dict[str, dict[int, str]]
    optional: tuple[str, ...] = ()


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "feature-extraction",
            "AutoModel",
            {"text_embeds": _BATCH, "image_embeds": _BATCH, "last_hidden_state": _SEQUENCE, "pooler_output": _BATCH},
            optional=("text_embeds", "image_embeds", "pooler_output"),
        ),
        Task(
            "sentence-similarity",
            "AutoModel",
            {
                "last_hidden_state": _SEQUENCE,
                "token_embeddings": _SEQUENCE,
                "sentence_embedding": _BATCH,
                **dict.fromkeys(M3_FILES, _SEQUENCE),
            },
            optional=("last_hidden_state", "token_embeddings", *M3_FILES),
        ),
        Task("fill-mask", "AutoModelForMaskedLM", {"logits": _SEQUENCE}),
        Task("text-classification", "AutoModelForSequenceClassification", {"logits": _BATCH}),
        Task("token-classification", "AutoModelForTokenClassification", {"logits": _SEQUENCE}),
        Task(
            "question-answering",
            "AutoModelForQuestionAnswering",
            {"start_logits": _SEQUENCE, "end_logits": _SEQUENCE},
        ),
    )
}
# Of sentence-transformers' SparseEncoder.
SPARSE = Task(
    "sparse-encoding", "AutoModelForMaskedLM", {"sentence_embedding": _BATCH, "logits": _BATCH}, optional=("logits",)
)
# Of late interaction: sentence-transformers' MultiVectorEncoder, PyLate's ColBERT.
LATE_TASK = Task("multi-vector-encoding", "AutoModel", {"token_embeddings": _SEQUENCE})
# Of images, and of images and texts.
IMAGE_TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("image-classification", "AutoModelForImageClassification", {"logits": _BATCH}),
        Task(
            "zero-shot-image-classification",
            "AutoModelForZeroShotImageClassification",
            {
                "logits_per_image": {0: "image_batch", 1: "text_batch"},
                "logits_per_text": {0: "text_batch", 1: "image_batch"},
                "text_embeds": _TEXTS,
                "image_embeds": _IMAGES,
            },
        ),
    )
}


def find_task(name: str) -> Task:
    """The task of that name; ExportError where there is none."""
    known = TASKS | {SPARSE.name: SPARSE, LATE_TASK.name: LATE_TASK} | IMAGE_TASKS
    if name not in known:
        raise ExportError(f"task {name!r} is unknown: choose one of {', '.join([AUTO, *known])}")
    return known[name]


# What a class of transformers is called by its head.
_HEADS = {
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MaskedLM": "fill-mask",
    "ImageClassification": "image-classification",
}
# Classes that transformers' AutoModel makes without their projection, or not at all.
TOWERS = ("CLIPTextModelWithProjection", "CLIPVisionModelWithProjection", "SiglipTextModel")
# Of a text and an image tower.
PAIRS = ("CLIPModel", "SiglipModel")


def task_of_class(name: str, source: str) -> Task:
    """The task of a model class; ExportError where it has a head that cannot be exported."""
    if name in ("SentenceEncoder", "M3Encoder", "ImageEncoder"):
        return TASKS["sentence-similarity"]
    if name in PAIRS:
        return IMAGE_TASKS["zero-shot-image-classification"]
    if "For" not in name and not name.endswith("LMHeadModel"):
        return TASKS["feature-extraction"]
    for head, task in _HEADS.items():
        if name.endswith(f"For{head}"):
            return find_task(task)
    raise ExportError(
        f"{source}: is a {name}, whose head cannot be exported; --task feature-extraction takes the encoder without it"
    )


def task_of_folder(folder: Path, source: str) -> Task:
    """The task of a model folder, by the files of sentence-transformers in it and by its config.json.

    ExportError where it is for a task that is not among TASKS.
    """
    kind = read_json(folder / "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
    modules = read_any_json(folder / "modules.json")
    if kind == "SparseEncoder" and modules is not None:
        return SPARSE
    if kind in LATE:
        return LATE_TASK
    if kind == "SentenceTransformer" and modules is not None:
        return TASKS["sentence-similarity"]
    architecture = _architecture(read_json(folder / "config.json"))
    if kind == "CrossEncoder" and isinstance(modules, list) and len(modules) > 1:
        raise ExportError(
            f"{source}: modules.json has {len(modules) - 1} modules after the transformer, which a cross-encoder's"
            " export leaves out; name the task (--task)"
        )
    return task_of_class(architecture, source)


def _architecture(config: dict[str, Any]) -> str:
    """The class that config.json names; where it names none, that of an encoder alone."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "Model"
