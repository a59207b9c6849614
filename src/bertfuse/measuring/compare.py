"""Models and engines on the same inputs, output by output or tensor by tensor, run and compared with polygraphy."""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.measuring.differences import QUANTIZED_COSINE, OutputDifference, difference, without_padding
from bertfuse.model_folder.files import folder_of, longest_sequence, read_config
from bertfuse.runtime.inputs import fit_inputs, random_inputs, text_inputs, vocabulary_sizes
from bertfuse.runtime.ragged_inputs import MASK
from bertfuse.runtime.session import ort_errors

from .bisection import Bisection, bisect, check_bisectable
from .judgement import Judgement, answer_output, judge_answers
from .subjects import Subject
from .tensors import computed_tensors, expose

_TEXTS_AT_A_TIME = 32


@dataclass
class Comparison:
    """What `compare_models` found. With per_node `tensors` holds all shared ones, in execution order.

    `left_out` says which places were not compared, "" where all were. `judgement`: of several texts, where one of the
    models is quantised, by bertfuse or by another tool.
    """

    reference: str
    other: str
    outputs: list[OutputDifference]
    tensors: list[OutputDifference] = field(default_factory=list)
    bisection: Bisection | None = None
    left_out: str = ""
    judgement: Judgement | None = None

    @property
    def passed(self) -> bool:
        """Whether every output agrees; inner tensors may differ where the outputs do not."""
        return all(self.outputs)

    @property
    def first_difference(self) -> OutputDifference | None:
        """The first shared tensor (without per_node: output) that differs, in execution order; None if all agree."""
        return next((entry for entry in self.tensors or self.outputs if not entry.passed), None)

    def to_dict(self) -> dict[str, Any]:
        first = self.first_difference
        return {
            "reference": self.reference,
            "other": self.other,
            "passed": self.passed,
            "first_difference": None if first is None else first.name,
            "left_out": self.left_out,
            "judgement": None if self.judgement is None else self.judgement.to_dict(),
            "outputs": [asdict(entry) for entry in self.outputs],
            "tensors": [asdict(entry) for entry in self.tensors],
            "bisection": None if self.bisection is None else asdict(self.bisection),
        }


def run_and_compare(
    runners: Sequence[Any],
    feeds: Sequence[Mapping[str, np.ndarray]],
    atol: float | None = None,
    rtol: float | None = None,
    warm_up: int = 0,
    padding: Sequence[np.ndarray | None] = (),
    of_tokens: Collection[str] = (),
    least_cosine: float | None = None,
) -> tuple[Any, dict[str, list[OutputDifference]]]:
    """Runs polygraphy runners over `feeds` and compares each one with the first.

    `padding` [B, S] says of each feed which places are left out of the comparison (None: none) of the outputs
    `of_tokens`; of others, sequences that are padding altogether. With `least_cosine` vectors are compared by it.

    Returns polygraphy's RunResults and, by runner name, the worst difference per output that both have.
    """
    from polygraphy.comparator import Comparator
    from polygraphy.logger import G_LOGGER

    # polygraphy imports it at the first inference, and takes a Ctrl-C meanwhile for a package that does not load.
    with contextlib.suppress(Exception):
        import torch  # noqa: F401

    left_out = itertools.cycle(padding or [None])  # polygraphy compares feed after feed, pair after pair

    def compare(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> OrderedDict[str, Any]:
        hidden = next(left_out)
        shared = [name for name in first if name in second]
        found = OrderedDict()
        for name in shared:
            pair = (without_padding(outputs[name], hidden, name in of_tokens) for outputs in (first, second))
            found[name] = difference(name, *pair, atol, rtol, least_cosine)
        return found

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL), warnings.catch_warnings():
        # polygraphy sums whole tensors for its log, in their own type: masks of -3e38 overflow.
        warnings.simplefilter("ignore", RuntimeWarning)
        results = Comparator.run(list(runners), data_loader=list(feeds), warm_up=warm_up)
        pairs = [(0, index) for index in range(1, len(runners))]
        accuracy = Comparator.compare_accuracy(results, comparisons=pairs, compare_func=compare)[0]
    return results, {pair[1]: _worst(iterations) for pair, iterations in accuracy.items()}


def _worst(iterations: Sequence[Mapping[str, OutputDifference]]) -> list[OutputDifference]:
    names = list(iterations[0])
    return [
        min((entry[name] for entry in iterations), key=lambda d: (d.passed, -d.absolute, d.equal)) for name in names
    ]


def compare_models(
    reference: str | Path,
    other: str | Path,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    texts: Sequence[str] | None = None,
    per_node: bool = False,
    bisection: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    providers: Sequence[Any] | None = None,
    library: str = "auto",
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Runs two ONNX files on the same inputs and compares their outputs.

    Args:
        inputs, texts, per_node, bisection, atol, rtol, seed: see `compare_subjects`.
        providers, library: as InferenceSession's, for the second model; the first runs on the CPU without library
            where it can.

    Raises:
        BertfuseError: a model or inputs that cannot be used, or models that share no output.
    """
    subjects = [Subject(Path(reference)), Subject(Path(other), tuple(providers or ()), library)]
    (found,) = compare_subjects(
        subjects,
        inputs=inputs,
        texts=texts,
        per_node=per_node,
        bisection=bisection,
        atol=atol,
        rtol=rtol,
        seed=seed,
        progress=progress,
    )
    return found


def compare_subjects(
    subjects: Sequence[Subject],
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    texts: Sequence[str] | None = None,
    per_node: bool = False,
    bisection: bool = False,
    atol: float | None = None,
    rtol: float | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Comparison]:
    """Runs ONNX files and engines on the same inputs and compares the outputs of each with the first's.

    Args:
        inputs: arrays by input name; or `texts`, tokenised by the tokenizer beside a model; or neither: random valid
            inputs of [2, 32] with padding and of [1, 7], from `seed`; within what all of them take.
        per_node: also compare the tensors that both graphs compute under one name, in the order of execution (of an
            engine: those that it was built to put out).
        bisection: look for the first tensor that differs, and for what its own nodes contribute; see `bisect`.
        atol, rtol: agreement is |a - b| <= atol + rtol |a|; None takes TOLERANCES by dtype, or, where one of the models
            is quantised, QUANTIZED_COSINE.

    Raises:
        BertfuseError: a model or inputs that cannot be used, or models that share no output.
    """
    say = progress or (lambda line: None)
    reference, *others = subjects
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not 0 <= value < math.inf:
            raise BertfuseError(f"{name} {value:g} is not a tolerance: give 0 or more")
    if reference.is_engine and (per_node or bisection):
        raise BertfuseError(f"{reference.path}: is an engine; name the ONNX file first, to compare its tensors")
    for other in others if bisection else ():
        check_bisectable(other)
    probes = [subject.probe() for subject in subjects]
    feeds = _feeds(subjects, probes, inputs, texts, seed)
    # polygraphy hands an input whose name it does not find another one's array, by position, and says nothing.
    for subject, probe in zip(others, probes[1:], strict=True):
        for feed in feeds:
            fit_inputs(probe, feed, f"{subject.path}, given the inputs of {reference.path}")
    for subject in subjects:
        if subject.is_engine:
            subject.runner("")  # what cannot run here is said before the others have run
    wanted = [value.name for value in probes[0].get_outputs()]
    axes = probes[0].get_inputs()[0].shape
    of_tokens = [value.name for value in probes[0].get_outputs() if list(value.shape[:2]) == list(axes)]
    packs = [getattr(probe, "padding", "keep") != "keep" for probe in probes]
    found = []
    quantized = [getattr(probe, "quantized", False) for probe in probes]
    for other, packed, is_quantized in zip(others, packs[1:], quantized[1:], strict=True):
        by_cosine = (is_quantized or quantized[0]) and atol is None and rtol is None
        packed = packed or packs[0]
        # Nobody reads what stands at padding; by tolerances it is as good as the rest, by the cosine it need not be.
        leaves_out = (packed or by_cosine) and MASK in feeds[0]
        padding = [np.asarray(feed[MASK]) == 0 for feed in feeds] if leaves_out else []
        shared: list[str] = []
        with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
            files = [reference.path, other.path]
            if per_node:
                say("Exposing the tensors that both graphs share")
                shared, files = _expose_shared(reference, other, Path(scratch))
            say(f"Running {reference} and {other}")
            runners = [reference.runner("1", files[0]), other.runner("2", files[1])]
            with ort_errors(f"{reference.path} and {other.path}"), reference.errors(), other.errors():
                results, differences = run_and_compare(
                    runners,
                    feeds,
                    atol,
                    rtol,
                    padding=padding,
                    of_tokens=of_tokens,
                    least_cosine=QUANTIZED_COSINE if by_cosine else None,
                )
        by_name = {entry.name: entry for entry in differences[runners[1].name]}
        outputs = [by_name[name] for name in wanted if name in by_name]
        if not outputs:
            raise BertfuseError(f"{reference.path} and {other.path}: share no output; compare models of the same task")
        comparison = Comparison(
            str(reference),
            str(other),
            outputs,
            [by_name[name] for name in shared if name in by_name],
            left_out=_left_out(padding, packed),
        )
        if (is_quantized or quantized[0]) and texts and len(texts) > 1:
            comparison.judgement = _judgement(probes[0].get_outputs(), results, feeds)
        if bisection:
            say(f"Bisecting {other}")
            comparison.bisection = bisect(reference, other, feeds, atol, rtol)
        found.append(comparison)
    return found


def _judgement(outputs: Sequence[Any], results: Any, feeds: Sequence[Mapping[str, np.ndarray]]) -> Judgement | None:
    name = answer_output(outputs)
    answers = [[np.asarray(one[name]) for one in runs if name in one] for _, runs in results.items()]
    return judge_answers(name, *answers, feeds) if all(len(found) == len(feeds) for found in answers) else None


def _left_out(padding: Sequence[np.ndarray], packed: bool) -> str:
    hidden, places = sum(int(mask.sum()) for mask in padding), sum(mask.size for mask in padding)
    why = ", which one of the models does not compute" if packed else ""
    return f"{hidden} of {places} places are padding{why}: left out" if hidden else ""


def _expose_shared(reference: Subject, other: Subject, folder: Path) -> tuple[list[str], list[Path]]:
    """Names of the tensors that both compute, in execution order, and files in which they are outputs."""
    inside = [value.name for value in other.probe().get_outputs()] if other.is_engine else computed_tensors(other.path)
    names = [name for name in computed_tensors(reference.path) if name in set(inside)]
    files = [folder / "0.onnx", other.path if other.is_engine else folder / "1.onnx"]
    expose(reference.path, names, files[0])
    if not other.is_engine:
        expose(other.path, names, files[1])
    return names, files


def _feeds(
    subjects: Sequence[Subject],
    probes: Sequence[Any],
    inputs: Mapping[str, np.ndarray] | None,
    texts: Sequence[str] | None,
    seed: int,
) -> list[dict[str, np.ndarray]]:
    probe = probes[0]
    if inputs is not None:
        return [fit_inputs(probe, dict(inputs), "the given inputs")]
    bounds = [subject.bounds(probe) for subject, probe in zip(subjects, probes, strict=True)]
    least, most = (np.array(ends) for ends in zip(*bounds, strict=True))
    least, most = least.max(axis=0), most.min(axis=0)
    if (least > most).any():
        names = " and ".join(str(subject.path) for subject in subjects)
        raise BertfuseError(f"{names}: take no batch and sequence in common; compare models of the same shape")
    if texts:
        folders = [folder_of(subject.path) for subject in subjects]
        folder = next((path for path in folders if (path / "tokenizer.json").is_file()), folders[0])
        size = max(1, min(_TEXTS_AT_A_TIME, int(most[0])))
        parts = [texts[first : first + size] for first in range(0, len(texts), size)]
        made = [text_inputs(folder, part, at_least=int(least[1])) for part in parts]
        return [fit_inputs(probe, feed, "the tokenised text") for feed in made]
    model = next((subject.path for subject in subjects if not subject.is_engine), subjects[0].path)
    longest = longest_sequence(read_config(folder_of(model))) or 32
    most = np.maximum(least, np.minimum(most, [most[0], longest]))
    shapes = [np.clip(shape, least, most).tolist() for shape in ((2, 32), (1, 7))]
    sizes = vocabulary_sizes(model)
    # A model of fixed shape leaves one of the two.
    return [random_inputs(probe, sizes, *shape, seed=seed) for shape in dict.fromkeys(map(tuple, shapes))]
