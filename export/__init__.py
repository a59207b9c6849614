"""Hugging Face model -> model.onnx, with dynamic batch and sequence, tokenizer and config beside it."""

from .model import export_model
from .tasks import TASKS, Task

__all__ = ["TASKS", "Task", "export_model"]
