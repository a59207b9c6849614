"""The commands on a tiny model: what they write, what they print, and their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

import bertfuse
from bertfuse.cli import app
from tests.commands import ORIGINAL, command, invoke, said
from tests.tiny_models import HEADS, LAYERS, exported, inputs, save_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `bertfuse optimize` writes for a local checkpoint."""
    base = tmp_path_factory.mktemp("cli")
    save_checkpoint(base / "source")
    report = said("optimize", base / "source", "-o", base / "out", "--exporter", "torchscript", "--strict")
    assert report["comparison"]["passed"] and report["fusion"]["misses"] == []
    assert report["fusion"]["expected"] == report["fusion"]["fused"]
    assert report["fusion"]["fused"]["FusedAttention"] == LAYERS
    assert Path(report["model"]) == base / "out" / "onnx" / "model.onnx" and report["task"] == "feature-extraction"
    return base / "out"


def test_help_is_fast_and_has_examples() -> None:
    code = (
        "import sys, bertfuse.cli as c\n"
        "heavy = {'torch', 'transformers', 'onnx', 'onnxruntime', 'numpy', 'polygraphy'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert "bertfuse optimize" in invoke("--help").stdout
    # Brackets are rich's markup unless escaped.
    assert "[default: as is]" in invoke("fuse", "--help").stdout
    assert "'bertfuse[rtx]'" in invoke("engine", "--help").stdout
    for info in app.registered_commands:
        name = info.callback.__name__
        assert f"bertfuse {name} " in " ".join(invoke(name, "--help").stdout.split())


def test_paragraphs_of_help_are_wrapped_for_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the lines of the source end."""
    monkeypatch.setenv("COLUMNS", "70")
    for info in app.registered_commands:
        text = invoke(info.callback.__name__, "--help").stdout
        for paragraph in re.split(r"\n\s*\n", text[: text.index("Examples")]):
            lines = [line.strip() for line in paragraph.strip().splitlines()]
            assert all(len(a) + len(b.split()[0]) >= 60 for a, b in pairwise(lines)), paragraph


def test_version() -> None:
    assert invoke("--version").stdout.split() == ["bertfuse", bertfuse.__version__]


def test_export(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", "token-classification")
    arguments = ("export", source, "-o", tmp_path / "out")
    result = invoke(
        *arguments, "--exporter", "torchscript", "--attention", "eager", "--opset", 18, "--static-shape", "2x8"
    )
    assert "Wrote" in result.stdout and "Exporting with torchscript, opset 18, eager" in result.stderr
    model = onnx.load(tmp_path / "out" / "onnx" / "model.onnx")
    assert [value.name for value in model.graph.output] == ["logits"]
    assert [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim] == [2, 8]
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_fuse(tmp_path: Path) -> None:
    target = tmp_path / "fused.onnx"
    result = invoke("fuse", exported(), "-o", target)
    rows = [line.replace("│", " ").split() for line in result.stdout.splitlines()]
    assert ["FusedAttention", str(LAYERS), str(LAYERS)] in rows
    assert ["FusedGemmLayerNorm", str(2 * LAYERS), str(2 * LAYERS)] in rows
    assert {function.name for function in onnx.load(target).functions} >= {"FusedAttention", "EmbedLayerNorm"}
    report = said(
        "fuse", exported(), "-o", target, "--level", "basic", "--no-functions", "--dtype", "fp16", "--overwrite"
    )
    assert report["fused"]["AddQKVBias"] == LAYERS and "FusedAttention" not in report["fused"]
    model = onnx.load(target)
    assert not model.functions
    nodes = [node for node in model.graph.node if node.op_type == "AddQKVBias"]
    assert onnx.helper.get_node_attr_value(nodes[0], "num_heads") == HEADS


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A BERT in which one layer's GELU is something else: its FusedGemmGelu is missed."""
    model = onnx.load(exported("feature-extraction", "dynamo", "sdpa"))
    gelu = next(node for node in model.graph.node if node.op_type == "Gelu")
    linear = next(node for node in model.graph.node if gelu.input[0] in node.output)
    # The linear's result as a graph output: fused, it would no longer exist.
    value = onnx.helper.make_tensor_value_info(linear.output[0], onnx.TensorProto.FLOAT, ["batch", "sequence", 64])
    model.graph.output.append(value)
    path = tmp_path / "broken.onnx"
    onnx.save(model, path)
    return path


def test_fuse_names_each_miss(broken: Path, tmp_path: Path) -> None:
    report = said("fuse", broken, "-o", tmp_path / "out.onnx")
    assert report["expected"]["FusedGemmGelu"] == LAYERS and report["fused"]["FusedGemmGelu"] == LAYERS - 1
    (miss,) = report["misses"]
    assert miss["op"] == "FusedGemmGelu" and miss["anchor"] and miss["node"] and miss["reason"]
    result = invoke("fuse", broken, "-o", tmp_path / "out.onnx", "--strict", "--overwrite", code=1)
    assert "missed FusedGemmGelu" in result.stderr and miss["reason"] in result.stderr
    assert (tmp_path / "out.onnx").is_file()


def test_fuse_says_so_when_there_is_nothing_to_fuse(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value("x", 1, ["n"])], [value("y", 1, ["n"])]
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "in.onnx")
    result = invoke("fuse", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx")
    assert "nothing to fuse" in result.stdout.lower()
    assert onnx.load(tmp_path / "out.onnx").graph == onnx.load(tmp_path / "in.onnx").graph


def test_a_model_of_fixed_shape(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The random inputs of the comparison are of its shape, and there is one of them."""
    monkeypatch.chdir(tmp_path)
    options = ("--exporter", "torchscript", "--static-shape", "3x9")
    out = tmp_path / "out"
    comparison = said("optimize", folder.parent / "source", "-o", out, *options)["comparison"]
    assert comparison["passed"] and {tuple(entry["shape"][:2]) for entry in comparison["outputs"]} == {(3, 9), (3, 32)}
    page = Path(said("report", out, "--seconds", 0.01, "--sizes", "1x4,2x8")["page"]).read_text()
    assert "3 x 9:" in page and "not compared" not in page and "not measured" not in page
    # A fused model that takes any shape is held to the other's, too.
    assert said("compare", out / ORIGINAL, folder)["passed"]


def test_run_on_text(folder: Path, tmp_path: Path) -> None:
    report = said("run", folder, "--text", "word1 word2", "--text", "word3")
    assert report["model"].endswith("onnx/model.onnx") and report["task"] == "feature-extraction"
    assert report["outputs"] == {"sentence_embedding": {"shape": [2, 32], "dtype": "float32"}}
    cosines = [row["cosine_similarity"] for row in report["answers"]]
    assert cosines[0][0] == 1.0 and cosines[0][1] == cosines[1][0] < 1.0
    original = said("run", folder / ORIGINAL, "--text", "word1 word2", "--text", "word3")
    for one, other in zip(report["answers"], original["answers"], strict=True):
        np.testing.assert_allclose(one["embedding"], other["embedding"], rtol=1e-4, atol=2e-5)
    assert "word3: cosine similarity" in invoke("run", folder, "--text", "word1", "--text", "word3").stdout


@pytest.mark.parametrize("library", ["never", "always"])
def test_run_on_arrays(folder: Path, tmp_path: Path, library: str) -> None:
    feed = inputs(2, 5)
    np.savez(tmp_path / "in.npz", **{name: array.astype(np.int32) for name, array in feed.items()})
    arguments = ("run", folder, "--input", tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--library", library)
    assert "Wrote" in invoke(*arguments).stdout
    want = bertfuse.InferenceSession(folder / ORIGINAL).run(["last_hidden_state"], feed)[0]
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["last_hidden_state"], want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("task", "keys"), [("token-classification", {"tokens"}), ("question-answering", {"answer"}), ("fill-mask", set())]
)
def test_run_on_arrays_needs_no_tokenizer(task: str, keys: set[str], tmp_path: Path) -> None:
    """Tokens are then their ids."""
    feed = inputs(1, 5, types=1)
    np.savez(tmp_path / "in.npz", **feed)
    report = said("run", exported(task), "--input", tmp_path / "in.npz")
    assert report["outputs"] and {key for answer in report["answers"] for key in answer} == keys
    ids = {str(token) for token in feed["input_ids"][0]}
    for answer in report["answers"]:
        said_of = answer.get("answer", "").split() + [token for token, _ in answer.get("tokens", [])]
        assert said_of and set(said_of) <= ids
    assert "first values" in invoke("run", exported(task), "--input", tmp_path / "in.npz").stdout


def test_run_on_many_texts(folder: Path, tmp_path: Path) -> None:
    """A long text pads no short one, texts are not compared each with each, and the terminal stays readable."""
    lines = [f"word{i % 9} word{i % 7}" for i in range(200)] + ["word3 " * 5000]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    report = said("run", folder, "--text-file", tmp_path / "lines.txt")
    assert [answer["text"] for answer in report["answers"]] == lines
    assert all(set(answer) == {"text", "embedding"} for answer in report["answers"])
    printed = invoke("run", folder, "--text-file", tmp_path / "lines.txt", "-o", tmp_path / "out.npz").stdout
    assert len(printed) < 2000 and "181 more texts" in printed
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_allclose(arrays["sentence_embedding"][9], report["answers"][9]["embedding"], atol=1e-6)


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("text-classification", "label"),
        ("token-classification", "entities"),
        ("fill-mask", "masks"),
        ("question-answering", "answer"),
    ],
)
def test_run_answers_by_task(task: str, key: str, tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", task)
    invoke("export", source, "-o", tmp_path / "out", "--task", task, "--exporter", "torchscript")
    pair = ("--text-pair", "word2 word3 word4") if key in ("label", "answer") else ()
    (answer,) = said("run", tmp_path / "out", "--text", "word1 [MASK]", *pair)["answers"]
    assert answer["text"] == "word1 [MASK]"
    if key == "label":
        assert answer["label"] in {"LABEL_0", "LABEL_1", "LABEL_2"} and 1 / 3 <= answer["score"] <= 1
        assert answer["text_pair"] == "word2 word3 word4"
    elif key == "entities":
        assert {entity["word"] for entity in answer["entities"]} <= {"word1 [MASK]", "word1", "[MASK]"}
    elif key == "masks":
        assert [len(words) for words in answer["masks"]] == [5]
    else:
        assert set(answer["answer"].split()) <= {"word2", "word3", "word4"}
    printed = invoke("run", tmp_path / "out", "--text", "word1 [MASK]", *pair).stdout
    assert "word1 [MASK]" in printed and (not pair or key == "answer" or pair[1] in printed)
    if not pair:
        refused = invoke("run", tmp_path / "out", "--text", "word1", "--text-pair", "word2", code=2).stderr
        assert f"a model for {task} takes one text at a time" in refused


def test_compare(folder: Path, tmp_path: Path) -> None:
    original, fused = folder / ORIGINAL, folder
    report = said("compare", original, fused, "--per-node")
    assert report["passed"] and report["first_difference"] is None and report["tensors"]
    result = invoke("compare", original, fused, "--text", "word1 word2", "--library", "always", "--per-node")
    assert (
        "agrees" in result.stdout or "equal bits" in result.stdout
    ) and "tensors that both share agree" in result.stdout
    result = invoke("compare", original, fused, "--library", "always", "--atol", 0, "--rtol", 0, "--per-node", code=1)
    assert "differs" in result.stdout and "First to differ: " in result.stdout


def test_bench(folder: Path, tmp_path: Path) -> None:
    report = said("bench", folder, "--sizes", "1x4,2x8", "--seconds", 0.01, "-o", tmp_path, "--threads", 1)
    names = {"original ONNX", "ORT optimizer", "fused, op bodies", "fused, library", "PyTorch"}
    assert {timing["contender"] for timing in report["timings"]} == names and report["absent"] == {}
    assert len(report["timings"]) == 2 * len(names)
    for timing in report["timings"]:
        assert timing["runs"] >= 5 and 0 < timing["least"] <= timing["low"] <= timing["median"] <= timing["high"]
    # Its best case: everything that ONNX Runtime's optimizer knows of BERT was found.
    assert report["details"]["ORT optimizer"]["fused"]["Attention"] == LAYERS
    assert report["details"]["fused, library"]["library"] is True
    assert report["details"]["fused, op bodies"]["library"] is False
    assert {name: entry["dtype"] for name, entry in report["details"].items()} == dict.fromkeys(names, "fp32")
    assert json.loads((tmp_path / "bench.json").read_text()) == report
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    table = invoke("bench", folder, "--sizes", "1x4", "--seconds", 0.01, "-o", tmp_path).stdout
    assert all(name in table for name in names) and "original ONNX, fp32" in " ".join(table.split())


def test_doctor_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr("bertfuse.analysis.doctor._version", lambda name: None if name == "onnx" else "1")
    report = said("doctor", code=1)
    assert "onnx is not installed: pip install onnx" in report["problems"]
    assert report["libraries"]["onnxruntime"]["loads"] and report["libraries"]["onnxruntime"]["ops"] == []


def test_doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = said("doctor")
    assert report["problems"] == [] and "CPUExecutionProvider" in report["providers"]
    library = report["libraries"]["onnxruntime"]
    assert library["loads"] and set(library["ops"]) == set(report["ops"]["names"])
    assert report["packages"]["onnx"] == onnx.__version__
    table = invoke("doctor").stdout.replace("\n", "")
    assert library["path"] in table and "GPU code of the library" in table
    code = report["gpu_code"]
    assert all(re.fullmatch(r"\d+\.\d[a-z]?", name) for name in code["machine_code"] + code["ptx"]), code
    file = tmp_path / "broken.so"
    file.write_bytes(b"")
    monkeypatch.setenv("BERTFUSE_ORT_LIBRARY", str(file))
    assert "does not load" in said("doctor", code=1)["problems"][0]


@pytest.mark.parametrize(
    "raised", ["KeyboardInterrupt()", "ImportError('initialization failed') from KeyboardInterrupt()"]
)
def test_interrupted(raised: str, tmp_path: Path) -> None:
    """Ctrl-C, which may come while a package in C is imported, is a line and exit code 130."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == 'onnx': raise {raised}\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    ran = subprocess.run(
        command("explain", tmp_path / "model.onnx"),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "bertfuse: interrupted\n")
