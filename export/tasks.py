"""What each task's model is called in transformers, and which outputs it has."""

from __future__ import annotations

from dataclasses import dataclass

from bertfuse.errors import ExportError

INPUTS = ("input_ids", "attention_mask", "token_type_ids")

_BATCH, _SEQUENCE = {0: "batch"}, {0: "batch", 1: "sequence"}


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
            {"last_hidden_state": _SEQUENCE, "pooler_output": _BATCH},
            optional=("pooler_output",),
        ),
        Task(
            "sentence-similarity",
            "AutoModel",
            {"token_embeddings": _SEQUENCE, "sentence_embedding": _BATCH},
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


def find_task(name: str) -> Task:
    """The task of that name; ExportError where there is none."""
    if name not in TASKS:
        raise ExportError(f"task {name!r} is unknown: choose one of {', '.join(TASKS)}")
    return TASKS[name]
