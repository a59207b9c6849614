"""What every kind of adversarial model is made of: a small encoder whose parts a recipe replaces, spelled at random.

A recipe is a function of a random.Random that gives a Case. What it returns is right or wrong by its numbers alone:
fused and equal, or refused. Nothing here knows how fusion works.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from bertfuse.qualify.mutants.inputs import Signature, feeds, signature
from bertfuse.qualify.mutants.verdict import Feed
from tests.graph_rewrite.attentions import HEADS, HIDDEN, SIZE, Attention, attend
from tests.graph_rewrite.graphs import Builder

from .padded import Padded

VOCABULARY = 97
BOOL, INT64, INT32, FLOAT = TensorProto.BOOL, TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT
HIDDEN_VALUES = (-1e4, -1e5, -1e9, float(np.finfo(np.float32).min))


@dataclass
class Case:
    """A model, and what to feed it.

    numbers  lengths, ids or mask values at which it changes: inputs are made at, below and above them
    never    an op that may not be fused at whatever numbers: it is wrong at a length too long to be run here, or ONNX
             Runtime does not know the operator
    attributes  what a fused node with attributes of these names must have, where ONNX Runtime does not run the model
    override initialisers that are inputs of the graph as well: they are fed other values than they have
    dtype    fused with this `dtype`
    more     inputs of the recipe's own, by name
    longest  the longest sequence that is fed
    count    how many inputs are made, one of each kind at least; 0: `more` alone
    runs     whether ONNX Runtime runs the model: of one that it need not run, fusing must not crash
    padded   fused with padding removed, and with tokens in a row; `feeds` are its own
    """

    model: onnx.ModelProto
    numbers: tuple[int, ...] = ()
    never: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    override: tuple[str, ...] = ()
    dtype: str | None = None
    more: dict[str, Feed] = field(default_factory=dict)
    longest: int = 64
    count: int = 14
    runs: bool = True
    padded: Padded | None = None

    def feeds(self, seed: int) -> dict[str, Feed]:
        read = signature(self.model)
        numbers = sorted({n for n in (*self.numbers, *read.numbers) if -1 <= n < 1 << 20})
        longest = max(self.longest, *(n + 2 for n in self.numbers if n < 700), 0)
        if any("position" in t.name for t in self.model.graph.initializer):
            longest = min(longest, read.longest)
        near = [n for n in self.numbers if n <= longest] or numbers
        random = np.random.default_rng(seed)
        made = feeds(Signature(read.inputs, near, longest), random, self.count) if self.count else {}
        made |= self.more
        return {name: feed | self._overrides(seed) for name, feed in made.items()}

    def _overrides(self, seed: int) -> Feed:
        random = np.random.default_rng(seed)
        tensors = {t.name: t.dims for t in self.model.graph.initializer}
        return {name: random.standard_normal(tuple(tensors[name])).astype(np.float32) for name in self.override}


Recipe = Callable[[Random], Case]


def is_recipe(value: object) -> bool:
    return getattr(value, "__annotations__", None) == {"r": "Random", "return": "Case"}


def named(like: Callable) -> Callable[[Recipe], Recipe]:
    """For a recipe made of `like`: its name and words."""
    return functools.wraps(like, assigned=("__module__", "__name__", "__doc__"))


class Graph(Builder):
    """A Builder with a random generator for spellings, and more words."""

    def __init__(self, r: Random, opset: int | None = None) -> None:
        super().__init__(opset or r.choice([13, 14, 15, 17, 18, 20, 21]), seed=r.randrange(1 << 30))
        self.r = r
        self.functions: list[onnx.FunctionProto] = []
        self.numbers: tuple[int, ...] = ()  # the case's

    def model(self) -> onnx.ModelProto:
        if not self.functions:
            try:
                return super().model()
            except onnx.shape_inference.InferenceError:
                pass  # sizes that contradict each other where ONNX looks at them: the recipe's point, or near it
        graph = helper.make_graph(self.nodes, "small", self.inputs, self.outputs, self.initializers)
        domains = sorted(self.domains | {f.domain for f in self.functions})
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=self.functions)

    def define(
        self,
        name: str,
        body: list[onnx.NodeProto],
        inputs: Sequence[str] = ("a", "b"),
        domain: str = "my",
        attributes: Sequence[str] = (),
    ) -> None:
        """A model-local function, which makes "y"."""
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(domain, 1)]
        self.functions.append(helper.make_function(domain, name, inputs, ["y"], body, opsets, attributes))

    def ints(self, value: Any, dtype: Any = np.int64) -> str:
        return self.const(np.asarray(value, dtype), dtype=dtype)

    def reduced(self, op: str, x: str, axes: list[int], **attributes: Any) -> str:
        """Axes are an attribute up to opset 17, of ReduceSum up to 12."""
        if op == "ReduceSum" or self.opset >= 18:
            return self.op(op, x, self.ints(axes), **attributes)
        return self.op(op, x, axes=axes, **attributes)

    def cast(self, x: str, to: int) -> str:
        return self.op("Cast", x, to=to)

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, self.ints(list(axes)))

    def keys(self, x: str) -> str:
        """[B, S] to [B, 1, 1, S]."""
        if self.r.random() < 0.3:
            return self.unsqueeze(self.unsqueeze(x, 1), 2)
        return self.unsqueeze(x, 1, 2)

    def queries(self, x: str) -> str:
        """[B, S] to [B, 1, S, 1]."""
        return self.unsqueeze(x, 1, 3)

    def size(self, of: str, axis: int) -> str:
        """One size, int64 [1]."""
        shape = self.op("Shape", of)
        if self.r.random() < 0.5:
            return self.op("Gather", shape, self.ints([axis]), axis=0)
        return self.op("Slice", shape, self.ints([axis]), self.ints([axis + 1]))

    def length(self, of: str) -> str:
        """S as a scalar."""
        return self.op("Squeeze", self.size(of, 1), self.ints([0]))

    def places(self, of: str) -> str:
        """0 .. S-1, int64 [S], in one of its spellings."""
        how = self.r.randrange(4)
        if how == 0:
            return self.op("Range", self.ints(0), self.length(of), self.ints(1))
        one = helper.make_tensor("value", INT64, [1], [1])
        ones = self.op("ConstantOfShape", self.size(of, 1), value=one)
        if how == 1:
            return self.op("Sub", self.op("CumSum", ones, self.ints(0)), self.ints(1))
        if how == 2:
            return self.op("CumSum", ones, self.ints(0), exclusive=1)
        return self.op("Squeeze", self.op("NonZero", ones), self.ints([0]))

    def grid(self, of: str) -> tuple[str, str]:
        """Numbers of the queries [1, 1, S, 1] and of the keys [1, 1, 1, S]."""
        places = self.places(of)
        return self.unsqueeze(places, 0, 1, 3), self.unsqueeze(places, 0, 1, 2)

    def distance(self, of: str) -> str:
        """|q - k| [1, 1, S, S]."""
        q, k = self.grid(of)
        return self.op("Abs", self.op("Sub", *((q, k) if self.r.random() < 0.5 else (k, q))))

    def number(self, n: int) -> str:
        """An int64 scalar n >= 0 that is no literal, in one of many ways to compute it of constants."""
        r = self.r
        part = r.randrange(1, n + 1) if n else 0
        ways: list[Callable[[], str]] = [
            lambda: self.ints(n),
            lambda: self.op("Add", self.ints(part), self.ints(n - part)),
            lambda: self.op("Sub", self.ints(n + part), self.ints(part)),
            lambda: self.op("Div", self.ints(n * 3 + 2), self.ints(3)),
            lambda: self.op("Max", self.ints(n), self.ints(n - part)),
            lambda: self.op("Neg", self.ints(-n)),
            lambda: self.cast(self.op("Sqrt", self.const(float(n * n))), INT64),
            lambda: self.cast(self.op("Floor", self.const(n + 0.75)), INT64),
            lambda: self.cast(self.const(n + 0.9), INT64),
            lambda: self.op("Mod", self.ints(n + 2 * (n + 1)), self.ints(n + 1)),
            lambda: self.op("Size", self.const(np.zeros(n))),
            lambda: self.op("ReduceSum", self.ints([1] * min(n, 64) + [n - min(n, 64)]), keepdims=0),
            lambda: self.op("Gather", self.ints([5, n, 3]), self.ints(1), axis=0),
            lambda: self.op("Squeeze", self.op("ReduceMax", self.ints([1, n]), keepdims=1), self.ints([0])),
            lambda: self.cast(self.op("Exp", self.const(np.log(n + 0.25))), INT64),
            lambda: (
                self.cast(self.cast(self.ints(n % 256 + 256 * part), TensorProto.UINT8), INT64)
                if n < 256
                else self.ints(n)
            ),
            lambda: self.op("Where", self.op("Less", self.ints(1), self.ints(2)), self.ints(n), self.ints(n + 9)),
            lambda: (
                self.op("Squeeze", self.op("Shape", self.const(np.zeros((n % 5000, 1)))), self.ints([0]))
                if self.opset < 13
                else self.op("Gather", self.op("Shape", self.const(np.zeros((n, 1)))), self.ints(0), axis=0)
            ),
        ]
        if n % 2 == 0:
            ways.append(lambda: self.op("Mul", self.ints(2), self.ints(n // 2)))
            ways.append(lambda: self.op("Pow", self.ints(n), self.ints(1)))
            shifted = lambda: self.op(  # noqa: E731
                "BitShift", self.ints(n // 2, np.uint64), self.ints(1, np.uint64), direction="LEFT"
            )
            ways.append(lambda: self.cast(shifted(), INT64))
        return r.choice(ways)()

    # ---- masks

    def additive(self, visible: str) -> str:
        """A condition of keys (bool, broadcasts to [B, heads, S, S]) as numbers to add to scores."""
        hidden = self.r.choice(HIDDEN_VALUES)
        how = self.r.randrange(6)
        if how == 0:
            return self.op("Where", visible, self.const(0.0), self.const(self.r.choice([hidden, -np.inf])))
        if how == 1:
            return self.op("Where", self.op("Not", visible), self.const(hidden), self.const(0.0))
        numbers = self.cast(visible, FLOAT)
        if how == 2:
            return self.op("Mul", self.op("Sub", self.const(1.0), numbers), self.const(hidden))
        if how == 3:
            return self.op("Mul", self.op("Sub", numbers, self.const(1.0)), self.const(-hidden))
        if how == 4:
            return self.op("Mul", self.cast(self.op("Not", visible), FLOAT), self.const(hidden))
        return self.op("Log", numbers)


def spelled(r: Random, **changes: Any) -> Attention:
    """An attention in a random spelling; `changes` are its parts."""
    return Attention(
        scale=r.choice(["q", "k", "both", "scores_mul", "scores_div"]),
        layout=r.choice(["eager", "sdpa"]),
        linear=r.choice(["matmul_add", "add_matmul"]),
        swap=r.random() < 0.5,
        factor=r.choice([0.5, 0.25, 0.3]),
        **changes,
    )


def words(b: Graph, ids: str) -> str:
    """Rows of a table for ids: [B, S, 16]."""
    return b.op("Gather", b.weight(VOCABULARY, HIDDEN), ids, axis=0)


MaskMaker = Callable[[Graph], str]


def recipe(opset: Sequence[int] = (), **settings: Any) -> Callable[[Callable[[Graph, Random], None]], Recipe]:
    """A recipe out of what fills a graph of one of these opsets, and may set its `numbers`; settings are the case's."""

    def decorate(fill: Callable[[Graph, Random], None]) -> Recipe:
        @named(fill)
        def made(r: Random) -> Case:
            b = Graph(r, r.choice(opset) if opset else None)
            fill(b, r)
            return Case(b.model(), numbers=b.numbers, **settings)

        return made

    return decorate


def masking(opset: Sequence[int] = (), **settings: Any) -> Callable[[Callable[[Graph, Random], str]], Recipe]:
    """A recipe out of what makes a mask, and sets `numbers` of the graph; settings as those of attention_of."""

    def decorate(make: Callable[[Graph, Random], str]) -> Recipe:
        @named(make)
        def recipe(r: Random) -> Case:
            return attention_of(r, lambda b: make(b, r), opset=r.choice(opset) if opset else None, **settings)

        return recipe

    return decorate


def attention_of(
    r: Random,
    make: MaskMaker,
    *,
    added: bool = False,
    mask_type: Any = np.int64,
    mask_shape: tuple[int | str, ...] = ("B", "S"),
    opset: int | None = None,
    guard: bool = False,
    weights: float = 1.0,
    **case: Any,
) -> Case:
    """One attention over looked-up ids.

    make   builds, of the inputs `ids` and `attention_mask`, what keys are visible (bool, broadcasts to [B, heads, S,
           S]) or, with `added`, the numbers that are added to the scores
    """
    b = Graph(r, opset)
    ids = b.ids()
    b.input("attention_mask", mask_shape, mask_type)
    x = words(b, ids)
    if weights != 1.0:
        x = b.op("Mul", x, b.const(weights))
    mask = make(b)
    if not added and r.random() < 0.25:
        hidden = b.const(r.choice([*HIDDEN_VALUES, -np.inf]))
        spec = spelled(r, mask="none", guard=guard, parts={"after_mask": lambda s: b.op("Where", mask, s, hidden)})
    else:
        spec = spelled(r, guard=guard, parts={"mask": mask if added else b.additive(mask)})
    b.output(attend(b, x, spec, "attention_mask"))
    return Case(b.model(), **{"numbers": b.numbers} | case)


__all__ = [
    "BOOL",
    "FLOAT",
    "HEADS",
    "HIDDEN",
    "HIDDEN_VALUES",
    "INT32",
    "INT64",
    "SIZE",
    "VOCABULARY",
    "Attention",
    "Builder",
    "Case",
    "Graph",
    "Random",
    "Recipe",
    "TensorProto",
    "attend",
    "attention_of",
    "helper",
    "np",
    "onnx",
    "spelled",
    "words",
]  # fmt: skip
