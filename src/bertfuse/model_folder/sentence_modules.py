"""The modules of a sentence-transformers folder, from its modules.json: which, in which order, with which settings.

All that sentence-transformers 3 to 6 write is either taken here, or refused in one line before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError

from .files import read_any_json, read_json

TRANSFORMER, STATIC = "Transformer", "StaticEmbedding"
MLM, SPARSE_STATIC = "MLMTransformer", "SparseStaticEmbedding"  # of a SparseEncoder
TABLES = (STATIC, SPARSE_STATIC)  # modules that read ids alone, without a transformer
ROUTERS = ("Router", "Asym")  # the second is what it was called up to 4.x
TOKENS, SENTENCE = "token_embeddings", "sentence_embedding"

# The flags of 1_Pooling/config.json up to 5.x, in the order in which sentence-transformers concatenates.
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLINGS = tuple(POOLING_FLAGS.values())
# Of bge-m3, beside the encoder: layers that give each token a weight, and a vector; and the outputs that they become.
M3_FILES = {"sparse_vecs": "sparse_linear.pt", "colbert_vecs": "colbert_linear.pt"}
VECTOR_OUTPUTS = ("text_embeds", "image_embeds", "pooler_output")  # of a model's outputs, those that are vectors
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU", "LeakyReLU", "ELU", "Softplus")

_SIZES = {"word_embedding_dimension", "embedding_dimension"}
_NAMES = {"module_input_name", "module_output_name"}
# What each module's config.json may hold.
KEYS: dict[str, set[str]] = {
    "Pooling": {*_SIZES, "pooling_mode", *POOLING_FLAGS, "include_prompt"},
    "Dense": {"in_features", "out_features", "bias", "activation_function", "use_residual", *_NAMES},
    "LayerNorm": {"dimension"},
    "Normalize": _NAMES,
    "Dropout": {"dropout"},
    "WeightedLayerPooling": {*_SIZES, "layer_start", "num_hidden_layers"},
}

# sentence_bert_config.json: keys that are applied elsewhere (see tokenizer.py),
# or change no vector; and for the others the one value that is taken.
_TRANSFORMER_TAKEN = {"max_seq_length", "do_lower_case", "unpad_inputs"}
_TRANSFORMER_VALUES: dict[str, tuple[Any, ...]] = {
    "module_output_name": (TOKENS, SENTENCE),
    "tokenizer_name_or_path": (None,),
    "query_length": (None,),
    "document_length": (None,),
    "query_expansion": (None,),
}
_OF_LATE_INTERACTION = ("query_length", "document_length", "query_expansion")
# Arguments of from_pretrained that sentence_bert_config.json may hold, and those of them that change no vector here.
_ARGUMENTS = {
    "model_args": {"attn_implementation", "torch_dtype", "dtype", "low_cpu_mem_usage", "use_safetensors"},
    "tokenizer_args": {"model_max_length", "use_fast", "clean_up_tokenization_spaces", "padding_side"},
    "config_args": set(),
}
_ARGUMENTS |= {
    "model_kwargs": _ARGUMENTS["model_args"],
    "processor_kwargs": _ARGUMENTS["tokenizer_args"],
    "config_kwargs": _ARGUMENTS["config_args"],
}
# processing_kwargs: what texts are tokenised with.
_PROCESSING = {"max_length", "truncation", "padding", "return_tensors", "pad_to_multiple_of"}
TRANSFORMER_KEYS = (
    {"transformer_task"}
    | _TRANSFORMER_TAKEN
    | {*_TRANSFORMER_VALUES, *_ARGUMENTS, "modality_config", "processing_kwargs"}
)
# Its names in sentence-transformers, which reads the first that there is.
TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True)
class Module:
    """One module: its class's name, its folder and the settings in that folder's config.json."""

    kind: str
    folder: Path
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> str:
        """What it reads: token_embeddings or sentence_embedding."""
        if self.kind in ("Pooling", "WeightedLayerPooling"):
            return TOKENS
        return str(self.config.get("module_input_name") or SENTENCE)

    @property
    def writes(self) -> str:
        """What it writes: token_embeddings or sentence_embedding."""
        if self.kind == "Pooling":
            return SENTENCE
        return str(self.config.get("module_output_name") or self.reads)

    @property
    def poolings(self) -> tuple[str, ...]:
        """Of a Pooling: those of POOLINGS that it concatenates, in that order."""
        named = self.config.get("pooling_mode")
        if isinstance(named, str | list) and named:
            return (named,) if isinstance(named, str) else tuple(map(str, named))
        return tuple(mode for flag, mode in POOLING_FLAGS.items() if self.config.get(flag)) or ("mean",)

    @property
    def activation(self) -> str:
        """Of a Dense: the name in torch.nn of what follows the product; Tanh where nothing is said."""
        return str(self.config.get("activation_function") or "torch.nn.Tanh").rsplit(".", 1)[-1]


@dataclass(frozen=True)
class Modules:
    """The module that texts go into, and those after it."""

    first: Module
    later: tuple[Module, ...]


def read_modules(folder: Path, source: str = "") -> Modules:
    """The modules of the folder, which errors call `source`; without modules.json a transformer and the mean of its
    tokens, as sentence-transformers takes it.

    Raises BertfuseError for whatever would make other vectors of texts than sentence-transformers makes.
    """
    source = source or str(folder)
    listed = module_list(folder, source)
    if listed is None:
        listed = [Module(TRANSFORMER, folder), Module("Pooling", folder / "1_Pooling", {"pooling_mode": "mean"})]
    else:
        listed = [_with_config(module) for module in listed]
    first, later = listed[0], tuple(module for module in listed[1:] if module.kind != "Dropout")
    if any(module.kind in ROUTERS for module in listed):
        raise BertfuseError(f"{source}: its modules part in routes, each a model of its own: name one of them")
    if first.kind not in (TRANSFORMER, STATIC):
        raise BertfuseError(f"{source}: modules.json begins with a {first.kind} module, which cannot be exported")
    if first.kind == TRANSFORMER:
        check_transformer(first.folder, source)
    has = {SENTENCE} if first.kind == STATIC or vector_of(first.folder) else {TOKENS}
    for module in later:
        where = f"{source}: {module.folder.name}/config.json"
        if module.kind not in KEYS:
            raise BertfuseError(f"{source}: modules.json has a {module.kind} module, which cannot be exported")
        check_keys(module.config, KEYS[module.kind], where)
        if module.reads not in has or module.writes not in (TOKENS, SENTENCE):
            raise BertfuseError(
                f"{where}: reads {module.reads} and writes {module.writes}, but of the modules before it there is"
                f" {' and '.join(sorted(has))} alone"
            )
        has.add(module.writes)
        unknown = [mode for mode in module.poolings if mode not in POOLINGS] if module.kind == "Pooling" else []
        if unknown:
            raise BertfuseError(f"{where}: pooling {', '.join(unknown)} is unknown: choose from {', '.join(POOLINGS)}")
        if module.kind == "Dense" and module.activation not in ACTIVATIONS:
            raise BertfuseError(
                f"{where}: activation {module.activation} is unknown: choose from {', '.join(ACTIVATIONS)}"
            )
        if module.kind == "WeightedLayerPooling" and not read_json(first.folder / "config.json").get(
            "output_hidden_states"
        ):
            raise BertfuseError(f"{source}: WeightedLayerPooling needs output_hidden_states: true in config.json")
        if module.kind in ("Dense", "LayerNorm", "WeightedLayerPooling"):
            _check_weights(module, source)
    if SENTENCE not in has:
        raise BertfuseError(f"{source}: modules.json has no Pooling module, so it makes no sentence vector")
    if first.kind == STATIC:
        _check_weights(first, source)
    return Modules(first, later)


def module_list(folder: Path, source: str = "") -> list[Module] | None:
    """What modules.json lists, without the modules' settings; None where there is no such file."""
    source = source or str(folder)
    listed = read_any_json(folder / "modules.json")
    if listed is None:
        return None
    if not isinstance(listed, list) or not listed or not all(isinstance(module, dict) for module in listed):
        raise BertfuseError(f"{source}: modules.json is not a list of modules; save the model again")
    modules = [Module(kind_of(entry.get("type")), folder / str(entry.get("path") or "")) for entry in listed]
    for module in modules:
        if not module.folder.resolve().is_relative_to(folder.resolve()):
            raise BertfuseError(f"{source}: modules.json names a folder outside of the model: {module.folder}")
    return modules


def first_module(folder: Path) -> Module:
    """The module that texts go into; of a folder without modules.json a transformer."""
    listed = module_list(folder)
    return listed[0] if listed else Module(TRANSFORMER, folder)


def vector_size(modules: Modules, hidden: int) -> int:
    """How many numbers a sentence's vector has, where a token's has `hidden`."""
    for module in modules.later:
        if module.kind == "Dense":
            hidden = int(module.config.get("out_features", hidden))
        elif module.kind == "Pooling":
            hidden *= len(module.poolings)
    return hidden


def pools_prompt(folder: Path) -> bool:
    """Whether pooling reads the tokens of the prompt, too."""
    found = [_with_config(module).config for module in module_list(folder) or [] if module.kind == "Pooling"]
    return all(config.get("include_prompt", True) is not False for config in found)


def kind_of(named: Any) -> str:
    """The class's name. Up to 3.x a Router's types name modules of Python that are called as their class."""
    return str(named or "").rsplit(".", 1)[-1]


def _with_config(module: Module) -> Module:
    return Module(module.kind, module.folder, read_json(module.folder / "config.json") if module.kind in KEYS else {})


def check_keys(config: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise BertfuseError(f"{where}: has {unknown[0]}, which is not known here, so its vectors may be others")


def _check_weights(module: Module, source: str) -> None:
    if not (module.folder / "model.safetensors").is_file():
        raise BertfuseError(
            f"{source}: {module.folder.name} has no model.safetensors; save it with safe_serialization=True"
        )


def transformer_settings(folder: Path) -> tuple[str, dict[str, Any]]:
    """The name of a Transformer module's settings file, and what is in it."""
    for name in TRANSFORMER_FILES:
        found = read_json(folder / name)
        if found:
            return name, found
    return TRANSFORMER_FILES[0], {}


def check_transformer(
    folder: Path,
    source: str = "",
    task: str = "feature-extraction",
    outputs: Sequence[str | None] = ("last_hidden_state", None),
    late: bool = False,
) -> None:
    """Raises BertfuseError for settings in sentence_bert_config.json that would be ignored, and for those of another
    task, or another of the model's outputs than these.
    """
    name, config = transformer_settings(folder)
    where = f"{source or folder}: {name}"
    check_keys(config, TRANSFORMER_KEYS, where)
    if config.get("transformer_task", task) != task:
        raise BertfuseError(f"{where}: transformer_task is {config['transformer_task']!r}, not {task!r}")
    for key, taken in _TRANSFORMER_VALUES.items():
        if late and key in _OF_LATE_INTERACTION:
            continue  # multi_vector.py reads them
        if key in config and config[key] not in taken:
            raise BertfuseError(f"{where}: {key} is {config[key]!r}, which a sentence encoder's export cannot have")
    for key, known in _ARGUMENTS.items():
        check_keys(_settings(config, key, where), known, f"{where}: {key}")
    for kind, entries in _settings(config, "processing_kwargs", where).items():
        check_keys({kind: entries}, ("text", "common"), f"{where}: processing_kwargs")
        check_keys(entries or {}, _PROCESSING, f"{where}: processing_kwargs, {kind}")
        if (entries or {}).get("truncation") is False:
            raise BertfuseError(f"{where}: processing_kwargs asks for no truncation, but texts are always cut")
    modalities = _settings(config, "modality_config", where)
    vector = config.get("module_output_name") == SENTENCE
    if modalities or vector:
        text = modalities.get("text") or modalities.get("image")
        if not isinstance(text, dict) or text.get("method") != "forward":
            raise BertfuseError(f"{where}: modality_config has no text that goes through the model's forward")
        known = VECTOR_OUTPUTS if vector else outputs
        if text.get("method_output_name") not in known:
            raise BertfuseError(
                f"{where}: modality_config takes {text.get('method_output_name')} of the model, not {known[0]}"
            )


def vector_of(folder: Path) -> str | None:
    """Which output of the transformer in `folder` is the sentence's vector; None where there are tokens' alone."""
    config = transformer_settings(folder)[1]
    if config.get("module_output_name") != SENTENCE:
        return None
    found = [entry for entry in (config.get("modality_config") or {}).values() if isinstance(entry, dict)]
    return str(found[0].get("method_output_name")) if found else None


def _settings(config: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise BertfuseError(f"{where}: {key} is not an object")
    return found


def longest_asked(folder: Path) -> int | None:
    """At how many tokens the settings of the transformer in `folder` cut texts; None where they do not say.

    What is said of each call (processing_kwargs) goes before the tokenizer's arguments, these before max_seq_length.
    """
    _, config = transformer_settings(folder)
    processing = config.get("processing_kwargs") or {}
    arguments = config.get("processor_kwargs") or config.get("tokenizer_args") or {}
    asked = [(processing.get(kind) or {}).get("max_length") for kind in ("text", "common")]
    for value in (*asked, arguments.get("model_max_length"), config.get("max_seq_length")):
        if isinstance(value, int) and not isinstance(value, bool) and value > 2:
            return value
    return None
