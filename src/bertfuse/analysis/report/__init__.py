"""One HTML page about a fusion: what was fused, what it looks like, how exact and how fast it is."""

from .collect import PAGE_FILE, Report, collect
from .page import render, write_report

__all__ = ["PAGE_FILE", "Report", "collect", "render", "write_report"]
