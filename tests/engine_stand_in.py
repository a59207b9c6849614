"""A file in a TensorRT engine's place, for what reads only the description beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def plan_of(path: Path, **changes: Any) -> Path:
    """With the description that `bertfuse engine` writes for the encoder of tests/checkpoints.py."""
    path.write_bytes(b"no engine")
    sizes = {"min": [1, 16], "opt": [8, 32], "max": [24, 40]}
    names = ("input_ids", "attention_mask", "token_type_ids")
    made = {
        "backend": "tensorrt",
        "shapes": dict.fromkeys(names, sizes),
        "inputs": {name: {"dtype": "int64", "shape": [-1, -1]} for name in names},
        "outputs": {
            "last_hidden_state": {"dtype": "half", "shape": [-1, -1, 32]},
            "sentence_embedding": {"dtype": "half", "shape": [-1, 32]},
        },
    }
    Path(f"{path}.json").write_text(json.dumps(made | changes))
    return path
