"""Custom-op libraries in polygraphy: the loader in a script, and `polygraphy run --onnxrt-ops` as users type it."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from polygraphy.backend.onnx import BytesFromOnnx, OnnxFromPath
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.comparator import Comparator, SimpleCompareFunc
from polygraphy.exception import PolygraphyException
from polygraphy.logger import G_LOGGER

from bertfuse.graph_rewrite import fuse_file
from bertfuse.runtime.polygraphy_loader import SessionWithOpLibraries
from tests.tiny_models import exported, inputs


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fused file without op bodies: nothing but the library runs it."""
    path = tmp_path_factory.mktemp("bare") / "model.onnx"
    fuse_file(exported(), path, functions=False)
    return path


def test_loader_in_a_script(bare: Path, library: Path) -> None:
    sessions = [
        SessionWithOpLibraries(str(bare)),
        SessionWithOpLibraries(BytesFromOnnx(OnnxFromPath(str(bare))), [library], ["CPU"]),
    ]
    runners = [OnnxrtRunner(SessionWithOpLibraries(str(exported()), [])), *map(OnnxrtRunner, sessions)]
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        results = Comparator.run(runners, data_loader=[inputs(2, 7)])
        assert len(results) == 3
        # Its float32 sums are in another order.
        assert Comparator.compare_accuracy(results, compare_func=SimpleCompareFunc(atol=1e-4, rtol=1e-3))
        original, ours = results[0][1][0], results[1][1][0]
    assert np.abs(original["last_hidden_state"] - ours["last_hidden_state"]).max() > 0


def test_what_does_not_load(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        with pytest.raises(PolygraphyException, match=r"absent\.so: cannot be registered"):
            SessionWithOpLibraries(str(bare), [tmp_path / "absent.so"])()
        with pytest.raises(PolygraphyException, match=r"no execution provider 'tpu'; it has .*CPUExecutionProvider"):
            SessionWithOpLibraries(str(bare), providers=["tpu"])()
        monkeypatch.setenv("BERTFUSE_ORT_LIBRARY", str(tmp_path / "absent.so"))
        with pytest.raises(PolygraphyException, match="BERTFUSE_ORT_LIBRARY names it"):
            SessionWithOpLibraries(str(bare))()


def test_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="polygraphy.run.plugins", name="bertfuse")
    assert [type(group).__name__ for group in found.load()()] == ["OpLibraryArgs", "OnnxrtOpsRunnerArgs"]


def polygraphy(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "polygraphy"), "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


def test_polygraphy_run(bare: Path, library: Path, tmp_path: Path) -> None:
    # polygraphy's own random inputs are ids within the smallest of the model's tables.
    data = ("--input-shapes", *(f"{name}:[2,7]" for name in inputs(2, 7)), "--val-range", "[0,1]")
    saved = tmp_path / "results.json"
    ran = polygraphy(exported(), "--onnxrt", *data, "--save-outputs", saved)
    assert ran.returncode == 0, ran.stderr
    ours = (bare, "--onnxrt-ops", "--op-libraries", library, "--providers", "cpu", *data)
    ran = polygraphy(*ours, "--load-outputs", saved, "--atol", "1e-4", "--rtol", "1e-3")
    assert ran.returncode == 0 and "onnxrt-ops" in ran.stdout and "PASSED" in ran.stdout, ran.stdout + ran.stderr
    assert polygraphy(*ours, "--load-outputs", saved, "--atol", "0", "--rtol", "0").returncode == 1
    ran = polygraphy(bare, "--onnxrt", *data)
    assert ran.returncode == 1 and "is not a registered function/op" in ran.stdout + ran.stderr
    script = polygraphy(*ours, "--gen-script", "-").stdout
    assert "from bertfuse.runtime.polygraphy_loader import SessionWithOpLibraries" in script
