"""Nodes whose device is given, by a saved placement or by annotations in the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from byoc.model import GraphIndex
from byoc.patterns import JointUnit
from byoc.placement import Problem

HOST = "host"
"""The name of the host wherever a device is named."""

_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class PinnedNode:
    """A node's name for messages, the number of its device (0: the host), and who says so."""

    name: str
    device: int
    source: str


@dataclass(frozen=True, eq=False)
class PinnedNodes:
    """The nodes whose device is given: by node number, for each graph by the id of its index.

    `notes` are sentences for the user about nodes that could not be placed so; each is there once.
    """

    wanted: Mapping[int, Mapping[int, PinnedNode]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def override(self, other: "PinnedNodes") -> "PinnedNodes":
        """Return the nodes of both; where both give a device, that of this one counts."""
        graphs = dict.fromkeys((*other.wanted, *self.wanted))
        wanted = {
            graph: {**other.wanted.get(graph, {}), **self.wanted.get(graph, {})} for graph in graphs
        }
        return PinnedNodes(wanted, [*self.notes, *other.notes])

    def find_devices(
        self, index: GraphIndex, units: Sequence[JointUnit], problem: Problem
    ) -> dict[int, int]:
        """Return the device of each unit of a graph that holds pinned nodes, by the unit's number.

        A unit whose nodes are pinned to several devices, or to one that does not take it, is left out
        and noted.
        """
        wanted = self.wanted.get(id(index), {})
        pins: dict[int, int] = {}
        if not wanted:
            return pins
        split: list[PinnedNode] = []
        refused: list[PinnedNode] = []
        for row, unit in enumerate(units):
            found = [wanted[node] for node in unit.nodes if node in wanted]
            devices = {node.device for node in found}
            if len(devices) > 1:
                split += found
                continue
            for device in devices:
                if device and not problem.allowed[row, device]:
                    refused += found
                else:
                    pins[row] = device
        self._note("on several devices, and now run as one", split)
        self._note("not taken by the device", refused)
        return pins

    def _note(self, what: str, nodes: Sequence[PinnedNode]) -> None:
        for source in dict.fromkeys(node.source for node in nodes):
            note = describe_nodes(source, what, [node.name for node in nodes if node.source == source])
            if note not in self.notes:
                self.notes.append(note)


def describe_nodes(source: str, what: str, names: Sequence[str]) -> str:
    """Return a sentence about nodes that are placed anew: who named them, what is wrong, their names."""
    return f"{source}: {what}: {list_names(names)}; placed anew"


def list_names(names: Sequence[str]) -> str:
    """Return the first names in quotes, and how many more there are."""
    listed = ", ".join(f"'{name}'" for name in names[:_MAX_NAMES])
    return f"{listed} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else listed
