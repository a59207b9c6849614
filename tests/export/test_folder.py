"""The folder that export writes: everything of the source but its weights; its task by what the source says."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
import transformers

from bertfuse.errors import ExportError
from bertfuse.export import export_model
from bertfuse.export.source import files_to_copy, local_folder
from bertfuse.export.tasks import task_of_class, task_of_folder
from tests.tiny_models import build, config, save_checkpoint, sentence_files

OPTIONS: dict[str, Any] = {"exporter": "torchscript"}


def task_of(model: Path) -> str:
    return {entry.key: entry.value for entry in onnx.load(model).metadata_props}["bertfuse.task"]


def test_every_file_but_the_weights_is_copied_byte_for_byte(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source")
    sentence_files(source)
    # Neither JSON nor text that any library would write again as it is.
    (source / "sentence_bert_config.json").write_bytes(b'{"max_seq_length":   9}\r\n')
    tokenizer = source / "tokenizer_config.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n\n")
    (source / "README.md").write_bytes(b"\xff\xfe raw")
    for name in ("pytorch_model.bin", "model.safetensors.index.json", ".hidden"):
        (source / name).write_bytes(b"x")
    for folder in ("2_Dense", "onnx", ".git", "checkpoint-10"):
        (source / folder).mkdir()
        (source / folder / "model.safetensors").write_bytes(b"weights")
        (source / folder / "extra.json").write_bytes(b"{}")
    before = {file: file.read_bytes() for file in source.rglob("*") if file.is_file()}
    path = export_model(source, source / "out", **OPTIONS)  # a folder below the source is not copied into itself
    out = source / "out"
    assert path == out / "onnx" / "model.onnx" and task_of(path) == "sentence-similarity"
    copied = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()} - {"onnx/model.onnx"}
    assert copied == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "README.md",
        "special_tokens_map.json", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json",
        "2_Dense/extra.json",
    } & {str(file.relative_to(source)) for file in before}  # fmt: skip
    assert {"tokenizer_config.json", "README.md", "1_Pooling/config.json"} <= copied
    for name in copied:
        assert (out / name).read_bytes() == (source / name).read_bytes(), name
    assert {file: file.read_bytes() for file in before} == before


def test_weights_of_later_modules_are_copied(tmp_path: Path) -> None:
    """sentence-transformers applies 2_Dense itself."""
    sentence_files(tmp_path, "Dense")
    (tmp_path / "2_Dense").mkdir()
    for name in ("model.safetensors", "2_Dense/model.safetensors", "2_Dense/config.json"):
        (tmp_path / name).write_bytes(b"{}")
    names = set(map(str, files_to_copy(tmp_path)))
    assert names == {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/config.json"}


@pytest.mark.parametrize(
    "task", ["feature-extraction", "fill-mask", "text-classification", "token-classification", "question-answering"]
)
def test_the_task_is_what_the_checkpoint_is_for(task: str, tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", task, tokenizer=False)
    assert task_of_folder(source, "it").name == task
    assert task_of_class(type(build(task)).__name__, "it").name == task


def test_a_classifier_keeps_its_head(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", "text-classification", tokenizer=False)
    path = export_model(source, tmp_path / "out", **OPTIONS)
    assert [value.name for value in onnx.load(path).graph.output] == ["logits"]
    assert task_of(path) == "text-classification"


def test_a_head_that_config_json_does_not_name_is_not_dropped(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source", "text-classification", tokenizer=False)
    settings = json.loads((source / "config.json").read_text())
    del settings["architectures"]
    (source / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ExportError, match=r"weights of one \(classifier\.bias\); name its task"):
        export_model(source, tmp_path / "out", **OPTIONS)
    path = export_model(source, tmp_path / "out", task="feature-extraction", **OPTIONS)
    assert task_of(path) == "feature-extraction"


@pytest.mark.parametrize("kind", ["BertForMultipleChoice", "BertForNextSentencePrediction", "ElectraForPreTraining"])
def test_heads_that_cannot_be_exported_are_refused(kind: str, tmp_path: Path) -> None:
    assert hasattr(transformers, kind)
    (tmp_path / "config.json").write_text(json.dumps(config().to_dict() | {"architectures": [kind]}))
    with pytest.raises(ExportError, match=f"is a {kind}, whose head cannot be exported; --task feature-extraction"):
        task_of_folder(tmp_path, str(tmp_path))


def test_tasks_of_sentence_transformers_folders(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "config.json").write_text(json.dumps({"architectures": ["BertForSequenceClassification"]}))
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "x.Transformer"}]))
    kinds = folder / "config_sentence_transformers.json"
    kinds.write_text(json.dumps({"model_type": "CrossEncoder"}))
    assert task_of_folder(folder, "it").name == "text-classification"
    kinds.write_text(json.dumps({"__version__": {}}))  # older ones name no type
    assert task_of_folder(folder, "it").name == "sentence-similarity"


def test_onto_itself_is_refused(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source")
    before = {file: file.read_bytes() for file in source.rglob("*") if file.is_file()}
    with pytest.raises(ExportError, match="is the model that is read; name another folder"):
        export_model(source, tmp_path / "source" / ".." / "source", **OPTIONS)
    assert {file: file.read_bytes() for file in source.rglob("*") if file.is_file()} == before


def test_a_slow_tokenizer_gets_a_tokenizer_json(tmp_path: Path) -> None:
    source = save_checkpoint(tmp_path / "source")
    (source / "tokenizer.json").unlink()
    export_model(source, tmp_path / "out", **OPTIONS)
    from bertfuse.model_folder.tokenizer import open_tokenizer

    assert open_tokenizer(tmp_path / "out").encode("word3 word1").tokens == ["[CLS]", "word3", "word1", "[SEP]"]


def test_a_hub_id_without_network_fails_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    start = time.perf_counter()
    with pytest.raises(ExportError, match="no-one/nothing: no such folder, and the hub is not reached") as caught:
        local_folder("no-one/nothing", False, lambda line: None)
    # The client's own retries take half a minute.
    assert time.perf_counter() - start < 10 and "\n" not in str(caught.value)


def test_a_hub_id_in_the_cache_needs_no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    commit = "0" * 40
    home = tmp_path / "models--someone--model"
    save_checkpoint(home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert local_folder("someone/model", False, lambda line: None) == home / "snapshots" / commit
    path = export_model("someone/model", tmp_path / "out", **OPTIONS)
    assert path.is_file() and (tmp_path / "out" / "tokenizer.json").is_file()
