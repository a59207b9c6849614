"""The one error that a user's mistake raises, and how it becomes one line and exit code 2."""

from __future__ import annotations

from .printable import printable


class BertfuseError(Exception):
    """Bad input. The message is one line: what was wrong, where (file, node or tensor), and what to do."""

    def __str__(self) -> str:
        return printable(super().__str__())


class FusionError(BertfuseError):
    """A model that cannot be read, checked or rewritten."""


class ExportError(BertfuseError):
    """A Hugging Face model that cannot be loaded or exported."""


class RuntimeLibraryError(BertfuseError):
    """A custom-op library that is missing or does not load."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def without_onnxruntime(error: ModuleNotFoundError) -> BertfuseError:
    """What to say where `error` is that onnxruntime is not installed; any other error is raised again."""
    if error.name is None or error.name.split(".")[0] != "onnxruntime":
        raise error
    return RuntimeLibraryError(
        "onnxruntime is not installed: pip install 'bertfuse[cpu]', or 'bertfuse[gpu]' for NVIDIA GPUs, not both"
    )
