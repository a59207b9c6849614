"""Says why the tests of other people's tools do not run here, where they do not."""

from __future__ import annotations

import importlib.util

import pytest

from .conftest import PACKAGES


def test_packages_of_the_ecosystem() -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"without {', '.join(missing)}: 'make test-ecosystem' has an environment with them")
