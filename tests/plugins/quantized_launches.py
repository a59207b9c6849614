"""Quantised calls on a CUDA runtime that launches nothing (fake_cudart/): what they launch, one JSON document.

A program, since only one such library fits a process: python -m tests.plugins.quantized_launches LIBRARY SEED
"""

from __future__ import annotations

import ctypes
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

from onnx import TensorProto

from bertfuse.graph_rewrite.ops import OPS
from bertfuse.runtime import native
from tests.launches import BASE, BEYOND, STREAM, Recorder

_FLOATS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_PRODUCTS = ("FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm", "FusedGemmGeluLayerNorm")
_WEIGHTS = {"int8": TensorProto.INT8, "fp8": TensorProto.FLOAT8E4M3FN}
_BYTES = {
    TensorProto.INT8: 1,
    TensorProto.FLOAT8E4M3FN: 1,
    TensorProto.FLOAT: 4,
    TensorProto.FLOAT16: 2,
    TensorProto.BFLOAT16: 2,
}


class Call:
    """A random call, its tensors one after the other in memory that nobody touches; the workspace behind them."""

    def __init__(self, chance: random.Random, device: int) -> None:
        self.op = chance.choice((*_PRODUCTS, "EmbedLayerNorm"))
        dtype = chance.choice(list(_FLOATS))
        self.rows, self.n = chance.randint(1, 3000), chance.randint(1, 40) * chance.choice([1, 8, 64])
        self.k = chance.randint(1, 40) * chance.choice([1, 16, 64])
        self.weight = "int8" if self.op == "EmbedLayerNorm" else chance.choice(list(_WEIGHTS))
        t, s, w = _FLOATS[dtype], TensorProto.FLOAT, _WEIGHTS[self.weight]
        shapes: dict[str, tuple[int, list[int]]] = {
            "x": (t, [self.rows, self.k]),
            "weight": (w, [self.n, self.k]),
            "weight_scale": (s, [self.n]),
            "residual": (t, [self.rows, self.n]),
            **{name: (t, [self.n]) for name in ("bias", "gamma", "beta")},
            **({"x_smooth": (s, [1, self.k])} if chance.random() < 0.5 else {}),
            **({"x_scale": (s, [])} if chance.random() < 0.3 else {}),
            "ids": (TensorProto.INT64, [1, self.rows]),
            "word_table": (w, [50, self.n]),
            "word_scale": (s, [50]),
            "position_table": (t, [self.rows, self.n]),
        }
        spec, self.dtype = OPS[self.op], dtype
        self.end = 0
        inputs = [self._tensor(shapes.get(tensor.name)) for tensor in spec.inputs]
        leading = [1, self.rows] if self.op == "EmbedLayerNorm" else [self.rows]
        outputs = [self._tensor((t, [*leading, self.n]))]
        constants = sum(1 << i for i, tensor in enumerate(spec.inputs) if tensor.constant and tensor.name in shapes)
        values = [1e-5 if attr.name == "epsilon" else attr.default for attr in spec.attributes]
        self.made = native.Call.of(
            inputs,
            outputs,
            values,
            device_id=device,
            flags=native.NO_CUBLASLT | (native.DETERMINISTIC_ROWS if chance.random() < 0.2 else 0),
            stream=STREAM,
            constant_inputs=constants,
        )

    def _tensor(self, given: tuple[int, list[int]] | None) -> native.Tensor:
        if given is None:
            return native.Tensor.of(native.ABSENT, [])
        dtype, shape = given
        start, size = self.end, _BYTES.get(dtype, 8)
        for length in shape:
            size *= length
        self.end += (size + 255) // 256 * 256
        return native.Tensor.of(dtype, shape, BASE + start)


def run(
    recorder: Recorder, kernel: native.Kernel, call: Call, tactic: int, workspace: int | None = None
) -> dict[str, Any]:
    """What the call with that tactic launches, given as much workspace as it asks for, or so many bytes."""
    made, error = call.made, native.Error()
    made.tactic, made.workspace, made.workspace_size = tactic, None, 0
    found: dict[str, Any] = {
        "op": call.op,
        "dtype": f"{call.dtype}-{call.weight}",
        "sizes": [call.rows, call.n, call.k],
    }
    try:
        size = native.workspace_size(kernel, made) if kernel.workspace_size else 0
        found["workspace"] = size
        made.workspace = BASE + call.end if size else None
        made.workspace_size = size if workspace is None else workspace
        if kernel.describe_tactic:
            found["tactic"] = native.tactic_name_of(kernel, made, tactic)
            text = ctypes.create_string_buffer(256)
            native.check(kernel.describe_problem(ctypes.byref(made), text, len(text), ctypes.byref(error)), error)
            found["problem"] = text.value.decode()
        native.check(kernel.run(ctypes.byref(made), ctypes.byref(error)), error)
    except native.NativeError as failure:
        found["error"] = str(failure)
    events = [json.loads(line) for line in recorder._fake.fake_cudart_take().decode().splitlines()]
    found["launches"] = [(event["launch"], event.get("error", 0)) for event in events if "launch" in event]
    data = [bytes.fromhex(parameter) for event in events for parameter in event.get("parameters", ())]
    words = [word for one in data for word in struct.unpack(f"<{len(one) // 8}Q", one[: len(one) // 8 * 8])]
    end = BASE + call.end + made.workspace_size
    found["beyond"] = sum(end < word < end + BEYOND for word in words)
    return found


def main() -> None:
    recorder, chance = Recorder(Path(sys.argv[1]).resolve()), random.Random(int(sys.argv[2]))
    capabilities = [capability for capability in (80, 89, 90) if capability in recorder.devices]
    recorder._fake.fake_cudart_take()
    found = []
    for _ in range(150):
        capability = chance.choice(capabilities)
        call = Call(chance, recorder.devices.index(capability))
        kernel = recorder._checker.kernel(call.op)
        tactics = [-1]
        if kernel.num_tactics:
            tactics += range(native.num_tactics(kernel, call.made))
        chosen = [-1, *chance.sample(tactics[1:], min(2, len(tactics) - 1))]
        found += [run(recorder, kernel, call, tactic) | {"capability": capability} for tactic in chosen]
        if found[-1]["workspace"]:
            few = chance.randrange(call.rows * (call.k + 4))  # no room for the integers and their scales
            found.append(run(recorder, kernel, call, -1, few) | {"short": True})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
