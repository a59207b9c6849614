"""Models made to be fused wrongly: one file for each kind, recipes that spell it at random.

python -m adversarial --each 200 [--only windows] [--seed S]   (in tests/graph_rewrite) tries many of each kind
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection
from random import Random

import numpy as np
import onnx

from bertfuse.graph_rewrite import FusionResult, fuse
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.qualify.apart import Ended, messages
from bertfuse.qualify.mutants.verdict import Verdict, judge

from .build import Case, Recipe, is_recipe
from .half import judge_in_half
from .padded import judge_padded

# Tried in a process of their own: a fault in shapes may end in memory that is not the model's.
APART = ("ends", "foreign", "naming", "claims", "arithmetic", "rearranged", "branches")
KINDS = (
    "integers", "ids", "floats", "windows", "samples", "constants", "attributes", "embeddings", "shapes", "scores",
    "layer_norms", "gelus", "wiring", "more_masks", "weights", "crashes", "precision", "encoders",
    "bodies", "views", "axes", "odd_graphs", "halves", "deeper", "programs", "padding",
    "variants", "terms", "gates", "zeros",
    *APART,
)  # fmt: skip


@cache
def recipes(kind: str) -> tuple[Recipe, ...]:
    """Functions of a random.Random that give a Case; a file that makes them, or tries some more often, lists them."""
    module = importlib.import_module(f"{__name__}.{kind}")
    found = tuple(f for f in vars(module).values() if is_recipe(f) and f.__module__ == module.__name__)
    return getattr(module, "RECIPES", found)


def make(kind: str, seed: int) -> tuple[str, Case]:
    """The recipe's name and its model: each recipe in turn, spelled by the seed."""
    choices = recipes(kind)
    recipe = choices[seed % len(choices)]
    return recipe.__name__.strip("_"), recipe(Random(f"{kind} {seed}"))


def tried(kind: str, seed: int) -> tuple[str, Case, Verdict]:
    """The recipe's name, its model and what became of it."""
    name, case = make(kind, seed)
    if case.padded is not None:
        return name, case, judge_padded(case, seed)
    feeds = case.feeds(seed)
    with np.errstate(all="ignore"):
        verdict = judge_in_half(case, feeds) if case.dtype else judge(case.model, feeds)
    if verdict.outcome == "invalid" and (case.never or case.attributes):
        verdict = Verdict("refused", verdict.text, result=fuse(case.model))
    if verdict.result is not None and not verdict.bad:
        text = _broken_promise(case, verdict.result)
        if text:
            verdict.outcome, verdict.text = "wrong", text
    return name, case, verdict


def tried_apart(kind: str, seeds: range) -> Iterator[tuple[int, str, bool, Verdict]]:
    """Seed, recipe, whether the model runs, and what became of it, each tried in another process.

    One at which that process dies, or says nothing for two minutes, is "crashed", and the next goes on after it.
    """
    first = seeds.start
    while first < seeds.stop:
        for message in messages(_try, (kind, first, seeds.stop), _HANGS, _HANGS):
            if isinstance(message, Ended):
                if first == seeds.stop:
                    return
                name = recipes(kind)[first % len(recipes(kind))].__name__.strip("_")
                message = name, True, Verdict("crashed", str(message))
            yield (first, *message)
            first += 1


_HANGS = 120.0  # seconds without a word


def _try(pipe: Connection, kind: str, first: int, stop: int) -> None:
    for seed in range(first, stop):
        try:
            name, case, verdict = tried(kind, seed)
        except Exception as error:  # of the recipe itself: told, not taken for a process that died
            pipe.send((kind, True, Verdict("crashed", f"the recipe fails: {type(error).__name__}: {error}")))
            continue
        verdict.result = None
        pipe.send((name, case.runs, verdict))


def _broken_promise(case: Case, result: FusionResult) -> str:
    for node in result.model.graph.node:
        for given in node.attribute if node.domain == DOMAIN else ():
            wanted = case.attributes.get(given.name)
            if wanted is not None and onnx.helper.get_attribute_value(given) != np.float32(wanted):
                return f"{node.op_type} has {given.name} {onnx.helper.get_attribute_value(given)}, not {wanted}"
    if case.never and result.fused.get(case.never):
        return f"{case.never} is fused, which is wrong at a size that was not run"
    known = names(case.model)
    for miss in result.misses:
        # A node of a function is called by the call's name and its own.
        called = {name if name in known else name.partition("/")[0] for name in (miss.node, miss.anchor)}
        if not miss.reason or not called <= known:
            return f"a reason that names no node of the model: {miss}"
    return ""


def names(model: onnx.ModelProto) -> set[str]:
    """Everything in a model that a message may name."""
    found = {value.name for value in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
    for node in model.graph.node:
        found |= {node.name, *node.input, *node.output}
        if not node.name and node.output:  # how a node without a name is called
            found.add(f"{node.op_type}->{node.output[0]}")
    return found
