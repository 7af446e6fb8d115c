"""Accelerators and cost models as a user's files: two that take different operators, near or far."""

from dataclasses import dataclass
from pathlib import Path

from byoc.pipeline import Result
from byoc.planning import GraphPlan

COSTS = "kind: roofline\nname: {name}\npeak: {{default: {peak}}}\nbandwidth: 1.0e+12\nlaunch: {launch}\n"
LINK = "link: {bandwidth: 1.0e+12, latency: 1.0e-9}\n"


@dataclass(frozen=True)
class Files:
    """Writes rule files and cost models into a folder and gives back their paths."""

    folder: Path

    def costs(self, name: str, *, peak: str = "1.0e+12", launch: str = "0.0", more: str = LINK) -> str:
        """Return the path of a roofline for an accelerator; `more` is the rest of the file."""
        path = self.folder / f"{name}.costs.yaml"
        path.write_text(COSTS.format(name=name, peak=peak, launch=launch) + more, "utf-8")
        return str(path)

    def rules(self, target: str, *ops: str, costs: str = "", more: str = "") -> str:
        """Return the path of rules that take some operators: `Relu`, or `{op: Relu, level: must}`."""
        each = "\n".join(f"- {op if op.startswith('{') else f'{{op: {op}}}'}" for op in ops)
        cost_model = costs or self.costs(f"{target}-costs")
        path = self.folder / f"{target}.yaml"
        path.write_text(
            f"target: {target}\ncost_model: {cost_model}\ndtype: any\n{more}ops:\n{each}\n", "utf-8"
        )
        return str(path)


def devices(plan: GraphPlan) -> dict[str, str]:
    """Return where each unit's nodes are, by the node's first output: `host`, or the target's name."""
    names = ("host", *(target.name for target in plan.targets))
    return {
        plan.index.nodes[node].output[0]: names[label]
        for unit, label in zip(plan.units, plan.placement.labels.tolist(), strict=True)
        for node in unit.nodes
    }


def everywhere(result: Result) -> dict[str, str]:
    """Return `devices` of the main graph and of all bodies that have plans."""
    return {name: where for graph in result.plan.root.walk() for name, where in devices(graph).items()}


def notes(result: Result) -> list[str]:
    """Return the notes of the report."""
    return list(map(str, result.report.notes))
