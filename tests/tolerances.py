"""The package's table of tolerances; this checkout's on a GPU host without the package."""

from __future__ import annotations

try:
    from bertfuse.qualify.tolerances import TOLERANCES, Tolerance, assert_close
except ImportError:
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from qualify.tolerances import TOLERANCES, Tolerance, assert_close

__all__ = ["TOLERANCES", "Tolerance", "assert_close"]
