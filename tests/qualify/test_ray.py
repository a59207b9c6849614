"""`--ray` on a local Ray: the same findings as without it. Ray is no requirement of the tests: pip install ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertfuse.qualify.cluster import Remote
from bertfuse.qualify.worker import Settings
from tests.qualify.faulty import hunt_of_a_segfault, library

ray = pytest.importorskip("ray", reason="Ray is not installed (bertfuse[ray])")

LARGE = "FusedGemm float32 rows=64 K=40 N=96 tactic=-1 seed=5"


@pytest.fixture(autouse=True)
def _ends():
    yield
    ray.shutdown()


def test_a_hunt_on_ray_finds_a_fault(tmp_path: Path) -> None:
    report = hunt_of_a_segfault(tmp_path, ray="local")
    assert {finding.kind for finding in report.findings} == {"signal"}
    assert all(finding.repeats and finding.trials for finding in report.findings)
    assert report.total > 5


def test_what_a_lost_actor_had_is_run_again(tmp_path: Path) -> None:
    ray.init(log_to_driver=False, include_dashboard=False)
    remote = Remote(ray, Settings(str(library("none", tmp_path)), "cpu"), {"num_cpus": 1})
    assert len(remote.run([LARGE]).verdicts) == 1
    ray.kill(remote._actor)
    lost = remote.run([LARGE])
    assert lost.rest == [LARGE] and lost.fault is None
    assert len(remote.run(lost.rest).verdicts) == 1
    remote.stop()
