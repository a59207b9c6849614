"""Hugging Face model -> a model folder with onnx/model.onnx, of dynamic batch and sequence."""

from .model import export_model
from .tasks import TASKS, Task

__all__ = ["TASKS", "Task", "export_model"]
