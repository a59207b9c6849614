"""docs/corpus.md: every command runs as it stands; those with --ray in tests/ecosystem."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import invoke
from tests.corpora import page_commands, page_folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_folder(tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("command", [line for line in page_commands() if "--ray" not in line])
def test_command(command: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if command.startswith("bertfuse "):
        monkeypatch.chdir(home)
        said = invoke(*shlex.split(command)[1:]).stdout
    else:  # what goes through a pipe
        place = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        shell = ["bash", "-c", command]
        ran = subprocess.run(shell, cwd=home, env=place, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        said = ran.stdout
    assert f"{80 if ' more/ ' in command else 40} rows in 1 files in" in said, said
