"""Partitioning with codegens that fail: rule files, and what has to hold all the same."""

from pathlib import Path
from typing import Any

import onnx

from byoc.pipeline import Result
from helpers.cutting import cut, ramp, same_as_original


def rules(folder: Path, target: str, *ops: str, more: str = "") -> str:
    """Return the path of a rule file for some operators, with a cost model that makes nothing dear."""
    costs = folder / "cheap.yaml"
    costs.write_text(
        "kind: roofline\nname: cheap\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlaunch: 0.0\n"
        "link: {bandwidth: 1.0e+12, latency: 1.0e-9}\n"
    )
    path = folder / f"{target}.yaml"
    listed = "".join(f"- {op if op.startswith('{') else f'{{op: {op}}}'}\n" for op in ops)
    path.write_text(f"target: {target}\ncost_model: {costs}\ndtype: any\n{more}ops:\n{listed}")
    return str(path)


def on_devices(result: Result) -> dict[str, str]:
    """Return the device of each node by its first output: `host`, or the target's name."""
    names = ("host", *(target.name for target in result.plan.targets))
    return {
        graph.index.nodes[node].output[0]: names[label]
        for graph in result.plan.root.walk()
        for unit, label in zip(graph.units, graph.placement.labels.tolist(), strict=True)
        for node in unit.nodes
    }


def working(model: onnx.ModelProto, output: Path, **options: Any) -> Result:
    """Partition, and assert that the bundle is verified, computes the same, and is all there is."""
    result = cut(model, output, **{"strict": False, "codegen": "faulty", **options})
    assert result.verification is not None
    assert result.verification.passed
    same_as_original(model, output, {"x": ramp(1, 4)})
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    return result
