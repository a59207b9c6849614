"""Models in one graph: each output is what its own file computes, and what is shared is what is equal."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from bertfuse.graph_rewrite import one_graph as module
from bertfuse.graph_rewrite.one_graph import one_graph

SIZE = 6


def model(
    path: Path, steps: list[tuple[str, int]], tail: list[tuple[str, int]], source: random.Random, name: str
) -> Path:
    """A chain of `steps` and then `tail`, whose every value and weight has a name drawn from `source`."""
    nodes, weights, value = [], [], "x"
    for kind, seed in steps + tail:
        given, made = [value], f"v{source.getrandbits(64)}"
        if kind in ("MatMul", "Add"):
            shape = (SIZE, SIZE) if kind == "MatMul" else (SIZE,)
            array = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) / 2
            given.append(f"v{source.getrandbits(64)}")
            weights.append(numpy_helper.from_array(array, given[1]))
        attributes = {"axis": -1 if seed % 2 else 1} if kind == "Softmax" else {}
        nodes.append(helper.make_node(kind, given, [made], name=f"n{source.getrandbits(64)}", **attributes))
        value = made
    nodes[-1].output[0] = name
    values = [helper.make_tensor_value_info(called, TensorProto.FLOAT, ["n", SIZE]) for called in ("x", name)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    made_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(made_model, {"task": name})
    onnx.save(made_model, path)
    return path


def steps(source: random.Random, count: int) -> list[tuple[str, int]]:
    kinds = source.choices(["MatMul", "Add", "Tanh", "Softmax", "MatMul"], k=count)
    return [(kind, source.getrandbits(16)) for kind in kinds]


def run(path: Path, outputs: list[str], feed: np.ndarray) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(outputs, {"x": feed})


@pytest.mark.parametrize("names", [["a", "b"], ["a", "a"], ["a", "b", "c"]])
def test_random_models(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each output to the bit; and as many nodes as there are different ones."""
    monkeypatch.setattr(module, "MOST_OWN", 1.0)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    source = random.Random(seed)
    for attempt in range(20):
        common = [("MatMul", 1), *steps(source, source.randint(0, 8))]
        tails = [steps(source, source.randint(1, 5)) for _ in names]
        paths = [
            model(tmp_path / f"{index}.onnx", common, tail, source, name)
            for index, (name, tail) in enumerate(zip(names, tails, strict=True))
        ]
        target = tmp_path / f"{attempt}-all.onnx"
        members = one_graph(paths, target)
        assert members is not None and [member.metadata for member in members] == [{"task": name} for name in names]
        feed = np.random.default_rng(attempt).standard_normal((3, SIZE), dtype=np.float32)
        for path, name, member in zip(paths, names, members, strict=True):
            np.testing.assert_array_equal(run(target, [member.outputs[name]], feed), run(path, [name], feed))

        def prefixes(chain: list[tuple[str, int]]) -> set[tuple[object, ...]]:
            # A seed says nothing of an op without weights, but for the axis of Softmax.
            said = {"Tanh": lambda seed: 0, "Softmax": lambda seed: seed % 2}
            told = [(kind, said.get(kind, lambda seed: seed)(number)) for kind, number in chain]
            return {tuple(told[: end + 1]) for end in range(len(told))}

        wanted = set.union(*(prefixes(common + tail) for tail in tails))
        assert len(onnx.load(target).graph.node) == len(wanted)


def test_what_is_not_shared(tmp_path: Path) -> None:
    """Models of other weights, inputs or opsets, with too much of their own, or with what cannot be compared."""
    source = random.Random(3)
    body = [("MatMul", seed) for seed in range(12)]
    path = model(tmp_path / "a.onnx", body, [("Tanh", 0)], source, "a")
    target = tmp_path / "all.onnx"

    def changed(change: object) -> Path:
        found = onnx.load(path)
        change(found)  # type: ignore[operator]
        onnx.save(found, tmp_path / "b.onnx")
        return tmp_path / "b.onnx"

    def weight(at: int) -> object:
        def change(found: onnx.ModelProto) -> None:
            array = numpy_helper.to_array(found.graph.initializer[at]).copy()
            array[2, 3] = np.nextafter(array[2, 3], np.float32(9))
            found.graph.initializer[at].CopyFrom(numpy_helper.from_array(array, found.graph.initializer[at].name))

        return change

    def loop(found: onnx.ModelProto) -> None:
        found.graph.node.append(helper.make_node("If", ["x"], ["y"], then_branch=found.graph, else_branch=found.graph))

    assert one_graph([path, changed(lambda found: None)], target) is not None
    assert one_graph([path, changed(weight(11))], target) is not None  # the last of twelve: a twelfth is its own
    target.unlink()
    for change in (
        weight(0),
        weight(9),
        loop,
        lambda found: setattr(found.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", "m"),
        lambda found: setattr(found.opset_import[0], "version", 18),
        lambda found: found.graph.node.append(helper.make_node("RandomNormalLike", ["x"], ["y"])),
        lambda found: found.graph.input.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])),
    ):
        assert one_graph([path, changed(change)], target) is None and not target.exists()
    no_matrix = model(tmp_path / "c.onnx", [("Tanh", 0)], [("Add", 1)], source, "c")
    assert one_graph([no_matrix, no_matrix], target) is None
