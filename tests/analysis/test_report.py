"""The page: all of it in one file, what it says, and that names from a model stay text."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import onnx
import pytest

from bertfuse.analysis.report import collect, groups, render, write_report
from bertfuse.analysis.report.drawing import MAX_NODES, one_layer, whole_graph
from bertfuse.analysis.report.layout import layered
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import explain, fuse_file
from tests.tiny_models import LAYERS, LONGEST, exported


class Page(HTMLParser):
    """Tags, their attributes, and the text outside of style sheets."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text, self._open = "", ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open != "style":
            self.text += data + " "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.onnx and model.fused.onnx of a tiny BERT."""
    made = tmp_path_factory.mktemp("report")
    source = exported()
    for name in ("model.onnx", "config.json"):
        (made / name).write_bytes((source.parent / name).read_bytes())
    fuse_file(made / "model.onnx", made / "model.fused.onnx")
    return made


def standalone(html: str) -> Page:
    """The page needs nothing from anywhere: neither scripts nor addresses, but those inside itself."""
    page = Page(html)
    assert not page.tags.keys() & {"script", "link", "img", "iframe", "image", "object", "base"}
    assert "@import" not in html and "://" not in html.replace("file://", "")
    for name, value in page.attributes:
        if name in ("href", "src", "srcset"):
            assert (value or "").startswith("#"), (name, value)
    assert all(value.startswith("#") for value in _urls(html))
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    return page


def _urls(html: str) -> list[str]:
    return [part.split(")")[0].strip("'\"") for part in html.split("url(")[1:]]


def test_a_complete_fusion(folder: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    path = write_report(
        folder / "model.onnx", folder / "model.fused.onnx", tmp_path / "page.html", seconds=0.01,
        sizes=[(1, 4), (1, 9999)], progress=steps.append,
    )  # fmt: skip
    assert path == tmp_path / "page.html" and steps[-1] == "Writing the report"
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    page = standalone(path.read_text(encoding="utf-8"))
    result = explain(folder / "model.onnx")
    total = sum(result.fused.values())
    text = " ".join(page.text.split())
    assert f"Everything that was expected was fused: {total} ops in {LAYERS} encoder layers." in text
    assert "The fused model computes what the original does." in text
    assert f"{result.nodes[0]} → {result.nodes[1]}" in text and f"{total} of {total}" in text
    for expected in (
        "last_hidden_state",
        "pooler_output",
        "fused, op bodies",
        "fused, library",
        "1 x 4:",
        f"1 x {LONGEST}:",
    ):
        assert expected in text
    assert "agrees" in text or "equal bits" in text
    assert onnx.__version__ in text
    html = path.read_text(encoding="utf-8")
    assert all('scope="' in tag for tag in re.findall(r"<th\b[^>]*>", html)), "a table's heading without scope"
    cells = re.findall(r'<td data-op="(\w+)"', html)
    assert set(cells) == set(result.fused) and len(cells) % len(set(cells)) == 0
    assert "was not made from" not in text
    assert page.tags["svg"] == 4 + 2 * 2  # two drawings before and after, two plots in two widths


def test_misses_are_told_in_full(tmp_path: Path) -> None:
    """And names of tensors and nodes stay text, whatever is in them."""
    model = onnx.load(exported("feature-extraction", "dynamo", "sdpa"))
    gelu = next(node for node in model.graph.node if node.op_type == "Gelu")
    hostile = '<script>alert("x")</script>'
    scaled = onnx.helper.make_node("Mul", [gelu.input[0], "factor"], ["$x_{"], name=hostile)
    model.graph.initializer.append(onnx.helper.make_tensor("factor", 1, [], [0.9]))
    model.graph.node.insert(list(model.graph.node).index(gelu), scaled)
    gelu.input[0] = "$x_{"
    onnx.save(model, tmp_path / "in.onnx")
    fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    html = render(collect(tmp_path / "in.onnx", tmp_path / "out.onnx", seconds=0))
    page = standalone(html)
    text = " ".join(page.text.split())
    (miss,) = explain(tmp_path / "in.onnx").misses
    assert miss.node == hostile
    for part in (miss.anchor, miss.node, miss.place, miss.found, miss.wanted, "layer 1"):
        assert part in text
    assert "One layer: layer 1" in text and 'class="plain missed"' in html
    assert "Not measured, as asked." in text


def test_a_model_that_cannot_be_fed_says_so(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    graph = onnx.helper.make_graph([relu], "g", [value("x", 1, ["n", 4])], [value("y", 1, ["n", 4])])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "in.onnx")
    fuse_file(tmp_path / "in.onnx", tmp_path / "out.onnx")
    report = collect(tmp_path / "in.onnx", tmp_path / "out.onnx")
    assert report.comparison is None and "not one that a text encoder has" in report.notes["accuracy"]
    assert report.latency is None and report.notes["latency"].startswith("not measured: ")
    text = " ".join(standalone(render(report)).text.split())
    assert "Nothing in this model is a BERT-like encoder layer" in text and report.notes["accuracy"] in text


def test_figures_of_bench_are_taken_while_they_are_newer(folder: Path) -> None:
    timing = {"batch": 2, "sequence": 8, "median": 2.5, "low": 2.0, "high": 3.0, "least": 1.5, "runs": 5}
    names = ("original ONNX", "fused, op bodies")
    data = {
        "model": "m", "provider": "cpu", "unit": "ms", "machine": {"cpu": "a", "cores": "1", "onnxruntime": "1"},
        "timings": [{"contender": name, **timing} for name in names], "absent": {"PyTorch": "is away"},
        "details": {name: {"dtype": dtype} for name, dtype in zip(names, ("fp32", "fp16"), strict=True)},
    }  # fmt: skip
    file = folder / "bench.json"
    try:
        file.write_text(json.dumps(data))
        report = collect(folder / "model.onnx", folder / "model.fused.onnx", seconds=60)
        assert report.latency is not None and report.latency.sizes == [(2, 8)]
        text = standalone(render(report)).text
        assert "PyTorch: not measured: is away" in text and "no difference measured at 2 x 8" in text
        assert "cpu provider, fp32 and fp16" in " ".join(text.split())
        file.write_text("{}")
        report = collect(folder / "model.onnx", folder / "model.fused.onnx", seconds=60)
        assert "bench.json: not what 'bertfuse bench' writes" in report.notes["latency"]
        data["timings"][1] |= {"median": 1.6, "low": 1.5, "high": 1.9}  # below all of the original's middle half
        file.write_text(json.dumps(data))
        report = collect(folder / "model.onnx", folder / "model.fused.onnx", seconds=60)
        assert "1.56x at 2 x 8" in standalone(render(report)).text
    finally:
        file.unlink()


def test_another_models_fused_file_is_noticed(folder: Path, tmp_path: Path) -> None:
    fuse_file(exported("fill-mask"), tmp_path / "other.onnx")
    report = collect(folder / "model.onnx", tmp_path / "other.onnx", seconds=0)
    assert "was not made from model.onnx" in report.notes["fusion"]
    with pytest.raises(BertfuseError, match="is fused already"):
        collect(folder / "model.fused.onnx", folder / "model.fused.onnx", seconds=0)


def test_layers_of_nodes(folder: Path) -> None:
    """Every node has a row; a layer's are those that its ops replaced; what all layers share is in none."""
    result = explain(folder / "model.onnx")
    graphs = [onnx.load(folder / name) for name in ("model.onnx", "model.fused.onnx")]
    before, after = groups.sides(*graphs, result.parts, result.layers)
    for layer in range(1, LAYERS + 1):
        kinds = Counter(item.kind for item in after.by_layer[layer])
        assert kinds == {"FusedGemm": 1, "FusedAttention": 1, "FusedGemmLayerNorm": 2, "FusedGemmGelu": 1}
        assert sum(item.kind == "Softmax" for item in before.by_layer[layer]) == 1
        assert all(item.op for item in before.by_layer[layer] if item.kind in ("MatMul", "Softmax", "Erf"))
    assert Counter(item.kind for item in after.by_layer[LAYERS + 1])["Tanh"] == 1
    assert sum(map(len, before.by_layer.values())) == len(before.items) == result.nodes[0]
    assert all(not item.op for item in before.items if item.gone)
    drawing = one_layer(after, 1)
    labels = [box.label for box in drawing.boxes]
    assert labels.count("FusedGemmLayerNorm") == 2 and sum(box.state == "end" for box in drawing.boxes) == 3
    assert all(0 <= box.x <= drawing.width - drawing.box[0] for box in drawing.boxes)
    assert all(0 <= box.y <= drawing.height - drawing.box[1] for box in drawing.boxes)


def test_a_graph_too_large_to_draw_is_cut() -> None:
    items = [
        groups.Item("Add", f"n{i}", f"t{i}", [f"t{i - 1}"], [f"t{i}"], layer=i // 1000) for i in range(3 * MAX_NODES)
    ]
    side = groups.Side(items, ["t-1"], [])
    for item in items:
        side.by_layer.setdefault(item.layer or 0, []).append(item)
    drawing = whole_graph(side, lambda layer: f"layer {layer}")
    assert len(drawing.boxes) == MAX_NODES and drawing.left_out == f"from layer 4 on: {2 * MAX_NODES} more nodes"


@pytest.mark.parametrize("count", [0, 1, 40])
def test_layout(count: int) -> None:
    """Edges go forward, no two nodes of a rank are closer than one, and an edge passes every rank between."""
    edges = [(a, b) for a in range(count) for b in (a + 1, a + 3, 2 * a + 7) if b < count]
    placed = layered(count, edges)
    assert len(placed.places) == count
    for (first, last), route in zip(edges, placed.routes, strict=True):
        assert route[0] == placed.places[first] and route[-1] == placed.places[last]
        assert [rank for rank, _ in route] == list(range(route[0][0], route[-1][0] + 1))
    by_rank: dict[int, list[float]] = {}
    for rank, offset in placed.places:
        assert 0 <= rank <= placed.depth and -1e-9 <= offset <= placed.breadth + 1e-9
        by_rank.setdefault(rank, []).append(offset)
    for offsets in by_rank.values():
        ordered = sorted(offsets)
        assert all(b - a > 0.999 for a, b in itertools.pairwise(ordered))
