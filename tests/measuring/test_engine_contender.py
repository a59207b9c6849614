"""An engine as a contender, with a session in place of TensorRT's: what it is given, and when it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polygraphy.cuda
import pytest

from bertfuse.errors import BertfuseError
from bertfuse.measuring import engine_contender as module
from bertfuse.measuring.engine_contender import engine_contender

LONGEST = 16


class Array:
    """In place of polygraphy's DeviceArray."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype, self.array = shape, dtype, None

    def copy_from(self, array: np.ndarray) -> None:
        self.array = array.copy()


class Session:
    def __init__(self, plan: Path) -> None:
        self.plan, self.fed = plan, []
        self.runner = SimpleNamespace(infer=lambda feed_dict, **options: self.fed.append((feed_dict, options)))

    def __enter__(self) -> Session:
        return self

    def get_inputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="input_ids", type="tensor(int32)", shape=[-1, -1])]

    def check_shapes(self, feed: dict[str, np.ndarray]) -> None:
        if feed["input_ids"].shape[1] > LONGEST:
            raise BertfuseError(f"{self.plan}: too long")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "EngineSession", Session)
    monkeypatch.setattr(polygraphy.cuda, "DeviceArray", Array)
    plan = tmp_path / "model.plan"
    plan.write_bytes(b"engine")
    description = {
        "backend": "tensorrt",
        "version": "8.6.0",
        "precision": "fp16",
        "plugins": {"library": "x", "sha256": "y", "layers": {"FusedGemm": 2}},
    }
    Path(f"{plan}.json").write_text(json.dumps(description))
    return plan


def test_inputs_are_copied_once_for_each_size_in_the_engines_types(plan: Path) -> None:
    contender = engine_contender(plan, cuda_graph=False)
    assert (contender.name, contender.notes) == ("engine model.plan", "model.plan, tensorrt 8.6.0")
    assert contender.details == {"dtype": "fp16", "fused": {"FusedGemm": 2}, "library": True}
    session = contender.run._session
    feeds = [{"input_ids": np.arange(2 * n).reshape(2, n), "more": np.zeros((2, n))} for n in (3, 5)]
    for feed in (*feeds, feeds[0]):
        contender.run(feed)
    given = [fed["input_ids"] for fed, _ in session.fed]
    assert given[0] is given[2] and all(list(fed) == ["input_ids"] for fed, _ in session.fed)
    assert all(options["copy_outputs_to_host"] is False for _, options in session.fed)
    for array, feed in zip(given, feeds, strict=False):
        assert array.array.dtype == np.int32 and np.array_equal(array.array, feed["input_ids"])


def test_sizes_outside_the_profile_are_refused(plan: Path) -> None:
    contender = engine_contender(plan, cuda_graph=False)
    with pytest.raises(BertfuseError, match="too long"):
        contender.run({"input_ids": np.zeros((1, LONGEST + 1), np.int64)})


def test_a_cuda_graph_needs_a_pytorch_that_sees_the_gpu(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BertfuseError, match="this one sees no GPU"):
        engine_contender(plan, cuda_graph=True)
