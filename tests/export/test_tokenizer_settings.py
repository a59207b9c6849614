"""An exported folder tokenises as transformers does with all files of the source, tokenizer_config.json too."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from bertfuse.model_folder.tokenizer import open_tokenizer
from bertfuse.runtime.inputs import text_inputs
from tests.checkpoints import save, texts

GIVEN = [*texts(8, seed=4), "", "The HOUSE", "Ünïcode 日本語", "[MASK] a [SEP] house", "a " * 60]
PAIRS = texts(len(GIVEN), seed=5)

# Each parameter of a BERT tokenizer with a value that is not its default; None: it changes no token of a text.
SETTINGS: dict[str, Any] = {
    "do_lower_case": False,
    "strip_accents": False,
    "tokenize_chinese_chars": False,
    "model_max_length": 7,
    "truncation_side": "left",
    "split_special_tokens": True,
    "model_input_names": ["input_ids", "attention_mask"],
    "extra_special_tokens": ["house"],
    "unk_token": "[MASK]",
    "padding_side": "left",
    "clean_up_tokenization_spaces": True,
    "chat_template": "{{ messages }}",
}
# Files that are named, and what a folder's own tokenizer.json holds.
NOT_SETTINGS = {"self", "vocab", "kwargs", "args", "cls_token", "sep_token", "pad_token", "mask_token"}


def test_every_parameter_is_tried() -> None:
    parameters = set(inspect.signature(transformers.BertTokenizer.__init__).parameters)
    assert "do_lower_case" in parameters and parameters - NOT_SETTINGS <= set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    source = save("encoder", tmp_path / "source")
    file = source / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: SETTINGS[name]}))
    export_model(source, tmp_path / "out", exporter="torchscript")
    theirs = transformers.AutoTokenizer.from_pretrained(source)
    theirs.padding_side = "right"  # which side changes no token
    length = min(theirs.model_max_length, 50)
    for pairs in (None, PAIRS):
        want = theirs(GIVEN, pairs, padding=True, truncation=True, max_length=length, return_tensors="np")
        found = text_inputs(tmp_path / "out", GIVEN, pairs)
        for key, array in want.items():
            np.testing.assert_array_equal(found[key], array, err_msg=f"{name} {key}")
        if "token_type_ids" not in want:
            assert not found["token_type_ids"].any()


def test_sides_that_there_are_not(tmp_path: Path) -> None:
    source = save("encoder", tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"truncation_side": "middle"}))
    with pytest.raises(BertfuseError, match="truncation_side is 'middle', neither left nor right"):
        open_tokenizer(source)


def test_tokens_that_tokenizer_json_does_not_know(tmp_path: Path) -> None:
    source = save("encoder", tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"cls_token": "<s>"}))
    with pytest.raises(BertfuseError, match="does not know the cls_token '<s>'"):
        export_model(source, tmp_path / "out", exporter="torchscript")
