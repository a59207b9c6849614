"""config.pbtxt: messages of Triton's model_config.proto, as dictionaries and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bertfuse.errors import BertfuseError

Message = dict[str, Any]


class Name(str):
    """A value of an enumeration, which is written without quotes."""


_TYPES = {
    "int64": "INT64",
    "int32": "INT32",
    "bool": "BOOL",
    "float": "FP32",
    "float32": "FP32",
    "float16": "FP16",
    "half": "FP16",
    "bfloat16": "BF16",
    "bf16": "BF16",
    "string": "STRING",
}


def tensor(name: str, kind: str, dims: Sequence[Any], **more: Any) -> Message:
    """An input or output; `kind` as onnxruntime or TensorRT names it, `dims` without the batch; -1 is any size."""
    kind = kind.removeprefix("tensor(").removesuffix(")")
    if kind not in _TYPES:
        raise BertfuseError(f"{name} is of type {kind}, which Triton does not have; it has {', '.join(sorted(_TYPES))}")
    sizes = [size if isinstance(size, int) and size > 0 else -1 for size in dims]
    return {"name": name, "data_type": Name(f"TYPE_{_TYPES[kind]}"), "dims": sizes, **more}


def config(
    name: str,
    backend: str,
    inputs: Sequence[Message],
    outputs: Sequence[Message],
    *,
    max_batch_size: int,
    gpu: bool,
    instances: int,
    queue_delay: int,
    **more: Any,
) -> Message:
    """A model whose requests are put together; `queue_delay` in microseconds, `instances` on each GPU."""
    return {
        "name": name,
        "backend": backend,
        "max_batch_size": max_batch_size,
        "input": list(inputs),
        "output": list(outputs),
        **more,
        "instance_group": [{"kind": Name("KIND_GPU" if gpu else "KIND_CPU"), "count": instances}],
        "dynamic_batching": {"max_queue_delay_microseconds": queue_delay},
    }


def text(message: Mapping[str, Any], depth: int = 0) -> str:
    """Protobuf's text format. Messages in lists stand on a line each."""
    lines = []
    for field, value in message.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join(f"  {_inline(entry)}" for entry in value)
            lines.append(f"{field} [\n{rows}\n]")
        elif isinstance(value, dict):
            lines.append(f"{field} {_inline(value)}")
        else:
            lines.append(f"{field}: {_scalar(value)}")
    return "\n".join(lines) + "\n"


def _inline(value: Mapping[str, Any]) -> str:
    parts = [
        f"{field} {_inline(inner)}" if isinstance(inner, dict) else f"{field}: {_scalar(inner)}"
        for field, inner in value.items()
    ]
    return "{ " + " ".join(parts) + " }"


def _scalar(value: Any) -> str:
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[ " + ", ".join(map(_scalar, value)) + " ]"
    return json.dumps(value)  # numbers, and strings with escapes that protobuf reads as well
