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
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Write over what is at the place that -o names.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


def check_new(target: Path, overwrite: bool, source: str = "") -> None:
    """Raises BertfuseError where a model would be written over a file, or into a folder that holds anything.

    Not where that is the `source`, which no option allows to be written over, as is said later.
    """
    from bertfuse.errors import BertfuseError

    if overwrite or (source and Path(source).resolve() == target.resolve()):
        return
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        what = "is there already" if target.is_file() else "holds files already"
        raise BertfuseError(f"{target}: {what}; name another place, or write over it with --overwrite")


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
