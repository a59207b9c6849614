"""Opens a model folder and says what it is, so that a mistake is one line before anything is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.inference import Classifier, Encoder, MaskFiller, MultiVectorEncoder, Reranker, SparseEncoder
from bertfuse.inference.answers import task_of
from bertfuse.inference.image_model import ImageModel
from bertfuse.inference.model import TextModel
from bertfuse.model_folder.files import folder_of
from bertfuse.model_folder.late_texts import DOCUMENT, QUERY
from bertfuse.model_folder.sentence_modules import SENTENCE
from bertfuse.model_folder.towers import IMAGE, takes_images

from .served import KINDS, ModelOptions, Served

# Tokens that are computed in one run. More gain nothing (2 cores, MiniLM: 326 texts a second by 256 or 512, 299 by
# 2048), and whoever came first waits for all of them. A lone request is cut as Encoder cuts it, hence its numbers.
MAX_BATCH_TOKENS = {"cpu": 512, "cuda": 16384}

_CLASSES: dict[str, Any] = {
    "embed": Encoder,
    "rerank": Reranker,
    "classify": Classifier,
    "sparse": MaskFiller,
    "late": MultiVectorEncoder,
}
_KIND_OF_TASK = {
    "sentence-similarity": "embed",
    "feature-extraction": "embed",
    "text-classification": "classify",
    "fill-mask": "sparse",
    "sparse-encoding": "sparse",
    "multi-vector-encoding": "late",
}
_ALONE = ("embed", "sparse", "late")  # kinds of which no other can be made


def open_model(options: ModelOptions, device: str, **session: Any) -> tuple[TextModel, Served]:
    """The model on `device` ("cpu", "cuda", "cuda:1"), run once, and what it is.

    `session` are further arguments of TextModel. Raises BertfuseError for a model that cannot be served as asked.
    """
    check(options)
    place = device.partition(":")[0]
    budget = options.max_batch_tokens or MAX_BATCH_TOKENS[place]
    settings: dict[str, Any] = {"library": options.library, "max_batch_tokens": budget, "device": device} | session
    found = _opened(Path(options.folder), **settings)
    served = describe(found, options, device)
    if isinstance(found, ImageModel):
        return found, served
    settings["session"] = found.session
    kind = _CLASSES[served.kind]
    if SENTENCE in found.outputs and served.kind == "sparse":
        kind = SparseEncoder
    model = kind(found.path, max_seq_length=served.max_input_tokens, **settings)
    model.runs = found.runs
    return model, served


def _opened(folder: Path, **settings: Any) -> TextModel:
    if takes_images(folder if folder.is_dir() else folder_of(folder)):
        return Encoder(folder, **settings)
    return TextModel(folder, **settings)


def check(options: ModelOptions) -> None:
    """Raises BertfuseError for an option that no model can have."""
    if options.kind not in ("auto", *KINDS):
        raise BertfuseError(f"--task {options.kind}: choose from auto, {', '.join(KINDS)}")
    numbers = (("--max-length", options.max_length), ("--max-batch-tokens", options.max_batch_tokens))
    for option, value in numbers:
        if value is not None and value < 1:
            raise BertfuseError(f"{option} {value}: give 1 or more")


def describe(model: TextModel, options: ModelOptions, device: str) -> Served:
    """Runs the model on a text or two. Raises BertfuseError where it cannot be served as `options.kind`."""
    if isinstance(model, ImageModel):
        return _of_images(model, options, device)
    longest = options.max_length
    if longest is not None and longest > model.max_seq_length:
        raise BertfuseError(f"--max-length {longest}: {model.path} takes {model.max_seq_length} tokens at most")
    task = task_of(model)
    if task not in _KIND_OF_TASK or (task == "fill-mask" and options.kind != "sparse"):
        beside = " but by --task sparse" if task == "fill-mask" else f"; {', '.join(KINDS)} are"
        raise BertfuseError(f"{model.path}: is a model for {task}, which is not served{beside}")
    labels, kind, found = 0, options.kind, _KIND_OF_TASK[task]
    if found == "classify":
        scores = next(iter(model.run([("a", "b")], ["logits"]))).outputs["logits"]
        labels = scores.shape[1]
        found = "rerank" if labels == 1 else "classify"
    if kind == "auto":
        kind = found
    elif (kind if kind in _ALONE else "") != (found if found in _ALONE else "") or (kind == "rerank" and labels > 1):
        what = f"{labels} labels" if labels else "no labels"
        raise BertfuseError(f"--task {kind}: {model.path} is a model for {task} with {what}; leave --task out")
    more: dict[str, Any] = {"max_input_tokens": longest or model.max_seq_length, "labels": labels}
    more |= _vectors(model) if kind == "embed" else _late(model, longest) if kind == "late" else {}
    return _served(model, options, device, kind, **more)


def _served(model: TextModel, options: ModelOptions, device: str, kind: str, **more: Any) -> Served:
    return Served(
        path=str(model.path.resolve()),
        name=options.name or model.folder.resolve().name,
        kind=kind,
        device=device,
        library=options.library,
        dtype=_dtype(model),
        max_batch_tokens=options.max_batch_tokens or MAX_BATCH_TOKENS[device.partition(":")[0]],
        **more,
    )


def look_at(
    folder: Path,
    *,
    kind: str = "auto",
    name: str | None = None,
    device: str = "cpu",
    library: str = "auto",
    max_length: int | None = None,
) -> Served:
    """What the model is, found out on the CPU whatever `device` says; it need not be there on this machine."""
    options = ModelOptions(str(folder), name=name, kind=kind, library=library, max_length=max_length)
    check(options)
    return describe(_opened(folder, device="cpu"), options, device)


def _vectors(model: TextModel) -> dict[str, Any]:
    encoder = Encoder(model.path, session=model.session)
    return _sizes(encoder.encode(["a", "the river"])) | {
        "token_rows": bool({"token_embeddings", "last_hidden_state"} & set(model.outputs)),
        "prompts": tuple(encoder.prompts.items()),
        "default_prompt": encoder.prompts.get(encoder.default_prompt_name or "", ""),
    }


def _late(model: TextModel, longest: int | None) -> dict[str, Any]:
    encoder = MultiVectorEncoder(model.path, session=model.session)
    most = encoder.reader(DOCUMENT).max_seq_length
    if longest is not None and longest > most:
        raise BertfuseError(f"--max-length {longest}: {model.path} takes {most} tokens of a document at most")
    try:
        encoder.reader(QUERY)
        queries = True
    except BertfuseError:
        queries = False
    return _sizes(encoder.encode_document("the river")) | {
        "token_rows": True,
        "max_input_tokens": longest or most,
        "takes_queries": queries,
        "prompts": tuple(encoder.prompts.items()),
        "default_prompt": encoder.prompts.get(encoder.default_prompt_name or "", ""),
    }


def _of_images(model: TextModel, options: ModelOptions, device: str) -> Served:
    if options.kind not in ("auto", "embed"):
        raise BertfuseError(f"--task {options.kind}: {model.path} is a model of images; leave --task out")
    image = np.zeros((2, 3, 3), np.uint8)
    more = _sizes(model.encode([image])) | {"image_size": model.image_size, "modality": IMAGE}
    return _served(model, options, device, "embed", max_input_tokens=0, **more)


def _sizes(vectors: np.ndarray) -> dict[str, Any]:
    unit = np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-2)
    return {"dimension": int(vectors.shape[1]), "unit_length": bool(unit)}


def _dtype(model: TextModel) -> str:
    """What the model computes in, by the type of its first output."""
    named = {"float": "float32"}
    kind = model.session.get_outputs()[0].type.removeprefix("tensor(").removesuffix(")")
    return named.get(kind, kind)
