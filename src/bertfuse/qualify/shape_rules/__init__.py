"""Shape rules: what they say of random models of every operator, against what ONNX Runtime computes.

hunt    many models, drawn and checked in a process of their own; what is wrong is made small
"""

from .hunting import Finding, Report, hunt

__all__ = ["Finding", "Report", "hunt"]
