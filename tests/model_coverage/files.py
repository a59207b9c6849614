"""Every way in which a model becomes an ONNX file: exporters and what people do with their files afterwards."""

from __future__ import annotations

import fcntl
import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from bertfuse.export import export_model
from bertfuse.export.exporters import OPSETS
from bertfuse.export.quiet import quiet
from bertfuse.export.tasks import AUTO

from .families import FAMILIES, Family

EXPORTERS, ATTENTIONS = ("dynamo", "torchscript"), ("sdpa", "eager")
_INPUT_TYPES = {"int32": torch.int32, "int64": torch.int64, "bool": torch.bool, "float32": torch.float32}


@dataclass(frozen=True)
class Recipe:
    """How to make one file.

    inputs  names, each maybe with a type ("attention_mask:bool"); empty: those that export_model chooses
    after   a key of AFTER: what is done with the exported file
    """

    family: str
    task: str = "feature-extraction"
    exporter: str = "dynamo"
    attention: str = "sdpa"
    opset: int | None = None
    dtype: str = "fp32"
    static: bool = False
    inputs: tuple[str, ...] = ()
    after: str = ""

    @property
    def possible(self) -> bool:
        """Whether the exporter writes that opset and type at all."""
        _, oldest, newest = OPSETS[self.exporter]
        half = self.dtype != "fp32" and self.exporter == "torchscript" and self.attention == "sdpa"
        return not half and (self.opset is None or oldest <= self.opset <= newest)


def make(recipe: Recipe, folder: Path) -> tuple[Path, Path]:
    """The exported file and the one after `recipe.after`, in `folder`, which other processes may share."""
    plain = replace(recipe, after="")
    home = folder / hashlib.sha256(repr(plain).encode()).hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    exported = home / "model.onnx"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not exported.exists():
            with quiet():
                _export(plain, home)
    if not recipe.after:
        return exported, exported
    changed = home / f"{recipe.after.replace(' ', '-')}.onnx"
    AFTER[recipe.after](exported, changed)
    return exported, changed


def _export(recipe: Recipe, home: Path) -> None:
    family = FAMILIES[recipe.family]
    if recipe.inputs or family.sees:
        _export_by_hand(family, recipe, home / "model.onnx")
        return
    made = export_model(
        family.build(recipe.task),
        home,
        task=recipe.task,
        opset=recipe.opset,
        exporter=recipe.exporter,
        attention=AUTO if recipe.attention == "sdpa" else recipe.attention,  # MPNet has eager alone
        dtype=recipe.dtype,
        static_shape=(2, 7) if recipe.static else None,
    )
    made.replace(home / "model.onnx")


def _export_by_hand(family: Family, recipe: Recipe, path: Path) -> None:
    """torch.onnx.export of chosen inputs in chosen types, as people do without any tool."""
    model = family.build(recipe.task)
    model.set_attn_implementation(recipe.attention)
    names, tensors = zip(*(_example(spec) for spec in recipe.inputs or ("pixel_values",)), strict=True)
    axes = {0: "batch"} if family.sees else {0: "batch", 1: "sequence"}

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            return self.model(**dict(zip(names, given, strict=True)))[0]

    options: dict[str, Any] = {
        "input_names": list(names),
        "output_names": ["output"],
        "opset_version": recipe.opset or OPSETS[recipe.exporter][0],
        "verbose": False,
    }
    if recipe.exporter == "dynamo":
        shapes = None if recipe.static else {"given": tuple(dict(axes) for _ in names)}
        options |= {"dynamic_shapes": shapes, "external_data": False}
    elif not recipe.static:
        options["dynamic_axes"] = {name: axes for name in names}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = path.with_name("made.onnx")
        torch.onnx.export(Positional().eval(), tensors, str(made), dynamo=recipe.exporter == "dynamo", **options)
    made.rename(path)


def _example(spec: str) -> tuple[str, torch.Tensor]:
    name, _, dtype = spec.partition(":")
    if name == "pixel_values":
        return name, torch.zeros(2, 3, 16, 16)
    shape = (2, 7)
    values = {
        "input_ids": torch.arange(14).reshape(shape) + 5,
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "token_type_ids": torch.zeros(shape, dtype=torch.int64),
        "position_ids": torch.arange(7).expand(shape).contiguous(),
    }[name]
    return name, values.to(_INPUT_TYPES[dtype or "int64"])


def _folded(source: Path, target: Path) -> None:
    """What onnxsim does: constants folded, shapes inferred."""
    import onnx_graphsurgeon as gs

    graph = gs.import_onnx(onnx.shape_inference.infer_shapes(onnx.load(source)))
    onnx.save(gs.export_onnx(graph.fold_constants().cleanup().toposort()), target)


def _onnxscript_optimized(source: Path, target: Path) -> None:
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), target)


def _saved_by_onnxruntime(source: Path, target: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


_OPTIMUM_AXES = {"batch": "batch_size", "sequence": "sequence_length"}


def _optimum_style(source: Path, target: Path) -> None:
    """optimum's names of axes, no metadata, no shapes of intermediate tensors."""
    model = onnx.load(source)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in _OPTIMUM_AXES:
                dim.dim_param = _OPTIMUM_AXES[dim.dim_param]
    del model.metadata_props[:]
    del model.graph.value_info[:]
    onnx.save(model, target)


def _unnamed_axes(source: Path, target: Path) -> None:
    """Dynamic axes of which the file says nothing, not even that two are the same."""
    model = onnx.load(source)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.ClearField("dim_param")
    del model.graph.value_info[:]
    onnx.save(model, target)


def _without_names(source: Path, target: Path) -> None:
    """Nodes without names, tensors by number."""
    model = onnx.load(source)
    kept = {value.name for value in (*model.graph.input, *model.graph.output)} | {""}
    names: dict[str, str] = {}
    for tensor in model.graph.initializer:
        tensor.name = names.setdefault(tensor.name, f"w{len(names)}")
    for node in model.graph.node:
        node.name = ""
        for fields in (node.input, node.output):
            fields[:] = [n if n in kept else names.setdefault(n, f"t{len(names)}") for n in fields]
    del model.graph.value_info[:]
    onnx.save(model, target)


AFTER: dict[str, Callable[[Path, Path], None]] = {
    "constants folded": _folded,
    "onnxscript optimizer": _onnxscript_optimized,
    "onnxruntime basic": _saved_by_onnxruntime,
    "optimum's names": _optimum_style,
    "no names": _without_names,
    "no names of axes": _unnamed_axes,
}


def feed(session: onnxruntime.InferenceSession, batch: int, sequence: int) -> dict[str, np.ndarray]:
    """Random inputs; the last row is padded to half its length. Fixed axes keep their sizes."""
    random = np.random.default_rng(0)
    types = {"int64": np.int64, "int32": np.int32, "bool": bool, "float": np.float32}
    made = {}
    for value in session.get_inputs():
        shape = [d if isinstance(d, int) else s for d, s in zip(value.shape, (batch, sequence), strict=False)]
        shape += value.shape[2:]
        if value.name == "input_ids":
            array = random.integers(4, 97, shape)
            array[-1, (shape[1] + 1) // 2 :] = 1  # RoBERTa's padding, by which it counts positions
        elif value.name == "attention_mask":
            array = np.ones(shape)
            array[-1, (shape[1] + 1) // 2 :] = 0
        elif value.name == "position_ids":
            array = np.broadcast_to(np.arange(shape[1])[::-1], shape)
        elif value.name == "pixel_values":
            array = random.standard_normal(shape)
        else:
            array = random.integers(0, 2, shape)
        made[value.name] = np.ascontiguousarray(array).astype(types[value.type[len("tensor(") : -1]])
    return made
