"""What a file says of shapes, and which need not be so, or not for every input that the model takes."""

from __future__ import annotations

from random import Random

from onnx import helper

from ..mutant import Mutant


def inside(m: Mutant, r: Random) -> str | None:
    """A shape for a tensor of the graph: right, right at one size alone, or wrong."""
    node = m.node(r, lambda n: bool(n.output) and m.kinds.get(n.output[0]) is not None)
    if node is None:
        return None
    name = node.output[0]
    kind = m.kinds[name]
    symbols = {b: s for i in m.facts.signature.inputs for b, s in zip(_sizes(m, i.name), i.shape, strict=False)}
    true = [a if a == b else symbols.get((a, b)) for a, b in kind.shape]
    which = r.randrange(2)
    once = [pair[which] for pair in kind.shape]
    wrong = list(true)
    if wrong:
        place = r.randrange(len(wrong))
        wrong[place] = r.choice([1, "odd", *(s for s in symbols.values() if isinstance(s, str)), 4])
    shape = r.choice([true, once, once, wrong, wrong, true[1:], [1, *true], wrong[::-1]])
    for given in [v for v in m.model.graph.value_info if v.name == name]:
        m.model.graph.value_info.remove(given)
    m.model.graph.value_info.append(helper.make_tensor_value_info(name, kind.element, shape))
    return f"'{name}' is said to be {shape}"


def _sizes(m: Mutant, name: str) -> tuple:
    kind = m.kinds.get(name)
    return kind.shape if kind is not None else ()


def of_inputs(m: Mutant, r: Random) -> str | None:
    """Axes of an input: without names, of another's name, of names of their own, or of one fixed size."""
    value = r.choice(m.model.graph.input)
    dims = value.type.tensor_type.shape.dim
    names = sorted({d.dim_param for v in m.model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param})
    if not dims or not names or value.name in m.constants():
        return None
    how = r.choice(["nameless", "own", "one for all", "fixed", "exchanged"])
    values = m.model.graph.input if r.random() < 0.3 else [value]
    for given in values:
        for axis, dim in enumerate(given.type.tensor_type.shape.dim):
            if not dim.dim_param:
                continue
            if how == "nameless":
                dim.ClearField("dim_param")
            elif how == "own":
                dim.dim_param = f"{given.name}_axis_{axis}"
            elif how == "one for all":
                dim.dim_param = names[0]
            elif how == "exchanged":
                dim.dim_param = r.choice(names)
            elif axis == 0 or r.random() < 0.5:
                dim.dim_value = r.choice([1, 2, 3]) if axis == 0 else r.choice([1, 4, 7])
    return f"axes of {'inputs' if len(values) > 1 else repr(value.name)}: {how}"


def of_outputs(m: Mutant, r: Random) -> str | None:
    """Axes of an output: none, without names, or of an input's."""
    value = r.choice(m.model.graph.output)
    if not value.type.tensor_type.HasField("shape"):
        return None
    how = r.choice(["no shape", "nameless", "other names"])
    if how == "no shape":
        value.type.tensor_type.ClearField("shape")
        return f"output '{value.name}' has no shape"
    for dim in value.type.tensor_type.shape.dim:
        if dim.dim_param and how == "nameless":
            dim.ClearField("dim_param")
        elif dim.dim_param:
            dim.dim_param = r.choice([d for i in m.facts.signature.inputs for d in i.shape if isinstance(d, str)])
    return f"axes of output '{value.name}': {how}"
