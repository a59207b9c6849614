"""Mutants: a model changed at random must be fused and equal, or refused.

hunt    many mutants of one model, in a process of their own; findings are made small and written
judge   one model: fused, and compared with itself unfused on given inputs
"""

from .hunting import hunt
from .report import Finding, Report
from .verdict import Verdict, judge

__all__ = ["Finding", "Report", "Verdict", "hunt", "judge"]
