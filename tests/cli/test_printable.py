"""Names in a model may hold anything: what reaches a terminal or a page steers neither."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bertfuse.cli.app import app
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse
from bertfuse.printable import printable
from tests.tiny_models import exported

EVIL = "\x1b[2J\x1b]0;owned\x07\u202eoff\r\x9b31m"


@given(st.text())
def test_nothing_but_printable_characters_is_left(text: str) -> None:
    shown = printable(text)
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert printable(shown) == shown
    assert text != shown or all(c.isprintable() or c in "\n\t" for c in text)


def test_errors() -> None:
    assert str(BertfuseError(f"node '{EVIL}'")) == f"node '{printable(EVIL)}'"
    assert "\x1b" not in str(BertfuseError(EVIL)) and "\u202e" not in str(BertfuseError(EVIL))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    """A tiny BERT whose nodes are named by somebody who means harm, and whose first mask is not one."""
    proto = onnx.load(exported("feature-extraction", "torchscript", "eager"))
    for index, node in enumerate(proto.graph.node):
        node.name = f"{EVIL}{index}"
    softmax = next(node for node in proto.graph.node if node.op_type == "Softmax")
    factor = onnx.numpy_helper.from_array(np.array(2.0, np.float32), "two")
    proto.graph.initializer.append(factor)
    index = list(proto.graph.node).index(softmax)
    proto.graph.node.insert(index, onnx.helper.make_node("Pow", [softmax.input[0], "two"], ["powers"], f"{EVIL}pow"))
    proto.graph.node[index + 1].input[0] = "powers"
    path = tmp_path_factory.mktemp("evil") / "model.onnx"
    onnx.save(proto, path)
    return path


def test_misses(model) -> None:
    result = fuse(model)
    assert result.misses and any("\\x1b" in str(miss) for miss in result.misses)
    assert all(str(miss).isprintable() for miss in result.misses)


@pytest.mark.parametrize("command", ["explain", "fuse", "report"])
def test_commands(command: str, model, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(model.parent)
    arguments = {"explain": [model], "fuse": [model, "-o", tmp_path / "out.onnx"], "report": [model.parent]}[command]
    if command == "report":
        CliRunner().invoke(app, ["fuse", str(model), "-o", str(model.with_name("model.fused.onnx"))])
    done = CliRunner().invoke(app, [command, *map(str, arguments)])
    texts = [done.output]
    if command == "report":
        texts += [file.read_text() for file in model.parent.glob("*.html")]
        assert len(texts) > 1, done.output
    for text in texts:
        assert "\x1b" not in text and "\u202e" not in text and "\x9b" not in text and "\x07" not in text
    assert any("\\x1b" in text for text in texts), done.output


def test_json(model) -> None:
    done = CliRunner().invoke(app, ["explain", str(model), "--json"])
    assert "\x1b" not in done.output
    json.loads(done.stdout)
