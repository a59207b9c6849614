"""The whole way in one call: a Hugging Face model exported, fused, and compared with its export."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfuse.errors import BertfuseError
from bertfuse.export import export_model
from bertfuse.garbage import only_new_garbage
from bertfuse.graph_rewrite import FuseOptions, FusionResult, fuse_file
from bertfuse.graph_rewrite.outputs import give_float32, keep_outputs
from bertfuse.measuring.compare import Comparison, compare_models
from bertfuse.measuring.differences import TOLERANCES
from bertfuse.model_folder.files import MODEL_FILE
from bertfuse.model_folder.routes import ROUTES, route_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TYPES = {"fp16": "float16", "bf16": "bfloat16"}


@dataclass
class Optimized:
    """The export, the fused model beside it, and whether both compute the same.

    `comparison` is None where they could not be compared on this machine; `not_compared` says why. `routes` are all of
    a sentence-transformers Router, by name; this is then the one of texts whose route is not said.
    """

    original: Path
    model: Path
    options: FuseOptions
    fusion: FusionResult
    comparison: Comparison | None = None
    not_compared: str = ""
    routes: dict[str, Optimized] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.comparison is not None and self.comparison.passed


@dataclass
class _Making:
    """Options that are left to try of one export, and what came of the first that fused."""

    waiting: list[FuseOptions]
    found: Optimized


@only_new_garbage()
def optimize(
    model: str | Path | PreTrainedModel,
    output_dir: str | Path,
    options: FuseOptions | Sequence[FuseOptions] | None = None,
    *,
    providers: Sequence[Any] | None = None,
    outputs: Collection[str] = (),
    float32_outputs: bool = False,
    progress: Callable[[str], None] | None = None,
    **export: Any,
) -> Optimized:
    """Exports a model, fuses the export, and compares the two on random inputs ([2, 32] with padding, and [1, 7]).

    Args:
        model, output_dir, and everything in `export`: as for `export_model`; the export is float32 and stays beside
            the fused model, as onnx/model.onnx.original.
        options: how it is fused. Of several the first counts with which fusion succeeds and the fused model agrees with
            the export, within TOLERANCES of its type.
        providers: of ONNX Runtime, for the fused model; None is the CPU.
        outputs: these are kept alone where the model has them, and others besides.
        float32_outputs: whether outputs are float32 whatever the model's type.
        progress: called with a line of text before each long step.

    Returns:
        What was made of the first options that passed, else of the last: `passed` tells.

    Raises:
        BertfuseError: what cannot be exported, or fused with any of the options; nothing is left behind.
    """
    say = progress or (lambda line: None)
    given = [options] if isinstance(options, FuseOptions) else list(options or [FuseOptions()])

    def fuse_next(original: Path, waiting: list[FuseOptions]) -> Optimized:
        fused, chosen = original.with_name(MODEL_FILE), waiting.pop(0)
        try:
            result = fuse_file(original, fused, chosen, lambda step: say(f"Fusing {output_dir}: {step}"))
        except BertfuseError as error:
            if not waiting:
                raise
            say(f"Not with {chosen}: {error}")
            return fuse_next(original, waiting)
        if float32_outputs:
            give_float32(fused)
        return Optimized(original, fused, chosen, result)

    made: list[_Making] = []

    def fuse_beside(original: Path) -> None:
        if outputs:
            keep_outputs(original, outputs)
        waiting = list(given)
        made.append(_Making(waiting, fuse_next(original, waiting)))

    def compared(one: _Making, original: Path) -> Optimized:
        found = one.found
        found.original, found.model = original, original.with_name(MODEL_FILE)
        while True:
            say("Comparing with the exported model")
            _compare(found, providers)
            if found.passed or not one.waiting:
                return found
            say(f"Not with {found.options}: {found.not_compared or 'it computes something else'}")
            found = fuse_next(original, one.waiting)

    original = export_model(model, output_dir, original=True, then=fuse_beside, progress=progress, **export)
    target = Path(output_dir).expanduser()
    if original.parents[1] == target:
        return compared(made[0], original)
    names = route_names(target)
    routes = {
        name: compared(one, target / ROUTES / name / original.relative_to(original.parents[1]))
        for name, one in zip(names, made, strict=True)
    }
    return replace(routes[original.parents[1].name], routes=routes)


def _compare(made: Optimized, providers: Sequence[Any] | None) -> None:
    # By the type that is computed in: outputs may be float32 all the same.
    atol, rtol = TOLERANCES[_TYPES.get(made.options.dtype or "", "float32")]
    try:
        made.comparison = compare_models(made.original, made.model, providers=providers, atol=atol, rtol=rtol)
    except BertfuseError as error:  # as bfloat16 where there is no GPU
        made.not_compared = str(error)
