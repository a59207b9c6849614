"""A fused model with 8-bit weights: calibrated, tried layer by layer, and judged on texts."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError, FusionError
from bertfuse.files import check_target
from bertfuse.graph_rewrite import fuse_file, quantization
from bertfuse.graph_rewrite.dialect.quantized import FLOAT8, INT8, LARGEST, NUMPY, quantized_rows
from bertfuse.graph_rewrite.io import open_model, write
from bertfuse.graph_rewrite.passes.rows import ATTENTIONS
from bertfuse.graph_rewrite.quantization import Layer, LayerScales, RoundedWeight
from bertfuse.graph_rewrite.quantized_residuals import restored_residuals
from bertfuse.graph_rewrite.quantized_results import ResultScale
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.measuring.judgement import Judgement, judge_sessions
from bertfuse.measuring.layer_inputs import LayerInput, layer_inputs
from bertfuse.measuring.subjects import open_session
from bertfuse.model_folder.files import MODEL_FILE, ONNX_FOLDER, ORIGINAL_FILE, find_model, folder_of
from bertfuse.runtime.inputs import fit_inputs, read_npz, read_texts, text_inputs

ACTIVATIONS, WEIGHT_SCALES = ("token", "tensor"), ("channel", "tensor")
# How much of the difference between columns goes from the activations into the weights (SmoothQuant's alpha), which
# are rounded with compensation and bear more than the activations do, but not with one scale for a whole weight.
# MiniLM's real weights, 500 sentences, mean cosine to float32: 0.99887, 0.99935, 0.99940 and 0.99935 with 0.5, 0.65,
# 0.7 and 0.8; with one scale 0.99627 and 0.97514 with 0.5 and 0.7.
SMOOTHING, SMOOTHING_WITH_ONE_SCALE = 0.7, 0.5
# Of GELU's results as integers of one scale for the tensor: columns that are alike waste less of its range. The same
# with 400 sentences: 0.99824, 0.99877, 0.99886 and 0.99885 with 0.7, 0.8, 0.85 and 0.9.
SMOOTHING_OF_GELU = 0.85
_BATCH = 16
# 8-bit floats keep as many digits of small numbers as of large ones: what a text has beyond the calibration data's
# largest number is not cut off.
_HEADROOM = {FLOAT8: 2.0, INT8: 1.1}


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer, whether its weight is quantised (`kept`: why not), its scales, and the error that costs.

    `error` is |y - y'| / |y| of the layer's product on calibration data (of the weight without such data, or of a
    table). `x_scale` is None where each row has its own.
    """

    name: str
    op: str
    shape: tuple[int, int]
    scale_least: float
    scale_most: float
    error: float
    x_scale: float | None = None
    kept: str = ""


@dataclass
class Quantized:
    """What `quantize` wrote: the file, its layers, bytes before and after, and what texts that were not calibrated with
    tell of it; None without calibration data.
    """

    model: Path
    layers: list[QuantizedLayer]
    bytes_before: int
    bytes_after: int
    judgement: Judgement | None = None
    messages: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": str(self.model),
            "layers": [asdict(layer) for layer in self.layers],
            "bytes": {"before": self.bytes_before, "after": self.bytes_after},
            "judgement": None if self.judgement is None else self.judgement.to_dict(),
            "messages": list(self.messages),
        }


def quantize(
    source: str | Path,
    target: str | Path,
    *,
    to: str = "int8",
    calibration: str | Path | Sequence[str] | Mapping[str, np.ndarray] | None = None,
    activations: str = "token",
    keep: Collection[str] = (),
    min_cosine: float | None = None,
    residual: bool = False,
    weight_scales: str = "channel",
    results: bool | None = None,
    progress: Callable[[str], None] | None = None,
) -> Quantized:
    """Writes the model at `source` (a file, or the folder that holds it) with 8-bit weights to the file `target`.

    A model that is not fused is fused first. Word embeddings have a scale for each word.

    Args:
        to: "int8", or "fp8" (e4m3, for GPUs from compute capability 8.9 on; word embeddings become int8).
        calibration: texts (a file with one per line, or a sequence), for which the model's folder must hold a
            tokenizer, or inputs [B, S] by name (an .npz file, or a mapping). Of every two texts (rows of inputs) the
            first is calibrated with, the second judged on. Without it activations are not smoothed.
        activations: "token" gives each row a scale of its own as it is multiplied; "tensor" gives each tensor one from
            the calibration data, which is coarser.
        keep: names of layers, or of ops, that stay in float.
        min_cosine: keeps the layers with the largest errors in float, as few as that takes for this least cosine
            between the two models' answers.
        residual: rounds residuals to int8, too. In half-precision models norms hand them on as they write them for
            products, in place of their rows in half precision; in float32 operators round them, by column.
        weight_scales: "channel" gives a weight a scale for each output channel, "tensor" one (Q, K and V one each, and
            both factors of a gate), of integers: with `residual` FasterTransformer's int8 mode 2.
        results: whether ops write in 8 bits what the next product reads, on GPUs in place of a kernel between them.
            Numbers are the same, but those of attention, FusedGemmGelu and, in 8-bit floats, FusedGatedGemm, which have
            one scale for the tensor then; these take calibration data.
            None: of half-precision models, which are for GPUs, where it was faster (docs/performance.md).

    Raises BertfuseError: a model, data or options that cannot be used, or a cosine that no quantised layer allows.
    """
    source, target, say = find_model(source, prefer_fused=True), Path(target), progress or (lambda step: None)
    _check_options(to, activations, min_cosine, calibration, residual, weight_scales)
    check_target(target, [source], onnx_file=True)
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        say("Reading the model")
        fused = _fused(source, Path(scratch), say)
        skeleton, weights = open_model(fused)
        try:
            layers = quantization.find_layers(skeleton, weights)
            quantization.check_type(skeleton, to)
        except FusionError as error:
            raise BertfuseError(f"{source}: {error}") from error
        kept = _kept(layers, keep)
        learn, test = _feeds(calibration, source, fused)
        if results is None:
            results = quantization.is_half(skeleton)
        one_scale = weight_scales == "tensor"
        trial = _Trial(fused, skeleton, weights, layers, Path(scratch), to, residual, one_scale, results)
        if learn:
            say(f"Calibrating with {sum(len(next(iter(feed.values()))) for feed in learn)} texts")
            names = [layer.x for layer in layers] + [layer.residual for layer in layers if residual]
            names = [name for name in dict.fromkeys(names) if name]
            trial.inputs = layer_inputs(fused, names, learn)
        say("Rounding weights")
        measured = {layer.name: trial.measure(layer, activations) for layer in layers}
        chosen = {layer.name for layer in layers if layer.name not in kept}
        if min_cosine is not None:
            kept |= trial.search(chosen, measured, test, min_cosine, say)
        chosen -= set(kept)
        if not chosen:
            raise BertfuseError(f"{source}: no layer is left to quantise; keep fewer, or lower the least cosine")
        say("Writing the model")
        made, made_weights = trial.model(chosen)
        write(made, made_weights, target)
        judgement = None
        if test:
            say("Judging it")
            judgement = judge_sessions(open_session(fused), open_session(target), test)
        before = source.stat().st_size
    result = [_reported(measured[layer.name], kept.get(layer.name, "")) for layer in layers]
    messages = _messages(calibration)
    if residual and results and quantization.is_half(skeleton) and not restored_residuals(made):
        messages.append("no residual is handed on in 8 bits: that takes post-norm blocks whose products are quantised")
    return Quantized(target, result, before, target.stat().st_size, judgement, messages)


def quantize_folder(source: str | Path, target: str | Path, **options: Any) -> Quantized:
    """As `quantize`, from a folder that export or optimize wrote into one of its own, all of it or nothing.

    Options and errors as for `quantize`.
    """
    from bertfuse.export.folder import STALE_MODELS, STALE_SETTINGS, check_apart, output_folder
    from bertfuse.export.source import copy_files

    original, folder = find_model(source, prefer_fused=False), Path(target)
    check_apart(folder_of(original), folder)
    with output_folder(folder, STALE_MODELS | STALE_SETTINGS) as scratch:
        place = Path(scratch, ONNX_FOLDER, MODEL_FILE)
        found = quantize(source, place, **options)
        copy_files(folder_of(original), scratch, without=folder)
        write(*open_model(original), place.with_name(ORIGINAL_FILE))
    found.model = folder / ONNX_FOLDER / MODEL_FILE
    return found


def _reported(layer: QuantizedLayer, kept: str) -> QuantizedLayer:
    return QuantizedLayer(**(asdict(layer) | {"kept": kept}))


def _messages(calibration: Any) -> list[str]:
    return [] if calibration is not None else ["without calibration data nothing is smoothed, and nothing was judged"]


def _check_options(
    to: str, activations: str, min_cosine: float | None, calibration: Any, residual: bool, weight_scales: str
) -> None:
    if to not in quantization.TYPES:
        raise BertfuseError(f"type {to!r} is unknown: choose one of {', '.join(quantization.TYPES)}")
    if activations not in ACTIVATIONS:
        raise BertfuseError(f"activations {activations!r} are unknown: choose one of {', '.join(ACTIVATIONS)}")
    if min_cosine is not None and not 0 < min_cosine < 1:
        raise BertfuseError(f"least cosine {min_cosine:g}: give a number between 0 and 1, as in 0.999")
    if weight_scales not in WEIGHT_SCALES:
        raise BertfuseError(f"weight scales {weight_scales!r} are unknown: choose one of {', '.join(WEIGHT_SCALES)}")
    if residual and to != "int8":
        raise BertfuseError(f"residuals are rounded to int8, beside weights of int8: not to {to}")
    if weight_scales == "tensor" and to != "int8":
        raise BertfuseError(f"weights of {to} have a scale for each output channel: one for a weight is of int8")
    every = (("one scale for each tensor", activations == "tensor"), ("a least cosine", min_cosine))
    for needs, wanted in (*every, ("a rounded residual", residual)):
        if wanted and calibration is None:
            raise BertfuseError(f"{needs} takes calibration data: give a file of texts, or an .npz file of inputs")


def _fused(source: Path, scratch: Path, say: Callable[[str], None]) -> Path:
    """The model itself where it is fused or quantised, else its fused form."""
    skeleton = open_model(source)[0]
    is_fused = any(node.domain == DOMAIN for node in skeleton.graph.node)
    if is_fused or quantization.foreign_operators(skeleton):
        return source
    say("Fusing the model")
    result = fuse_file(source, scratch / "fused.onnx")
    if not result.fused:
        raise BertfuseError(f"{source}: nothing in it can be fused, and only fused layers are quantised")
    return scratch / "fused.onnx"


def _kept(layers: Sequence[Layer], keep: Collection[str]) -> dict[str, str]:
    known = {layer.name for layer in layers} | {layer.op for layer in layers}
    for name in keep:
        if name not in known:
            raise BertfuseError(f"there is no layer {name!r} to keep; there are {', '.join(sorted(known))}")
    return {layer.name: "asked to be kept" for layer in layers if {layer.name, layer.op} & set(keep)}


Feeds = list[dict[str, np.ndarray]]


def _feeds(calibration: Any, source: Path, fused: Path) -> tuple[Feeds, Feeds]:
    """What is calibrated with, and what is judged on: every other text, in batches."""
    if calibration is None:
        return [], []
    where = str(calibration) if isinstance(calibration, str | Path) else "the calibration data"
    session = open_session(fused)
    if isinstance(calibration, str | Path) and Path(calibration).suffix == ".npz":
        calibration = read_npz(calibration)
    elif isinstance(calibration, str | Path):
        calibration = read_texts(calibration)
    if isinstance(calibration, Mapping):
        arrays = fit_inputs(session, dict(calibration), where)
        if not all(array.size for array in arrays.values()):
            raise BertfuseError(f"{where}: holds no rows")
        rows = [{name: array[i : i + _BATCH] for name, array in arrays.items()} for i in _steps(arrays)]
        return _halves(rows) if len(rows) > 1 else (rows, rows)
    texts = [text for text in calibration if text.strip()]
    if not texts:
        raise BertfuseError(f"{where}: holds no text")
    parts = (texts[::2], texts[1::2]) if len(texts) > 1 else (texts, texts)
    found: list[Feeds] = []
    for part in parts:
        ordered = sorted(part, key=len)
        batches = [ordered[i : i + _BATCH] for i in range(0, len(ordered), _BATCH)]
        found.append([fit_inputs(session, text_inputs(folder_of(source), batch), where) for batch in batches])
    return found[0], found[1]


def _steps(arrays: Mapping[str, np.ndarray]) -> range:
    return range(0, len(next(iter(arrays.values()))), _BATCH)


def _halves(feeds: Feeds) -> tuple[Feeds, Feeds]:
    return feeds[::2], feeds[1::2]


@dataclass
class _Trial:
    """The fused model, and what is known of quantising its layers."""

    fused: Path
    skeleton: Any
    weights: dict[str, Any]
    layers: list[Layer]
    scratch: Path
    to: str = "int8"
    residual: bool = False
    one_weight_scale: bool = False
    results: bool = False
    inputs: dict[str, LayerInput] = field(default_factory=dict)
    scales: dict[str, LayerScales] = field(default_factory=dict)

    def measure(self, layer: Layer, activations: str) -> QuantizedLayer:
        """Chooses the layer's scales and measures what they cost."""
        weight = quantization.load_weight(self.skeleton, self.weights, layer)
        data_type = quantization.type_of(layer, self.to)
        given = self.inputs.get(layer.x)
        one_scale = self.results and data_type == INT8 and layer.writer == "FusedGemmGelu"
        alpha = SMOOTHING_WITH_ONE_SCALE if self.one_weight_scale else SMOOTHING_OF_GELU if one_scale else SMOOTHING
        smooth = None if given is None else _smoothing(given.magnitudes, np.abs(weight).max(axis=0), alpha)
        x_scale = None
        largest = 0.0 if given is None else float((given.magnitudes * smooth).max())
        if given is not None and activations == "tensor":
            if not largest:
                raise BertfuseError(
                    f"{self.fused}: layer '{layer.name}': its input is 0 for all calibration data, from which no scale "
                    "follows; give other texts"
                )
            x_scale = largest / LARGEST[data_type]
        written = None if largest == 0 else _written(layer, given, smooth, data_type, self.one_weight_scale)
        made = self._rounded(layer, weight, data_type, smooth)
        self.scales[layer.name] = LayerScales(made, smooth, x_scale, self._residual_scale(layer), written)
        by_row = made.scales
        restored = made.load().astype(np.float32) * by_row[:, None]
        if given is None:
            error = _relative(weight, restored)
        else:
            rows, scale = quantized_rows(given.rows, NUMPY[data_type], smooth, x_scale)
            error = _relative(given.rows @ weight.T, rows.astype(np.float32) * scale @ restored.T)
        least, most = float(by_row.min()), float(by_row.max())
        return QuantizedLayer(layer.name, layer.op, layer.shape, least, most, error, x_scale)

    def _rounded(self, layer: Layer, weight: np.ndarray, data_type: int, smooth: np.ndarray | None) -> RoundedWeight:
        """The weight in 8 bits, in a file from which all trials read it."""
        given = self.inputs.get(layer.x)
        parts, moments = layer.parts if self.one_weight_scale else 0, None if given is None else given.moments
        made = quantization.round_weight(weight, data_type, smooth, parts, moments)
        numbers, file = made.load(), self.scratch / f"{len(self.scales)}.npy"
        np.save(file, numbers.view(np.uint8))
        return RoundedWeight(made.scales, lambda: np.load(file).view(numbers.dtype))

    def _residual_scale(self, layer: Layer) -> np.ndarray | None:
        if not self.residual or not layer.residual:
            return None
        magnitudes = self.inputs[layer.residual].magnitudes
        return np.maximum(magnitudes, max(float(magnitudes.max()), 1e-6) * 1e-3) / LARGEST[quantization.TYPES["int8"]]

    def model(self, chosen: Collection[str]) -> tuple[Any, dict[str, Any]]:
        scales = {name: self.scales[name] for name in chosen}
        return quantization.quantize(self.skeleton, self.weights, self.layers, scales, self.to, self.results)

    def search(
        self,
        chosen: Collection[str],
        measured: Mapping[str, QuantizedLayer],
        feeds: Feeds,
        wanted: float,
        say: Callable[[str], None],
    ) -> dict[str, str]:
        """The fewest layers, those with the largest errors, that must stay in float, with the reason."""
        ranked = sorted(chosen, key=lambda name: -measured[name].error)
        reference = open_session(self.fused)

        def cosine(count: int) -> float:
            say(f"Trying with {count} of {len(ranked)} layers in float")
            path = self.scratch / "trial.onnx"
            write(*self.model(ranked[count:]), path)
            found = judge_sessions(reference, open_session(path), feeds)
            return found.rank_correlation if found.cosine_least is None else found.cosine_least

        low, high = 0, len(ranked)  # with `high` in float it is good enough
        while low < high:
            middle = (low + high) // 2
            good = cosine(middle) >= wanted
            low, high = (low, middle) if good else (middle + 1, high)
        return {name: f"costs too much for a least cosine of {wanted:g}" for name in ranked[:high]}


def _written(
    layer: Layer, given: LayerInput, smooth: np.ndarray, data_type: int, one_weight_scale: bool
) -> ResultScale | None:
    """One scale for a layer's smoothed input, where the op that writes it has no whole rows.

    GELU's results are from -0.17 on: integers of a symmetric scale would hardly ever be below 0. Where a whole weight
    has one scale, too, its inputs are smoothed too little for that (MiniLM's mean cosine would be 0.976, not 0.996).
    """
    room = _HEADROOM[data_type]
    if data_type == FLOAT8 or layer.writer in ATTENTIONS:
        return ResultScale(room * float((given.magnitudes * smooth).max()) / LARGEST[data_type])
    if layer.writer != "FusedGemmGelu" or one_weight_scale:
        return None
    low, high = room * float((given.least * smooth).min()), room * float((given.most * smooth).max())
    scale = (high - low) / 255
    return ResultScale(scale, round(-128 - low / scale))


def _smoothing(inputs: np.ndarray, weights: np.ndarray, alpha: float) -> np.ndarray:
    """float32 [K]: what columns of x are multiplied with, so that theirs and the weight's magnitudes are more alike."""
    some = (inputs > 0) & (weights > 0)
    with np.errstate(all="ignore"):
        factors = np.where(some, weights ** (1 - alpha) / inputs**alpha, 1.0)
    factors = factors / (np.exp(np.log(factors[some]).mean()) if some.any() else 1.0)
    # A column that is hardly ever anything must not have its weights rounded to nothing.
    return np.clip(factors, 1e-3, 1e3).astype(np.float32)


def _relative(right: np.ndarray, other: np.ndarray) -> float:
    size = float(np.linalg.norm(right))
    return float(np.linalg.norm(right - other)) / size if size else (math.inf if np.any(other) else 0.0)
