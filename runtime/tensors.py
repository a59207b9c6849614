"""Inner tensors as outputs: what lets two graphs be compared node by node."""

from __future__ import annotations

from pathlib import Path

import onnx

from bertfuse.graph_rewrite.io import open_model, write


def expose_shared(first: Path, second: Path, folder: Path) -> tuple[list[str], list[Path]]:
    """Writes both models into `folder` with every tensor that both compute as an output.

    Returns these tensors' names in execution order and the two files. Names say what is shared: a fused model keeps its
    original's, while two exports may use one name (val_3) for different tensors. Raises FusionError for files that
    cannot be read.
    """
    opened = [open_model(path) for path in (first, second)]
    graphs = [skeleton.graph for skeleton, _ in opened]
    computed = [[name for node in graph.node for name in node.output if name] for graph in graphs]
    in_second = set(computed[1])
    names = [name for name in computed[0] if name in in_second]
    files = []
    for index, (skeleton, weights) in enumerate(opened):
        outputs = {value.name for value in skeleton.graph.output}
        skeleton.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
        files.append(folder / f"{index}.onnx")
        write(skeleton, weights, files[-1])
    return names, files
