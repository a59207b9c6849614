"""Encoders beyond BERT in their real sizes, as files without weights: both sides draw these from the parameters' names.

A file that carries no weights is small, so that it can be exported and fused on one machine and timed on another.
"""

from __future__ import annotations

import json
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import transformers
from onnx import TensorProto, numpy_helper

from bertfuse.export import export_model
from bertfuse.export.quiet import quiet
from bertfuse.graph_rewrite import fuse_file

_DEBERTA = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 256, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "type_vocab_size": 0, "position_biased_input": False,
}  # fmt: skip
_QWEN = {
    "vocab_size": 151669, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1000000.0,
}  # fmt: skip
_GEMMA = {
    "vocab_size": 262144, "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 24,
    "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256,
    "sliding_window": 512, "use_bidirectional_attention": True, "max_position_embeddings": 2048,
}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any], int]] = {  # class, configuration, what differs, longest text
    "modernbert": ("ModernBertModel", "ModernBertConfig", {}, 8192),
    "nomic": ("NomicBertModel", "NomicBertConfig", {"max_position_embeddings": 8192}, 8192),
    "gte": ("GteModel", "GteConfig", {}, 8192),
    "mpnet": ("MPNetModel", "MPNetConfig", {"max_position_embeddings": 514}, 512),
    "vit": ("ViTModel", "ViTConfig", {}, 197),
    "deberta": ("DebertaV2Model", "DebertaV2Config", _DEBERTA, 512),
    "qwen3": ("Qwen3Model", "Qwen3Config", _QWEN, 8192),
    "gemma": ("Gemma3TextModel", "Gemma3TextConfig", _GEMMA, 2048),
}
SMALL = 16384  # bytes: smaller tensors stay in the file


@cache
def _normal() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((1 << 24) + 43, dtype=np.float32)


def drawn(name: str, shape: tuple[int, ...], centre: float) -> np.ndarray:
    """float32 values of the parameter `name`: matrices of deviation 0.02, vectors of 0.05 about `centre`."""
    base, count = _normal(), int(np.prod(shape))
    begin = zlib.crc32(name.encode()) % base.size
    values = np.resize(np.roll(base, -begin) if count > base.size - begin else base[begin : begin + count], count)
    return (values * 0.02 if len(shape) > 1 else values * 0.05 + centre).reshape(shape)


def build(name: str, device: str = "cpu") -> Any:
    """The float32 model in inference mode."""
    cls, config, changes, _ = MODELS[name]
    options = {"add_pooling_layer": False} if name in ("mpnet", "vit") else {}
    with torch.device(device):
        model = getattr(transformers, cls)(getattr(transformers, config)(**changes), **options).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            centre = round(float(parameter.flatten()[0])) if parameter.ndim == 1 else 0.0
            parameter.copy_(torch.from_numpy(drawn(key, tuple(parameter.shape), centre)))
    return model


def make(name: str, folder: Path) -> dict[str, str]:
    """NAME.own.onnx (exported in float16), NAME.keep.onnx and NAME.remove.onnx (fused), and what each holds fused."""
    model = build(name)
    if name == "vit":
        source = _export_vision(model.half(), folder / f"{name}.exported.onnx")
    else:
        source = export_model(model, folder / name, task="feature-extraction", dtype="fp16")
    made = {"own": strip(source, model, folder / f"{name}.own.onnx")}
    for padding in ("keep",) if name == "vit" else ("keep", "remove"):
        whole = folder / f"{name}.whole.onnx"
        result = fuse_file(source, whole, dtype="fp16", padding=padding)
        where = strip(whole, model, folder / f"{name}.{padding}.onnx")
        made[padding] = f"fused {result.fused} of {result.expected}; {where}"
        for left in (whole, whole.with_name(whole.name + ".data")):
            left.unlink(missing_ok=True)
    return made


def _export_vision(model: Any, path: Path) -> Path:
    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            return self.model(pixel_values=pixel_values)[0]

    pixels = torch.zeros(2, 3, 224, 224, dtype=torch.float16)
    with torch.no_grad(), quiet():
        torch.onnx.export(
            Positional().eval(), (pixels,), str(path), dynamo=True, opset_version=20, external_data=False,
            input_names=["pixel_values"], output_names=["last_hidden_state"], verbose=False,
            dynamic_shapes={"pixel_values": {0: "batch"}},
        )  # fmt: skip
    return path


def strip(path: Path, model: Any, target: Path) -> str:
    """Writes `target` whose large weights are in a file that `fill` makes; says how many bytes these are.

    Raises AssertionError for a large weight whose rows or columns are not rows of the model's parameters.
    """
    proto = onnx.load(path)
    rows: dict[tuple[int, bytes], tuple[str, int]] = {}
    flat = {k: _matrix(p.detach().float().numpy()) for k, p in model.named_parameters() if p.ndim > 1}
    for dtype in (np.float32, np.float16):
        for key, matrix in flat.items():
            starts = np.ascontiguousarray(matrix[:, :16].astype(dtype))
            rows |= {(matrix.shape[1], starts[i].tobytes()): (key, i) for i in range(len(starts))}
    plan, offset = [], 0
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.nbytes < SMALL or array.dtype not in (np.float16, np.float32) or array.ndim < 2:
            continue
        found = next((f for t in (False, True) if (f := _runs(array, t, rows, flat)) is not None), None)
        if found is None:  # computed from parameters: it stays in the file
            if array.nbytes > 8 << 20:
                raise AssertionError(f"{path.name}: {tensor.name} {array.shape} {array.dtype} is of no parameter")
            continue
        plan.append({"offset": offset, "shape": array.shape, "dtype": str(array.dtype)} | found)
        for field in ("raw_data", "float_data", "int32_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in (("location", f"{target.stem}.bin"), ("offset", offset), ("length", array.nbytes)):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, str(value)
        offset += (array.nbytes + 4095) // 4096 * 4096
    target.write_bytes(proto.SerializeToString())
    target.with_suffix(".json").write_text(json.dumps({"bytes": offset, "weights": plan}))
    return f"{len(proto.graph.node)} nodes, {target.stat().st_size >> 10} KiB without {offset >> 20} MiB of weights"


def _matrix(array: np.ndarray) -> np.ndarray:
    return array.reshape(array.shape[0], -1) if array.shape[0] > 1 else array.reshape(-1, array.shape[-1])


def _runs(array: np.ndarray, turned: bool, rows: dict, flat: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """The runs of parameters' rows that make up the array, or its transpose."""
    matrix = array.reshape(-1, array.shape[-1]).T if turned else _matrix(array)
    starts = np.ascontiguousarray(matrix[:, :16])
    runs: list[list[Any]] = []
    for i in range(len(starts)):
        found = rows.get((matrix.shape[1], starts[i].tobytes()))
        if found is None:
            return None
        key, row = found
        if runs and runs[-1][0] == key and runs[-1][1] + runs[-1][2] == row:
            runs[-1][2] += 1
        else:
            runs.append([key, row, 1])
    if not np.array_equal(_of_runs(runs, flat, array.dtype), matrix):
        return None
    return {"turned": turned, "runs": runs}


def _of_runs(runs: list[list[Any]], flat: dict[str, np.ndarray], dtype: Any) -> np.ndarray:
    parts = [flat[key][row : row + count].astype(dtype) for key, row, count in runs]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def fill(model: Any, path: Path) -> None:
    """Writes the weights of a file that `strip` made from those of the same model."""
    plan = json.loads(path.with_suffix(".json").read_text())
    flat = {k: _matrix(p.detach().float().cpu().numpy()) for k, p in model.named_parameters() if p.ndim > 1}
    with path.with_suffix(".bin").open("wb") as file:
        file.truncate(plan["bytes"])
        for weight in plan["weights"]:
            matrix = _of_runs(weight["runs"], flat, np.dtype(weight["dtype"]))
            file.seek(weight["offset"])
            np.ascontiguousarray(matrix.T if weight["turned"] else matrix).tofile(file)
            file.flush()
