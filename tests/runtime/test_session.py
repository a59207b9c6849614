"""Sessions: the library where it is needed or wanted, op bodies elsewhere, and one line for what goes wrong."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import bertfuse
from bertfuse.errors import BertfuseError, RuntimeLibraryError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.runtime import library
from bertfuse.runtime.session import providers_of
from tests.tiny_models import exported, inputs


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fused") / "model.fused.onnx"
    assert fuse_file(exported(), path).fused["FusedAttention"] == 2
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fused file without op bodies: nothing but the library runs it."""
    path = tmp_path_factory.mktemp("bare") / "model.fused.onnx"
    fuse_file(exported(), path, functions=False)
    return path


def test_the_library_comes_where_the_file_has_its_ops(fused: Path, bare: Path, tmp_path: Path, library: Path) -> None:
    """As fused files are written, and as onnx writes them: the domains stand before the graph, or behind it."""
    saved = tmp_path / "saved.onnx"
    onnx.save(onnx.load(fused), saved)
    for model in (fused, bare, saved, saved.read_bytes()):
        session = bertfuse.InferenceSession(model)
        assert isinstance(session, onnxruntime.InferenceSession)
        assert session.uses_library
    assert not bertfuse.InferenceSession(exported()).uses_library
    assert not bertfuse.InferenceSession(fused, library="never").uses_library


def test_without_the_library_the_op_bodies_run(fused: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    want = bertfuse.InferenceSession(fused, library="never").run(None, inputs(2, 11))
    monkeypatch.setenv("BERTFUSE_ORT_LIBRARY", str(tmp_path / "missing.so"))
    with pytest.warns(RuntimeWarning, match="fused ops run as standard operators"):
        session = bertfuse.InferenceSession(fused)
    assert not session.uses_library
    np.testing.assert_array_equal(session.run(None, inputs(2, 11))[0], want[0])


def test_a_provider_by_its_name_alone(fused: Path) -> None:
    assert bertfuse.InferenceSession(fused, "CPUExecutionProvider").get_providers() == ["CPUExecutionProvider"]


def test_library_gives_the_same_result(fused: Path, library: Path) -> None:
    feed = inputs(2, 11)
    want = bertfuse.InferenceSession(fused, library="never").run(None, feed)
    session = bertfuse.InferenceSession(fused, library="always")
    assert session.uses_library
    for got, expected in zip(session.run(None, feed), want, strict=True):
        # float32 sums in another order, over two layers of values around 1.
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5)


def test_kernels_make_no_threads_of_their_own(fused: Path, library: Path) -> None:
    """They run in those of ONNX Runtime, as KernelContext_ParallelFor hands them out."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 3
    session = bertfuse.InferenceSession(fused, sess_options=options, library="always")
    before = set(os.listdir("/proc/self/task"))
    session.run(None, inputs(8, 16))
    assert len(before) >= 3 and set(os.listdir("/proc/self/task")) <= before


def test_library_comes_where_the_file_has_no_op_bodies(bare: Path, fused: Path, library: Path) -> None:
    session = bertfuse.InferenceSession(bare)
    assert session.uses_library
    feed = inputs(2, 11)
    want = bertfuse.InferenceSession(fused).run(None, feed)
    np.testing.assert_allclose(session.run(None, feed)[0], want[0], rtol=1e-4, atol=2e-5)
    with pytest.raises(BertfuseError, match="is not a registered function/op"):
        bertfuse.InferenceSession(bare, library="never")


def test_register_on_plain_session_options(bare: Path, library: Path) -> None:
    options = onnxruntime.SessionOptions()
    bertfuse.register(options)
    onnxruntime.InferenceSession(bare, options, providers=["CPUExecutionProvider"])


def test_serialised_models(fused: Path) -> None:
    assert bertfuse.InferenceSession(fused.read_bytes()).run(None, inputs(1, 3))[0].shape == (1, 3, 32)


def test_missing_library_is_one_line(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_ORT_LIBRARY", str(tmp_path / "none.so"))
    for call in (lambda: bertfuse.library_path("onnxruntime"), lambda: bertfuse.InferenceSession(bare)):
        with pytest.raises(RuntimeLibraryError, match=r"none\.so: no such library; BERTFUSE_ORT_LIBRARY"):
            call()
    monkeypatch.delenv("BERTFUSE_ORT_LIBRARY")
    monkeypatch.setattr(bertfuse, "__path__", [str(tmp_path)])
    with pytest.raises(RuntimeLibraryError, match=r"libbertfuse_ort\.so is not installed; install bertfuse again"):
        bertfuse.library_path("onnxruntime")
    with pytest.raises(RuntimeLibraryError, match="'abacus' has no library"):
        bertfuse.library_path("abacus")


def test_broken_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "broken.so"
    file.write_bytes(b"no library")
    monkeypatch.setenv("BERTFUSE_ORT_LIBRARY", str(file))
    with pytest.raises(RuntimeLibraryError, match=r"broken\.so: does not load") as caught:
        bertfuse.register(onnxruntime.SessionOptions())
    assert "\n" not in str(caught.value)


def test_installed_library_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTFUSE_ORT_LIBRARY", raising=False)
    path = library.library_path()
    assert path.name == "libbertfuse_ort.so" and path.parent.name == "lib"


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_files_that_are_no_models(content: bytes | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(BertfuseError) as caught:
        bertfuse.InferenceSession(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    with pytest.raises(BertfuseError, match="no such file"):
        bertfuse.InferenceSession(tmp_path / "absent.onnx")
    assert capfd.readouterr().err == ""


def test_only_an_unknown_op_asks_for_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTFUSE_ORT_LIBRARY", str(tmp_path / "none.so"))
    path = tmp_path / "bertfuse" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(b"not a model")
    with pytest.raises(BertfuseError, match=f"^{path}: ONNX Runtime: ") as caught:
        bertfuse.InferenceSession(path)
    assert "none.so" not in str(caught.value)


def test_unknown_choices() -> None:
    with pytest.raises(BertfuseError, match="library 'maybe' is unknown"):
        bertfuse.InferenceSession(exported(), library="maybe")
    with pytest.raises(BertfuseError, match="provider 'tpu' is unknown"):
        providers_of("tpu")


@pytest.mark.skipif("CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="CUDA is there")
def test_provider_that_is_not_there() -> None:
    with pytest.raises(BertfuseError, match="no CUDAExecutionProvider; install onnxruntime-gpu"):
        providers_of("cuda")
