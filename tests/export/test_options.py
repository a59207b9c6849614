"""Options of export_model, models of other shapes, and everything that it refuses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import transformers

from bertfuse.errors import BertfuseError, ExportError
from bertfuse.export import export_model, saving
from bertfuse.export import model as export_module
from bertfuse.graph_rewrite import io
from tests.tiny_models import HIDDEN, VOCABULARY, build, config, inputs, reference, save_checkpoint


def run(path: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})


@pytest.mark.parametrize(
    ("exporter", "opset"), [("dynamo", 18), ("dynamo", 23), ("torchscript", 14), ("torchscript", 20)]
)
def test_opsets(exporter: str, opset: int, tmp_path: Path) -> None:
    model = build()
    path = export_model(model, tmp_path, exporter=exporter, opset=opset)
    assert {entry.version for entry in onnx.load(path).opset_import if entry.domain == ""} == {opset}
    feed = inputs(2, 11)
    want = reference(model, feed, ["last_hidden_state"])[0]
    np.testing.assert_allclose(run(path, feed)[0], want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("exporter", "attention"), [("dynamo", "sdpa"), ("torchscript", "eager")])
@pytest.mark.parametrize(("dtype", "number"), [("fp16", onnx.TensorProto.FLOAT16), ("bf16", onnx.TensorProto.BFLOAT16)])
def test_dtypes(exporter: str, attention: str, dtype: str, number: int, tmp_path: Path) -> None:
    model = build()
    path = export_model(model, tmp_path, exporter=exporter, attention=attention, dtype=dtype)
    graph = onnx.load(path).graph
    table = next(tensor for tensor in graph.initializer if tensor.name == "embeddings.word_embeddings.weight")
    assert table.data_type == number
    assert {value.type.tensor_type.elem_type for value in graph.output} == {number}
    assert next(model.parameters()).dtype == torch.float32
    if dtype == "fp16":  # ONNX Runtime's CPU provider lacks bfloat16 kernels
        feed = inputs(2, 11)
        want = reference(model, feed, ["last_hidden_state"])[0]
        # 11 bits of significand, rounded after every operation, on values up to 4.
        np.testing.assert_allclose(run(path, feed)[0].astype(np.float32), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 7), (4, 4)])
def test_static_shapes(shape: tuple[int, int], exporter: str, tmp_path: Path) -> None:
    model = build()
    path = export_model(model, tmp_path, exporter=exporter, static_shape=shape)
    for value in onnx.load(path).graph.input:
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == list(shape)
    feed = inputs(*shape)
    want = reference(model, feed, ["last_hidden_state"])[0]
    np.testing.assert_allclose(run(path, feed)[0], want, rtol=1e-4, atol=2e-5)


def test_model_in_memory_is_left_as_it_was(tmp_path: Path) -> None:
    model = build().train()
    model.set_attn_implementation("sdpa")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_model(model, tmp_path, exporter="torchscript", attention="eager")
    assert model.training and model.config._attn_implementation == "sdpa"
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_model_without_pooler_has_no_pooler_output(tmp_path: Path) -> None:
    path = export_model(transformers.BertModel(config(), add_pooling_layer=False), tmp_path, exporter="torchscript")
    assert [value.name for value in onnx.load(path).graph.output] == ["last_hidden_state"]


@pytest.mark.parametrize(
    "made",
    [
        lambda: transformers.RobertaModel(
            transformers.RobertaConfig(
                vocab_size=VOCABULARY,
                hidden_size=HIDDEN,
                num_hidden_layers=1,
                num_attention_heads=4,
                intermediate_size=64,
                max_position_embeddings=42,
                type_vocab_size=1,
            )
        ),
        lambda: transformers.DistilBertModel(
            transformers.DistilBertConfig(
                vocab_size=VOCABULARY, dim=HIDDEN, n_layers=1, n_heads=4, hidden_dim=64, max_position_embeddings=40
            )
        ),
    ],
    ids=["roberta", "distilbert"],
)
def test_token_types_only_where_the_model_tells_them_apart(made: Any, tmp_path: Path) -> None:
    model = made().eval()
    path = export_model(model, tmp_path, exporter="torchscript")
    assert [value.name for value in onnx.load(path).graph.input] == ["input_ids", "attention_mask"]
    feed = inputs(3, 9)
    del feed["token_type_ids"]
    want = reference(model, feed, ["last_hidden_state"])[0]
    np.testing.assert_allclose(run(path, feed)[0], want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_large_models_keep_their_weights_in_one_file_beside(
    exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "MAX_INLINE_BYTES", 1000)
    monkeypatch.setattr(saving, "MIN_BYTES", 1000)
    model = build()
    path = export_model(model, tmp_path, exporter=exporter)
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert path.stat().st_size < (path.parent / "model.onnx.data").stat().st_size * 3
    feed = inputs(2, 11)
    want = reference(model, feed, ["last_hidden_state"])[0]
    np.testing.assert_allclose(run(path, feed)[0], want, rtol=1e-4, atol=2e-5)


def test_local_folder_with_tokenizer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = save_checkpoint(tmp_path / "source", "fill-mask")
    steps: list[str] = []
    capfd.readouterr()
    path = export_model(source, tmp_path / "out", exporter="torchscript", progress=steps.append)
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert [step.split()[0] for step in steps] == ["Loading", "Exporting", "Writing"]
    assert path == tmp_path / "out" / "onnx" / "model.onnx"
    assert steps[0].endswith("for fill-mask")  # config.json's architectures
    feed = inputs(2, 11)
    model = transformers.AutoModelForMaskedLM.from_pretrained(source)
    np.testing.assert_allclose(run(path, feed)[0], reference(model, feed, ["logits"])[0], rtol=1e-4, atol=2e-5)


def test_random_weights_are_never_exported(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", "fill-mask", tokenizer=False)
    with pytest.raises(ExportError, match=r"no weights for classifier\.bias and 3 more, .*text-classification"):
        export_model(source, tmp_path / "out", task="text-classification", exporter="torchscript")
    # A masked language model has no pooler: its encoder is fine, a pooler made up for it is not.
    options = {"task": "feature-extraction", "exporter": "torchscript"}
    path = export_model(source, tmp_path / "out", **options)
    assert [value.name for value in onnx.load(path).graph.output] == ["last_hidden_state"]


def test_pickle_only_when_asked_for(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", tokenizer=False)
    (source / "model.safetensors").unlink()
    torch.save(build().state_dict(), source / "pytorch_model.bin")
    with pytest.raises(ExportError, match=r"pickle.*--allow-pickle"):
        export_model(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    path = export_model(source, tmp_path / "out", exporter="torchscript", allow_pickle=True)
    feed = inputs(2, 5)
    want = reference(build(), feed, ["last_hidden_state"])[0]
    np.testing.assert_allclose(run(path, feed)[0], want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "translation"}, "task 'translation' is unknown: choose one of auto, feature-extraction"),
        ({"exporter": "jax"}, "exporter 'jax' is unknown"),
        ({"attention": "flash"}, "attention 'flash' is unknown"),
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        (
            {"dtype": "fp16", "exporter": "torchscript", "attention": "sdpa"},
            "dtype fp16: the torchscript exporter writes sdpa .* fp32 only",
        ),
        ({"static_shape": (0, 8)}, r"static_shape \(0, 8\) is no"),
        ({"static_shape": (1, 500)}, "a sequence of 500 is longer than BertModel's positions"),
        ({"opset": 11}, "opset 11: the dynamo exporter writes opsets 18 to 23"),
        ({"opset": 21, "exporter": "torchscript"}, "opset 21: the torchscript exporter writes opsets 14 to 20"),
        ({"task": "fill-mask", "exporter": "torchscript"}, "BertModel has outputs .* not logits"),
    ],
)
def test_options_that_do_not_do(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        export_model(build(), tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ExportError, match=r"^export: needs torch: pip install 'bertfuse\[export\]'$"):
        export_model("bert-base-uncased", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_an_earlier_model_left_there_goes(tmp_path: Path) -> None:
    source, out = save_checkpoint(tmp_path / "source", tokenizer=False), tmp_path / "out"
    earlier = ("model.onnx", "model.fused.onnx", "model.onnx.data", "tokenizer.json", "vocab.txt", "modules.json")
    (out / "onnx").mkdir(parents=True)
    for name in (*earlier, "onnx/model.onnx.original", "onnx/model.onnx.data", "notes.txt"):
        (out / name).write_text("of another model")
    export_model(source, out, exporter="torchscript")
    assert {file.name for file in out.iterdir()} == {"config.json", "onnx", "notes.txt"}
    assert {file.name for file in (out / "onnx").iterdir()} == {"model.onnx"}


def test_a_tokenizer_that_may_be_the_models_own_stays(tmp_path: Path) -> None:
    """A model in memory has none: its user put it there."""
    source = save_checkpoint(tmp_path / "source")
    before = {file.name for file in source.iterdir()}
    export_model(build(), source, exporter="torchscript")
    assert {file.name for file in source.iterdir()} == before | {"onnx"}


def _no_config(folder: Path) -> Path:
    (folder / "config.json").unlink()
    return folder


def _no_weights(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    return folder


def _cut_weights(folder: Path) -> Path:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    return folder


def _bad_config(folder: Path) -> Path:
    (folder / "config.json").write_text("{")
    return folder


def _unknown_model(folder: Path) -> Path:
    (folder / "config.json").write_text('{"model_type": "no-such-model"}')
    return folder


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_config, "has no config.json"),
        (_no_weights, "has no model.safetensors"),
        (_cut_weights, "cannot load it for feature-extraction"),
        (_bad_config, "config.json: cannot be read"),
        (_unknown_model, "cannot load it for feature-extraction.*no-such-model"),
        (lambda folder: folder / "config.json", "is a file; give the folder"),
        (lambda folder: folder / "absent", "no such folder"),
    ],
)
def test_sources_that_do_not_do(damage: Any, message: str, tmp_path: Path) -> None:
    source = damage(save_checkpoint(tmp_path / "source", tokenizer=False))
    with pytest.raises(BertfuseError, match=message) as caught:
        export_model(source, tmp_path / "out")
    assert "\n" not in str(caught.value) and str(source) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_targets_that_do_not_do(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for target in (file, file / "below", Path("/proc/bertfuse")):
        with pytest.raises(ExportError) as caught:
            export_model(build(), target, exporter="torchscript")
        assert "\n" not in str(caught.value) and str(target) in str(caught.value)
    assert file.read_text() == ""


def test_a_failed_export_leaves_an_older_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export_model(build(), tmp_path, exporter="torchscript")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "save", full)
    with pytest.raises(ExportError, match="No space left on device; nothing was kept"):
        export_model(build(seed=1), tmp_path, exporter="torchscript")
    assert path in before and {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_tokenizer_that_cannot_be_saved_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokenizers library raises a bare Exception where the disk is full."""

    class Tokenizer:
        backend_tokenizer = property(lambda self: self)

        def save(self, file: str) -> None:
            raise Exception("No space left on device (os error 28)")

    monkeypatch.setattr(export_module, "load_tokenizer", lambda folder: Tokenizer())
    with pytest.raises(ExportError, match=r"the tokenizer cannot be saved: No space left on device"):
        export_module._add_tokenizer(tmp_path, tmp_path / "scratch")
