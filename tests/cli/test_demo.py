"""The demo on the real model: its verdict, its table, its JSON file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertfuse.cli import demo


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo_output"
    assert demo.main([str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_four_ways_agree_on_a_real_model(output: Path) -> None:
    report = json.loads((output / "demo.json").read_text())
    assert report["passed"] and report["misses"] == []
    expected = {"EmbedLayerNorm": 1, "FusedAttention": 6, "FusedGemmLayerNorm": 12, "FusedGemmGelu": 6}
    assert {op: report["fused"].get(op, 0) for op in expected} == expected
    assert all(report["expected"].get(op) == count for op, count in expected.items())
    # At most 6 nodes in each of the 6 layers, and room for the embeddings, the mask and the pooler.
    assert report["nodes"]["after"] <= 6 * 6 + 6 < report["nodes"]["before"]
    assert set(report["differences"]) == set(demo.WAYS[1:])
    for entries in report["differences"].values():
        for entry in entries.values():
            # float32 in another order over 6 layers, on values up to 8; exact equality would mean PyTorch ran itself.
            assert 0 < entry["absolute"] < 5e-4 and entry["relative"] < 1e-4
    assert set(report["milliseconds"]) == set(demo.WAYS)
    similar, news, login, unrelated = report["cosine_similarity"]
    for way in demo.WAYS:
        assert min(entry[way] for entry in (similar, news, login)) > 0.5 > 0.1 > unrelated[way]
        assert abs(similar[way] - similar["PyTorch"]) < 1e-5


@pytest.mark.slow
def test_table_shows_every_measure(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo.print_report(json.loads((output / "demo.json").read_text()))
    text = capsys.readouterr().out
    for part in (
        *demo.WAYS,
        "nodes",
        "FusedAttention, fused",
        "6 of 6",
        "last_hidden_state, abs. diff.",
        "milliseconds",
    ):
        assert part in text
    assert "All four agree" in text


@pytest.mark.slow
def test_a_wrong_model_fails_the_demo(output: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The verdict looks at what it should: with other weights behind the fused file it is no."""
    import onnx

    def tampered(source: Path, target: Path) -> object:
        result = fuse_file(source, target)
        model = onnx.load(target)
        table = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        values = onnx.numpy_helper.to_array(table) * 1.01
        table.CopyFrom(onnx.numpy_helper.from_array(values.astype("float32"), table.name))
        onnx.save(model, target)
        return result

    fuse_file = demo.fuse_file
    monkeypatch.setattr(demo, "fuse_file", tampered)
    monkeypatch.setattr(demo, "export_model", lambda *_, **__: output / "minilm" / "onnx" / "model.onnx.original")
    (tmp_path / "minilm").symlink_to(output / "minilm")
    assert demo.main([str(tmp_path), "--json"]) == 1
    assert not json.loads((tmp_path / "demo.json").read_text())["passed"]


def test_without_the_model_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package")
    assert demo.main(["unused"]) == 2
    assert capsys.readouterr().err == "bertfuse: no_such_package is not installed: pip install no-such-package\n"
    assert not Path("unused").exists()
