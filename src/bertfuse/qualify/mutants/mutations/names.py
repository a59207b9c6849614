"""Nodes without names or with odd ones, tensors and axes of names that mean something elsewhere."""

from __future__ import annotations

from random import Random

import onnx

from ..mutant import Mutant

# What a proof, a pass, a file or a shell might read as its own; the k and q are places along axes.
_TENSORS = (
    "cu_seqlens", "max_seqlen", "tokens", "sequences", "longest", "row_count", "token_index", "k<S", "a<b", "b*S",
    "a b", "0", "17", "-1", "1", "along ", "min(S, 4)", "S", "B", "unnamed_axis_0", "axis_1", "constant",
    "cu_seqlens_of_mask", "mask_packed", "'x'[0]<S", "x:0", "/a/b", "ü", "%s", "{0}", "\\n",
)  # fmt: skip
_AXES = (
    "k<S", "q<S", "h<H", "b<B", "tokens", "sequences", "longest", "sequences_plus_1", "unnamed_axis_0",
    "unnamed_axis_1", "axis_1", "axis_2", "0", "12", "-1", "S + 1", "2*S", "B*S", "min(S, 4)", "Min(1, S)", "a b",
    "None", "?", "unk__0", "lambda", "S<k", "k", "q", "1", "along ", "max(2, S)", "floor(S/2)", "E", "pi", "I",
)  # fmt: skip


def node_names(m: Mutant, r: Random) -> str | None:
    """Nodes have no names, or those of tensors, of operators, or of other nodes."""
    how = r.choice(["none", "none", "some", "numbers", "tensors", "operators", "odd"])
    others = [n.output[0] for n in m.nodes if n.output]

    def change() -> None:
        names = Random(f"{how} {len(others)}")
        taken: set[str] = set()
        for number, node in enumerate(m.nodes):
            if how == "none" or (how == "some" and names.random() < 0.5):
                node.name = ""
            elif how != "some":
                name = {
                    "numbers": str(number),
                    "tensors": names.choice(others),
                    "operators": f"{names.choice(['FusedAttention', 'CumSum', 'node'])}{number}",
                    "odd": f"{names.choice(_TENSORS)} {number}",
                }[how]  # ONNX Runtime takes no two nodes of one name
                node.name = "" if name in taken else name
                taken.add(name)

    m.at_last(change)
    return f"names of nodes: {how}"


def tensor_names(m: Mutant, r: Random) -> str | None:
    """A few tensors, weights, inputs or outputs have odd names."""
    names = r.sample(_TENSORS, r.choice([1, 2, 4, 12]))
    where = r.choice(["inside", "weights", "inputs", "outputs", "anywhere"])

    def change() -> None:
        graph = m.model.graph
        outputs = {v.name for v in graph.output}
        inputs = [v.name for v in graph.input]
        inside = [t for n in graph.node for t in n.output if t and t not in outputs]
        found = {
            "inside": inside,
            "weights": [t.name for t in graph.initializer],
            "inputs": inputs,
            "outputs": list(outputs & {t for n in graph.node for t in n.output}),
        }
        all_of_them = sorted({t for group in found.values() for t in group})
        choices = sorted(set(found.get(where, all_of_them)))
        taken = {*inputs, *inside, *outputs, *(t.name for t in graph.initializer)}
        mapping = {}
        draw = Random(" ".join(names))
        for new in names:
            if choices and new not in taken:
                mapping[choices.pop(draw.randrange(len(choices)))] = new
        renamed(graph, mapping)

    m.at_last(change)
    return f"tensors ({where}) are called {names}"


def renamed(graph: onnx.GraphProto, mapping: dict[str, str]) -> None:
    """Other names for tensors of a graph, in bodies, too, in which they are read."""
    for node in graph.node:
        for given in (node.input, node.output):
            given[:] = [mapping.get(name, name) for name in given]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                renamed(attribute.g, mapping)
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = mapping.get(value.name, value.name)


def axis_names(m: Mutant, r: Random) -> str | None:
    """Axes of the model's inputs and outputs have odd names, each its own, or one for two of them."""
    values = [*m.model.graph.input, *m.model.graph.output, *m.model.graph.value_info]
    dims = [d for v in values for d in v.type.tensor_type.shape.dim if d.dim_param]
    names = sorted({d.dim_param for d in dims})
    if not names:
        return None
    new = [r.choice([*_AXES, *(f"{a}<{b}" for a in "kqhb" for b in names), *names]) for _ in names]
    mapping = dict(zip(names, new, strict=True))
    for dim in dims:
        dim.dim_param = mapping[dim.dim_param]
    return f"axes are called {mapping}"
