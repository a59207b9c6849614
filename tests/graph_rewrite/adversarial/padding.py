"""Models of which padding is to be removed: what is made of rows of padding, by weights that hide them or do not."""

from __future__ import annotations

from collections.abc import Callable

from .build import BOOL, FLOAT, HIDDEN, INT32, INT64, VOCABULARY, Case, Graph, Random, attend, helper, np, onnx, spelled
from .padded import FIRST, POOLED, TOKENS, Padded

M = "attention_mask"
PLACES = 32
# How a mask is fed, and values that it may hold besides 0 and 1.
_TYPES = {"int64": (-1, 2, 3, 7), "int32": (-1, 2, 5), "bool": (), "float32": (0.5, 0.3, 2.0, -1.0), "int8": (-1, 2)}


class Model:
    """An encoder of one layer over ids: `x` [B, S, 16], `visible` bool [B, S], `numbers` what the mask is fed as."""

    def __init__(self, r: Random, of_ids: bool | None = None) -> None:
        self.r, self.b = r, Graph(r)
        b = self.b
        self.index = r.choice([np.int64, np.int64, np.int32])
        self.ids = b.ids(dtype=self.index)
        self.of_ids = r.random() < 0.25 if of_ids is None else of_ids
        self.padding_id = r.choice([0, 1, 5])
        self.kind = r.choice(list(_TYPES))
        self.kept: Callable[[np.ndarray], np.ndarray] = lambda mask: mask != 0
        self.of_one = False  # whether 1 alone shows a token
        if self.of_ids:
            self.visible = b.op("Not", b.op("Equal", self.ids, b.ints(self.padding_id, self.index)))
            self.numbers = b.cast(self.visible, INT64)
        else:
            self.numbers = b.input(M, ("B", "S"), np.dtype(self.kind))
            self.visible = self._condition()
        rows = [b.weight(r.choice([VOCABULARY, 24]), HIDDEN), b.weight(PLACES, HIDDEN)]
        self.vocabulary = next(t.dims[0] for t in b.initializers if t.name == rows[0])
        looked_up = [b.op("Gather", rows[0], self.ids, axis=0), b.op("Gather", rows[1], self._places(), axis=0)]
        embedded = b.layer_norm(b.op("Add", *r.sample(looked_up, 2)), HIDDEN)
        if not self.of_ids and r.random() < 0.2:
            self._see_the_first(embedded)
        mask = b.additive(b.keys(self.visible))
        context = attend(b, embedded, spelled(r, parts={"mask": mask}))
        total = b.op("Add", b.linear(context, HIDDEN, HIDDEN), embedded)
        self.x = b.layer_norm(total, HIDDEN)

    def _condition(self) -> str:
        b, r = self.b, self.r
        if self.kind == "bool":
            return self.numbers
        if r.random() < 0.6:
            return b.cast(self.numbers, BOOL)
        number = r.choice([0.4, 0.6, 1.0]) if self.kind == "float32" else r.choice([0, 1])
        wide = b.cast(self.numbers, FLOAT)
        if r.random() < 0.5:
            self.kept = lambda mask: mask.astype(np.float32) > np.float32(number if number != 1 else 0.9)
            return b.op("Greater", wide, b.const(float(number if number != 1 else 0.9)))
        self.kept, self.of_one = lambda mask: mask.astype(np.float32) == 1, True
        return b.op("Equal", b.cast(self.numbers, INT64) if self.kind != "float32" else wide, self._one())

    def _one(self) -> str:
        return self.b.const(1.0) if self.kind == "float32" else self.b.ints(1)

    def _places(self) -> str:
        b, r = self.b, self.r
        if r.random() < 0.3:  # RoBERTa's, of ids or of the mask
            there = b.cast(self.visible, INT64)
            return b.op("Add", b.op("Mul", b.op("CumSum", there, b.ints(1)), there), b.ints(1))
        return b.unsqueeze(b.op("Range", b.ints(0), b.length(self.ids), b.ints(1)), 0)

    def _see_the_first(self, x: str) -> None:
        """The first token is always seen; where it stands follows from the shape of what is to be packed."""
        b, kept = self.b, self.kept
        places = b.op("Range", b.ints(0), b.length(x), b.ints(1))
        self.visible = b.op("Or", self.visible, b.unsqueeze(b.op("Equal", places, b.ints(0)), 0))
        self.kept = lambda mask: kept(mask) | (np.arange(mask.shape[1]) == 0)

    def weight(self, visible: str | None = None) -> str:
        """The mask as numbers [B, S, 1]."""
        numbers = self.b.unsqueeze(self.b.cast(visible or self.visible, FLOAT), 2)
        if self.r.random() < 0.3:
            return self.b.op("Expand", numbers, self.b.op("Shape", self.x))
        return numbers

    def total(self, x: str, keepdims: int = 0) -> str:
        return self.b.op("ReduceSum", x, self.b.ints([1]), keepdims=keepdims)

    def reduced(self, op: str, x: str) -> str:
        """Along the sequence; axes are an attribute up to opset 17."""
        if self.b.opset >= 18:
            return self.b.op(op, x, self.b.ints([1]), keepdims=0)
        return self.b.op(op, x, axes=[1], keepdims=0)

    def mean(self, weight: str, numerator: str = "", weights: str = "") -> str:
        b = self.b
        above = self.total(numerator or b.op("Mul", *self.r.sample([self.x, weight], 2)))
        return b.op("Div", above, b.op("Max", self.total(weights or weight), b.const(1e-3)))

    def case(self, *outputs: tuple[str, str]) -> Case:
        b = self.b
        b.output(*(name for name, _ in outputs))
        kinds = tuple(kind for _, kind in outputs)
        mixes = any(n.op_type in ("Gather", "Slice") and self.x in n.input and _first_axis(n) for n in b.nodes)
        return Case(b.model(), padded=Padded(self._feed, self._sees, kinds, mixes), count=0)

    def _feed(self, mask: np.ndarray, random: np.random.Generator, odd: bool) -> dict[str, np.ndarray]:
        ids = random.integers(0, self.vocabulary, mask.shape)
        made = {"types": random.integers(0, 2, mask.shape), M: mask}
        if self.of_ids:
            ids = np.where(mask != 0, np.where(ids == self.padding_id, self.padding_id + 1, ids), self.padding_id)
        elif odd and _TYPES[self.kind] and not (self.of_one and self._reads_numbers_again()):
            made[M] = random.choice([0, 1, *_TYPES[self.kind]], mask.shape)
        taken = {v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in self.b.inputs}
        return {name: (made | {"ids": ids})[name].astype(dtype) for name, dtype in taken.items()}

    def _reads_numbers_again(self) -> bool:
        """Whether the mask weighs, too, where 1 alone shows a token: then it must be of 0 and 1 (docs/design.md)."""
        return sum(self.numbers in node.input for node in self.b.nodes) > 1

    def _sees(self, feed: dict[str, np.ndarray]) -> np.ndarray:
        return feed["ids"] != self.padding_id if self.of_ids else self.kept(feed[M])


def _first_axis(node: onnx.NodeProto) -> bool:
    return any(a.name == "axis" and a.i == 0 for a in node.attribute)


def _by_weight(r: Random) -> Case:
    """A mean of tokens: weights are the mask, as it is fed or compared, or something near it."""
    m = Model(r)
    b, half = m.b, m.b.const(0.5)
    weights: list[Callable[[], str]] = [
        m.weight,
        lambda: m.weight(m.numbers),
        lambda: m.weight(b.op("Not", m.visible)),
        lambda: b.op("Add", b.op("Mul", m.weight(), half), half),
        lambda: b.op("Mul", *[m.weight()] * 2),
        lambda: b.op("Sub", b.const(2.0), m.weight(m.numbers)),
        lambda: m.weight(b.op("Equal", b.cast(m.numbers, INT64), b.ints(1))),
        lambda: m.weight(b.op("Equal", b.cast(b.ids("types"), INT64), b.ints(1))),
        lambda: m.weight(b.op("Greater", b.cast(m.ids, INT32), b.ints(3, np.int32))),
        lambda: b.op("Slice", m.weight(), b.ints([0]), b.ints([1]), b.ints([0])),
        lambda: m.weight(b.op("CumSum", b.cast(m.visible, INT64), b.ints(1))),
        lambda: b.op("Exp", m.weight()),
        lambda: b.op("Relu", b.op("Sub", m.weight(), half)),
    ]
    return m.case((m.mean(r.choice(weights)()), POOLED))


def _otherwise(r: Random) -> Case:
    """Pooling by the greatest, the last, all tokens, weights from a Softmax, or by tokens of other texts."""
    m = Model(r)
    b, x = m.b, m.x
    hidden = b.const(r.choice([-1e9, -1.0, 0.0]))
    choices: list[Callable[[], str]] = [
        lambda: m.reduced("ReduceMax", x),
        lambda: m.reduced("ReduceMean", x),
        lambda: m.total(x),
        lambda: m.reduced("ReduceMax", b.op("Where", b.unsqueeze(m.visible, 2), x, hidden)),
        lambda: m.reduced("ReduceMax", b.op("Mul", x, m.weight())),
        lambda: m.total(b.op("Where", b.unsqueeze(m.visible, 2), hidden, x)),
        lambda: b.op("Gather", x, b.ints(-1), axis=1),
        lambda: b.op("Squeeze", b.op("MatMul", b.unsqueeze(b.cast(m.visible, FLOAT), 1), x), b.ints([1])),
        lambda: b.op("Squeeze", b.op("MatMul", b.unsqueeze(b.cast(m.numbers, FLOAT), 1), x), b.ints([1])),
        lambda: m.total(b.op("Mul", x, b.op("Softmax", b.linear(x, HIDDEN, 1), axis=1))),
        lambda: m.mean(m.weight(), b.op("Mul", b.op("CumSum", x, b.ints(1)), m.weight())),
        lambda: m.mean(m.weight(), b.op("Exp", b.op("Mul", x, m.weight()))),
        lambda: m.mean(m.weight(), b.op("Mul", b.op("Mul", m.weight(), b.op("Tanh", x)), x)),
        lambda: m.mean(m.weight(), weights=b.op("Mul", m.weight(), x)),
        lambda: m.total(b.op("Mul", b.op("Sub", x, b.op("Gather", x, b.ints([0]), axis=1)), m.weight())),
        lambda: m.total(b.op("Mul", b.op("Add", x, b.op("Gather", x, b.ints([0]), axis=0)), m.weight())),
    ]
    return m.case((r.choice(choices)(), POOLED))


def _for_each_token(r: Random) -> Case:
    """Outputs with a row for each token, by operators that keep rows apart, or do not."""
    m = Model(r)
    b, x = m.b, m.x
    single = b.linear(x, HIDDEN, 1)
    choices: list[Callable[[], str]] = [
        lambda: x,
        lambda: b.op("Softmax", b.linear(x, HIDDEN, 5), axis=r.choice([1, 2, -1])),
        lambda: b.op("LpNormalization", x, axis=r.choice([-1, 2, 1])),
        lambda: b.op("Concat", x, b.op("Tanh", x), axis=r.choice([2, -1])),
        lambda: b.op("Squeeze", single, b.ints([-1])),
        lambda: b.op("LogSoftmax", b.op("Squeeze", single, b.ints([2])), axis=1),
        lambda: b.op("Slice", x, b.ints([3]), b.ints([9]), b.ints([2])),
        lambda: b.op("Reshape", x, b.ints([0, 0, 4, 4])),
        lambda: b.op("Reshape", b.op("Reshape", x, b.ints([-1, HIDDEN])), b.op("Shape", x)),
        lambda: b.op("CumSum", x, b.ints(1)),
        lambda: b.op("MatMul", x, b.unsqueeze(b.op("Gather", x, b.ints(0), axis=1), 2)),
        lambda: b.op("Sub", x, b.unsqueeze(m.reduced("ReduceMean", x), 1)),
        lambda: b.op("Split", b.linear(x, HIDDEN, 2), b.ints([1, 1]), outputs=2, axis=2)[1],
        lambda: attend(b, x, spelled(r, mask="none")),
    ]
    return m.case((r.choice(choices)(), TOKENS), (m.mean(m.weight()), POOLED))


def _of_the_first(r: Random) -> Case:
    """The first token by an index, a slice, or only after something else has been done to all of them."""
    m = Model(r)
    b, x = m.b, m.x
    gathered = lambda t: b.op("Gather", t, b.ints(0), axis=1)  # noqa: E731
    choices: list[Callable[[], str]] = [
        lambda: gathered(x),
        lambda: b.op("Tanh", b.linear(gathered(x), HIDDEN, 5)),
        lambda: b.op("Squeeze", b.op("Slice", x, b.ints([0]), b.ints([1]), b.ints([1])), b.ints([1])),
        lambda: gathered(b.linear(b.op("Tanh", x), HIDDEN, 3)),
        lambda: gathered(b.op("Mul", x, b.op("Sigmoid", b.linear(x, HIDDEN, 1)))),
        lambda: gathered(b.op("CumSum", x, b.ints(1))),
        lambda: gathered(b.op("Softmax", x, axis=1)),
        lambda: b.op("Add", gathered(x), m.mean(m.weight())),
        lambda: b.op("Add", gathered(x), m.reduced("ReduceMean", x)),
        lambda: b.op("Squeeze", b.op("Gather", x, b.ints([0]), axis=1), b.ints([1])),
    ]
    return m.case((r.choice(choices)(), FIRST), *([(x, TOKENS)] if r.random() < 0.3 else []))


def _padding_by_ids(r: Random) -> Case:
    """The mask comes from the ids, and so does the pooling: what is padding among tokens in a row?"""
    m = Model(r, of_ids=True)
    b = m.b
    other = b.op("Greater", b.cast(m.ids, INT64), b.ints(m.padding_id))
    weight = r.choice([m.weight, lambda: m.weight(m.numbers), lambda: m.weight(other)])()
    return m.case((m.mean(weight), POOLED), *([(m.x, TOKENS)] if r.random() < 0.5 else []))


def _read_by_a_branch(r: Random) -> Case:
    """Branches of an If read ids, mask, an output, or rows between: by names, whatever these come to mean."""
    m = Model(r)
    b = m.b
    numbers = b.cast(m.numbers, FLOAT)
    mean = m.mean(m.weight())
    read = r.choice([m.ids, m.numbers, numbers, m.x, mean])
    total = b.op("ReduceSum", b.cast(m.visible, INT64), keepdims=0)
    bodies = {}
    for branch, op in (("then_branch", "Abs"), ("else_branch", "Neg")):
        nodes = [
            helper.make_node("Cast", [read], [f"{branch}_read"], to=FLOAT),
            helper.make_node(op, [f"{branch}_read"], [f"{branch}_y"]),
        ]
        out = helper.make_tensor_value_info(f"{branch}_y", FLOAT, None)
        bodies[branch] = helper.make_graph(nodes, branch, [], [out])
    y = b.op("If", b.op("Greater", total, b.ints(r.choice([5, 1 << 30]))), **bodies)
    rows = {m.x: TOKENS, mean: POOLED}.get(read)
    if rows is None:
        y, rows = m.mean(m.weight(), b.op("Mul", b.op("Mul", m.x, m.weight()), b.unsqueeze(y, 2))), POOLED
    b.outputs.append(helper.make_tensor_value_info(y, FLOAT, ["B", "S", HIDDEN] if rows == TOKENS else ["B", HIDDEN]))
    case = m.case((mean, POOLED))
    case.padded.outputs = (rows, POOLED)
    return case
