"""Options that several commands have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

ModelFolder = Annotated[
    Path,
    typer.Argument(metavar="MODEL_DIR", help="Folder that 'bertfuse export' or 'optimize' wrote, or an .onnx file."),
]
Provider = Annotated[str, typer.Option(metavar="cpu|cuda", help="Where the model runs.")]
Library = Annotated[
    str,
    typer.Option(
        metavar="auto|always|never",
        help="Whether the custom-op library is loaded. auto: not on the CPU, where the op bodies are faster.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


# More is a slip of the finger: its arrays would not fit into any memory, nor its numbers into 64 bits.
_LARGEST = 1 << 20


def grid(text: str, option: str) -> list[tuple[int, int]]:
    """The (batch, sequence) sizes of "1x128,8x128"; BertfuseError names the option and the part that is none."""
    from bertfuse.errors import BertfuseError

    sizes = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([1-9]\d*)\s*[xX×]\s*([1-9]\d*)\s*", part)
        if found is None:
            raise BertfuseError(f"{option} {part!r}: write batch x sequence, as in 1x128,8x128")
        size = int(found[1]), int(found[2])
        if max(size) > _LARGEST:
            raise BertfuseError(f"{option} {part!r}: batch and sequence are {_LARGEST} at most")
        sizes.append(size)
    return sizes
