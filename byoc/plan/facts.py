"""What turned out when regions were compiled or run, for the next plan to heed: who refuses what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from byoc.graph.index import GraphIndex
from byoc.graph.marks import is_ours
from byoc.graph.places import node_names
from byoc.patterns.joint import JointUnit
from byoc.plan.data import PlannedRegion

EVERYTHING = ""
"""Stands for all nodes of a model, where nodes are named."""


@dataclass(frozen=True)
class Split:
    """The most nodes that a region may have since larger ones were too large, and what was said."""

    nodes: int
    reason: str


@dataclass(frozen=True)
class Facts:
    """What is known of targets, by name, that their rules do not say.

    `refused` has the nodes that a target does not take, each by its name or its first output, in a body
    behind its place (`Loop_0/body/add`), with the reason; EVERYTHING stands for all of them. `split` has
    the targets whose regions were too large.
    """

    refused: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    split: Mapping[str, Split] = field(default_factory=lambda: MappingProxyType({}))

    def refusing(self, target: str, nodes: Sequence[str], reason: str) -> "Facts":
        """Return these facts with some nodes refused, too; what was known of one stays."""
        known = {**dict.fromkeys(nodes, reason), **self.refused.get(target, {})}
        return replace(self, refused={**self.refused, target: known})

    def splitting(self, target: str, split: Split) -> "Facts":
        """Return these facts with regions of at most so many nodes."""
        return replace(self, split={**self.split, target: split})

    def rows(
        self, index: GraphIndex, place: str, units: Sequence[JointUnit], target: str
    ) -> dict[int, str]:
        """Return the units of a graph, by number, that a target turned out not to take, and why.

        `place` says which body it is, empty for the main graph.
        """
        refused, split = self.refused.get(target, {}), self.split.get(target)
        if not refused and split is None:
            return {}
        found = {}
        names = node_names(index, place) if refused else {}
        for row, unit in enumerate(units):
            keys = (key for node in unit.nodes for key in (names.get(node), _output(index, place, node)))
            why = next((refused[key] for key in keys if key and key in refused), None)
            why = why or refused.get(EVERYTHING)
            if why is None and split is not None and len(unit.nodes) > split.nodes:
                why = split.reason
            if why is not None:
                found[row] = why
        return found


def nodes_at_fault(region: PlannedRegion, place: str, named: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes of a region's units that have nodes of some names in them; all where none has.

    `place` says in which body the region is. A codegen may name a node, a tensor that it makes, or one
    inside a body; what comes back is as in `Facts.refused`.
    """
    index = region.index
    wanted = set(named)
    blamed = [unit for unit in region.units if wanted & {unit.name, *_called(index, unit.nodes)}]
    names = node_names(index, place)
    nodes = [node for unit in blamed or region.units for node in unit.nodes]
    users = [node for node in nodes if not is_ours(index.nodes[node])]
    keys = (names.get(node) or _output(index, place, node) for node in users or nodes)
    return tuple(dict.fromkeys(filter(None, keys)))


def _called(index: GraphIndex, nodes: Sequence[int]) -> set[str]:
    """Return all names that stand for some nodes: theirs, their outputs', and those in their bodies."""
    found = {name for node in nodes for name in (index.nodes[node].name, *index.nodes[node].output)}
    for inner in (i for node in nodes for body in index.bodies.get(node, ()) for i in body.index.walk()):
        found |= {name for node in inner.nodes for name in (node.name, *node.output)}
    return found - {""}


def _output(index: GraphIndex, place: str, node: int) -> str:
    name = next(filter(None, index.nodes[node].output), "")
    return f"{place}/{name}" if place and name else name
