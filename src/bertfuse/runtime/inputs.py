"""Inputs for a model: from text, from a file, or random but valid (ids in the vocabulary, masks with padding)."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import folder_of, of_texts, read_config
from bertfuse.model_folder.tokenizer import longest_text, open_tokenizer, padding_token, takes_types

if TYPE_CHECKING:
    import onnxruntime

_NUMPY = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(bool)": np.bool_,
}


_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")
PIXELS = "pixel_values"


def is_fixed(size: object) -> bool:
    """Whether an axis is of one size: a dynamic one is a name or None, in TensorRT -1."""
    return isinstance(size, int) and size >= 0


def read_npz(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by input name. Raises BertfuseError when it is not one."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError as error:
        raise BertfuseError(f"{path}: no such file; check the path") from error
    except (OSError, ValueError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise BertfuseError(f"{path}: not an .npz file of plain arrays; write it with numpy.savez") from error


def fit_inputs(
    session: onnxruntime.InferenceSession, arrays: dict[str, np.ndarray], where: str
) -> dict[str, np.ndarray]:
    """Of `arrays` those that the session takes, in its dtypes.

    Raises BertfuseError, which starts with `where`, for one that is missing, misshapen or of another kind of dtype.
    """
    feed = {}
    for value in session.get_inputs():
        if value.name not in arrays:
            raise BertfuseError(f"{where}: no input {value.name!r}; it has {', '.join(arrays) or 'nothing'}")
        array = arrays[value.name]
        if array.ndim != len(value.shape) or any(
            is_fixed(size) and size != given for size, given in zip(value.shape, array.shape, strict=True)
        ):
            raise BertfuseError(
                f"{where}: input {value.name!r} has shape {list(array.shape)}, the model takes {value.shape}"
            )
        dtype = np.dtype(_NUMPY.get(value.type, array.dtype))
        # Masks are integers by custom, also where the model has them as bool.
        if not np.can_cast(array.dtype, dtype, "same_kind") and (array.dtype.kind, dtype.kind) != ("i", "b"):
            raise BertfuseError(f"{where}: input {value.name!r} holds {array.dtype}, the model takes {dtype}")
        feed[value.name] = np.ascontiguousarray(array, dtype=dtype)
    return feed


def load_tokenizer(folder: str | Path) -> Any:
    """The folder's tokenizers.Tokenizer, padding to the longest text and cutting where the model's folder says."""
    folder = Path(folder)
    return _padding_tokenizer(folder.resolve(), longest_text(folder))


@lru_cache(maxsize=4)
def _padding_tokenizer(folder: Path, longest: int) -> Any:
    tokenizer = open_tokenizer(folder, longest)
    pad_id, token = padding_token(folder, tokenizer)
    tokenizer.enable_padding(pad_id=pad_id, pad_token=token)
    return tokenizer


def text_inputs(
    folder: str | Path, texts: Sequence[str], pairs: Sequence[str] | None = None, at_least: int = 1
) -> dict[str, np.ndarray]:
    """int64 [batch, sequence] arrays for `texts` (with second segments `pairs`), by the tokenizer in `folder`.

    Padded to the longest, and to `at_least` tokens; cut where the folder says. Raises BertfuseError where the
    folder has no tokenizer.
    """
    folder = Path(folder)
    if pairs and len(pairs) != len(texts):
        raise BertfuseError(f"{len(texts)} texts but {len(pairs)} second texts: give as many of each")
    tokenizer = load_tokenizer(folder)
    encoded = tokenizer.encode_batch(list(zip(texts, pairs, strict=True)) if pairs else list(texts))
    padding, typed = tokenizer.padding, takes_types(folder)
    for line in encoded:
        line.pad(at_least, pad_id=padding["pad_id"], pad_token=padding["pad_token"])
    return {
        "input_ids": np.array([line.ids for line in encoded], dtype=np.int64),
        "attention_mask": np.array([line.attention_mask for line in encoded], dtype=np.int64),
        "token_type_ids": np.array([line.type_ids for line in encoded], dtype=np.int64) * typed,
    }


def read_texts(file: str | Path) -> list[str]:
    """The lines of a file that are not blank. Raises BertfuseError where it cannot be read, or holds none."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise BertfuseError(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise BertfuseError(f"{file}: cannot be read: {error.strerror}; check the path") from error
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise BertfuseError(f"{file}: holds no text")
    return texts


def random_inputs(
    session: onnxruntime.InferenceSession,
    sizes: dict[str, int],
    batch: int = 2,
    sequence: int = 32,
    seed: int = 0,
    padded: bool = True,
) -> dict[str, np.ndarray]:
    """Random arrays [batch, sequence] for a session of a text encoder, and images for one that takes them.

    `sizes` (see `vocabulary_sizes`) bounds ids by input name. With `padded` every row but the first is padded to a
    length of its own; else all rows are full. Raises BertfuseError for a negative seed and for an input whose valid
    values are unknown.
    """
    if seed < 0:
        raise BertfuseError(f"seed {seed}: give 0 or more")
    random = np.random.default_rng(seed)
    lengths = np.full(batch, sequence)
    if padded:
        lengths[1:] = random.integers(max(1, sequence // 2), sequence + 1, size=batch - 1)
    columns = np.arange(sequence)[None, :]
    feed = {}
    for value in session.get_inputs():
        if value.name == PIXELS and all(map(is_fixed, value.shape[1:])) and value.type in _FLOATS:
            images = value.shape[0] if is_fixed(value.shape[0]) else batch
            feed[value.name] = random.standard_normal((images, *value.shape[1:])).astype(_NUMPY[value.type])
            continue
        if len(value.shape) != 2 or value.type not in ("tensor(int64)", "tensor(int32)"):
            raise BertfuseError(
                f"input {value.name!r} ({value.type}, {value.shape}) is not one that a text encoder has;"
                " give arrays (--input file.npz)"
            )
        if "mask" in value.name:
            array = (columns < lengths[:, None]).astype(np.int64)
        elif "position" in value.name:
            array = np.broadcast_to(columns, (batch, sequence))
        elif value.name in sizes:
            array = random.integers(0, sizes[value.name], size=(batch, sequence))
        elif "type" in value.name:
            array = np.zeros((batch, sequence))
        else:
            raise BertfuseError(f"input {value.name!r}: its vocabulary is unknown; give arrays (--input file.npz)")
        feed[value.name] = np.ascontiguousarray(array, dtype=_NUMPY[value.type])
    return feed


def vocabulary_sizes(path: Path) -> dict[str, int]:
    """How many ids each input of the model at `path` may hold: from config.json beside it, else from its tables."""
    config = of_texts(read_config(folder_of(path)))
    sizes = {"input_ids": config.get("vocab_size"), "token_type_ids": config.get("type_vocab_size")}
    if not sizes["input_ids"]:
        sizes = _table_sizes(path)
    return {name: int(size) for name, size in sizes.items() if size}


def _table_sizes(path: Path) -> dict[str, int]:
    from bertfuse.graph_rewrite import OPS
    from bertfuse.graph_rewrite.io import open_model

    model = open_model(path)[0]
    graph = model.graph
    said = next((entry.value for entry in model.metadata_props if entry.key == "bertfuse.vocab_size"), "")
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 2}
    inputs = {value.name for value in graph.input}
    sizes: dict[str, int] = {}
    embed = OPS["EmbedLayerNorm"]
    tables = [("ids", "word_table"), ("token_type_ids", "token_type_table")]
    pairs = {"Gather": [(1, 0)], embed.name: [(embed.input_index(i), embed.input_index(t)) for i, t in tables]}
    for node in graph.node:
        for index, table in pairs.get(node.op_type, []):
            if max(index, table) >= len(node.input):
                continue
            name = node.input[index]
            if name in inputs and node.input[table] in rows:
                sizes[name] = min(sizes.get(name, 1 << 31), rows[node.input[table]])
    return sizes or ({"input_ids": int(said)} if said.isdigit() else {})
