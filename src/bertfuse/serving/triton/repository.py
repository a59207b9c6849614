"""`bertfuse triton`: writes a model repository.

A model of it takes texts: a Python model (`python_model.py`) that tokenises, pools and applies activations by
bertfuse's own classes. What it runs is in the same process, or another model of the repository, in Triton's
onnxruntime or tensorrt backend.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from bertfuse.errors import BertfuseError
from bertfuse.export.folder import output_folder
from bertfuse.export.source import copy_files
from bertfuse.graph_rewrite.spec import DOMAIN, QUANTIZED_KEY
from bertfuse.inference.activations import labels_of
from bertfuse.inference.model import TextModel
from bertfuse.model_folder.files import MODEL_FILE, ONNX_FOLDER
from bertfuse.model_folder.towers import TEXT
from bertfuse.runtime.ragged_inputs import LONGEST, OFFSETS
from bertfuse.runtime.trt.run import read_description
from bertfuse.serving.served import Served

from .config import Message, Name, config, tensor, text

BACKENDS = ("onnxruntime", "tensorrt", "python")
LIBRARY = "libbertfuse_ort.so"
PYTHON_MODEL = "from bertfuse.serving.triton.python_model import TritonPythonModel\n\n__all__ = ['TritonPythonModel']\n"
PIPELINE_FILE = "pipeline.json"  # what the Python model reads
FOLDER = "model"  # tokenizer, configuration and, for the Python backend alone, the ONNX file


@dataclass(frozen=True)
class Options:
    """Of the models in the repository.

    libraries: the folder of libbertfuse_ort.so as the server sees it.
    queue_delay: microseconds that a request waits for others.
    instances: copies of the model on each GPU, or on the CPU.
    """

    libraries: str = "/opt/bertfuse"
    max_batch_size: int = 64
    queue_delay: int = 500
    instances: int = 1


def write_repository(
    served: Served,
    output: Path,
    *,
    backend: str = "onnxruntime",
    plan: Path | None = None,
    options: Options,
    overwrite: bool = False,
) -> list[str]:
    """Adds the models to the repository `output`, a new or an old one; their names, the one for texts first.

    Raises BertfuseError where a model of such a name is there already and is not to be written over, or one cannot be
    had in that backend.
    """
    if backend not in BACKENDS:
        raise BertfuseError(f"--backend {backend}: choose from {', '.join(BACKENDS)}")
    if (plan is not None) != (backend == "tensorrt"):
        raise BertfuseError("--plan FILE.plan goes with --backend tensorrt, and that needs it")
    if not re.fullmatch(r"[\w.-]+", served.name):
        raise BertfuseError(f"--name {served.name!r}: letters, digits, dots, - and _ make the name of a folder")
    if served.kind not in ("embed", "rerank", "classify") or served.modality != TEXT:
        raise BertfuseError(
            f"{served.path}: Triton gets vectors, scores and labels of texts alone; 'bertfuse serve' takes this model"
        )
    model = TextModel(served.path, device="cpu")
    gpu = served.device.startswith("cuda") or backend == "tensorrt"
    inner = {"onnxruntime": f"{served.name}_onnx", "tensorrt": f"{served.name}_plan", "python": None}[backend]
    names = [served.name, inner] if inner else [served.name]
    there = [output / name for name in names if (output / name).exists()]
    if there and not overwrite:
        raise BertfuseError(f"{there[0]}: is there already; give another --name, or write over it with --overwrite")
    stale = [str(file.relative_to(output)) for folder in there for file in folder.rglob("*") if file.is_file()]
    pipeline: dict[str, Any] = {"kind": served.kind, "max_seq_length": served.max_input_tokens}
    with output_folder(output, stale) as scratch:
        if backend == "onnxruntime":
            assert inner is not None
            made = _onnx_model(model, served, inner, gpu, options)
            _write(scratch / inner, made)
            copy_onnx(model.path, scratch / inner / "1" / MODEL_FILE)
            pipeline["runs"] = _session(model, inner, options.max_batch_size)
        elif backend == "tensorrt":
            assert inner is not None and plan is not None
            made, pipeline["runs"] = _plan_model(model, inner, plan, options)
            _write(scratch / inner, made)
            shutil.copyfile(plan, scratch / inner / "1" / "model.plan")
            pipeline["max_seq_length"] = min(served.max_input_tokens, pipeline["runs"]["longest"])
        # Of those that call another model one tokenises while the other waits for its answer.
        count = options.instances * (1 if backend == "python" else 2)
        made = text_model(model, served, gpu and backend == "python", replace(options, instances=count))
        _write(scratch / served.name, made)
        version = scratch / served.name / "1"
        (version / "model.py").write_text(PYTHON_MODEL, encoding="utf-8")
        copy_files(model.folder, version / FOLDER, without=model.folder / ONNX_FOLDER)
        if backend == "python":
            copy_onnx(model.path, version / FOLDER / ONNX_FOLDER / MODEL_FILE)
            pipeline["library"] = served.library
        if served.kind == "classify":
            labels = labels_of(model.config, _labels(model))
            (scratch / served.name / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")
        (version / PIPELINE_FILE).write_text(json.dumps(pipeline, indent=2) + "\n", encoding="utf-8")
    return names


def text_model(model: TextModel, served: Served, gpu: bool, options: Options) -> Message:
    """The model that takes texts. One that only tokenises and pools runs on the CPU."""
    inputs = [tensor("text", "string", [1])]
    if served.kind == "embed":
        outputs = [tensor("embedding", "float32", [served.dimension])]
    elif served.kind == "rerank":
        inputs = [tensor("query", "string", [1]), *inputs]
        outputs = [tensor("score", "float32", [1])]
    else:
        outputs = [tensor("scores", "float32", [_labels(model)], label_filename="labels.txt")]
    return config(
        served.name,
        "python",
        inputs,
        outputs,
        max_batch_size=options.max_batch_size,
        gpu=gpu,
        instances=options.instances,
        queue_delay=options.queue_delay,
    )


def _onnx_model(model: TextModel, served: Served, name: str, gpu: bool, options: Options) -> Message:
    """The ONNX file in the onnxruntime backend, with the op library where it runs on a GPU."""
    session = model.session
    more: dict[str, Any] = {}
    outputs = session.get_outputs()
    if model.ragged:
        inputs = [
            tensor(value.name, value.type, [-1], allow_ragged_batch=True)
            for value in session.get_inputs()
            if value.name not in (OFFSETS, LONGEST)
        ]
        kinds = {OFFSETS: "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", LONGEST: "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"}
        more["batch_input"] = [
            {
                "kind": Name(kind),
                "target_name": target,
                "data_type": Name("TYPE_INT32"),
                "source_input": "input_ids",
            }
            for target, kind in kinds.items()
        ]
        tokens = session.get_inputs()[0].shape[0]
        of_tokens = [value.name for value in outputs if value.shape[:1] == [tokens]]
        if of_tokens:
            more["batch_output"] = [
                {
                    "target_name": output,
                    "kind": Name("BATCH_SCATTER_WITH_INPUT_SHAPE"),
                    "source_input": "input_ids",
                }
                for output in of_tokens
            ]
        shapes = [value.shape if value.name in of_tokens else value.shape[1:] for value in outputs]
    else:
        inputs = [tensor(value.name, value.type, value.shape[1:]) for value in session.get_inputs()]
        shapes = [value.shape[1:] for value in outputs]
    made = [tensor(value.name, value.type, shape) for value, shape in zip(outputs, shapes, strict=True)]
    if gpu or served.library == "always" or (served.library == "auto" and _wants_library(model.path)):
        more["model_operations"] = {"op_library_filename": [f"{options.libraries.rstrip('/')}/{LIBRARY}"]}
    return config(
        name,
        "onnxruntime",
        inputs,
        made,
        max_batch_size=options.max_batch_size,
        gpu=gpu,
        instances=options.instances,
        queue_delay=options.queue_delay,
        **more,
    )


def _wants_library(path: Path) -> bool:
    """Whether a CPU server is to have the library: nothing else runs the model, or its quantised products gain much.

    Elsewhere it would gain a little, and have to be put on every server that takes the model.
    """
    model = onnx.load(path, load_external_data=False)
    bodies = {(function.domain, function.name) for function in model.functions}
    bare = any(node.domain == DOMAIN and (DOMAIN, node.op_type) not in bodies for node in model.graph.node)
    return bare or any(entry.key == QUANTIZED_KEY for entry in model.metadata_props)


def _plan_model(model: TextModel, name: str, plan: Path, options: Options) -> tuple[Message, dict[str, Any]]:
    """The engine in the tensorrt backend, which wants every output named; its sizes are those of the engine."""
    found = read_description(plan)
    if not plan.is_file():
        raise BertfuseError(f"{plan}: no such file; 'bertfuse engine' makes one")
    if not found:
        raise BertfuseError(f"{plan}: has no {plan.name}.json beside it, which says what the engine takes")
    if found.get("backend") != "tensorrt":
        raise BertfuseError(f"{plan}: is an engine of TensorRT for RTX; Triton runs TensorRT's: --backend tensorrt")
    if set(found["inputs"]) != {value.name for value in model.session.get_inputs()} or model.ragged:
        raise BertfuseError(f"{plan}: takes {', '.join(found['inputs'])}, unlike {model.path}; name the engine's model")
    bounds = [entry for entry in found["shapes"].values() if len(entry["max"]) == 2]
    batch = min((entry["max"][0] for entry in bounds), default=found["inputs"]["input_ids"]["shape"][0])
    shortest = max((entry["min"][1] for entry in bounds), default=1)
    longest = min((entry["max"][1] for entry in bounds), default=found["inputs"]["input_ids"]["shape"][1])
    inputs, outputs = (
        [tensor(key, value["dtype"], value["shape"][1:]) for key, value in found[part].items()]
        for part in ("inputs", "outputs")
    )
    made = config(
        name,
        "tensorrt",
        inputs,
        outputs,
        max_batch_size=batch,
        gpu=True,
        instances=options.instances,
        queue_delay=options.queue_delay,
    )
    session = _session(model, name, batch)
    for value in session["inputs"]:  # of TensorRT 8 and 9, which have no int64
        value["type"] = f"tensor({found['inputs'][value['name']]['dtype']})"
    return made, session | {"shortest": shortest, "longest": longest}


def _session(model: TextModel, name: str, max_batch_size: int) -> dict[str, Any]:
    """What the Python model must know of the model that it calls, to take it for an onnxruntime session."""
    values = {
        part: [{"name": value.name, "type": value.type, "shape": list(value.shape)} for value in found]
        for part, found in (("inputs", model.session.get_inputs()), ("outputs", model.session.get_outputs()))
    }
    metadata = dict(model.session.get_modelmeta().custom_metadata_map)
    return {"model": name, "max_batch_size": max_batch_size, "ragged": model.ragged, "metadata": metadata, **values}


def _labels(model: TextModel) -> int:
    return next(iter(model.run(["a"], ["logits"]))).outputs["logits"].shape[1]


def _write(folder: Path, message: Message) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text(message), encoding="utf-8")


def copy_onnx(source: Path, target: Path) -> None:
    """The file, and those that hold its weights, under their own names."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    skeleton = onnx.load(source, load_external_data=False)
    entries = (entry for value in skeleton.graph.initializer for entry in value.external_data)
    for location in {entry.value for entry in entries if entry.key == "location"}:
        shutil.copyfile(source.parent / location, target.parent / location)
