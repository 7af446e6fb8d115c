"""Placements as files: the device of each node, in YAML that a person can read, edit and give back.

Nodes are called by their names, so that a file survives edits elsewhere in the model; a node that was
renamed is found again by what it is and what is around it, where only one fits. What no longer fits is
told, and left to the strategy.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from byoc.errors import InputError, suggest_nearest
from byoc.model import GraphIndex, name_nodes
from byoc.planning._node_names import Node, NodeNames, find_output, identify, sign_nodes
from byoc.planning._pinned_nodes import HOST, PinnedNode, PinnedNodes, describe_nodes, list_names
from byoc.planning._plan_data import Plan
from byoc.support import StrictModel, dump_yaml, read_yaml, write_text
from byoc.zoo import name_source

_HEAD = """\
# Where each node runs. Edit it and give it to `byoc partition --placement`: what is listed goes where it
# is said to be, what is not listed is placed anew. `outputs` and `signatures` find renamed nodes; they
# may go.
"""


class SavedPlacementFile(StrictModel):
    """The file: the device of each node by its name, in a body behind its place (`Loop_0/body/add`).

    `outputs` has the first output of a node that is called by a name of its own.
    """

    format: Literal[1]
    model: str = ""
    nodes: Annotated[dict[str, str], Field(min_length=1)]
    outputs: dict[str, str] = Field(default_factory=dict)
    signatures: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SavedPlacement:
    """A placement that the user gave: the path of its file, and its content."""

    source: str
    file: SavedPlacementFile

    def resolve(
        self, index: GraphIndex, devices: Sequence[str], lost: Collection[str] = ()
    ) -> PinnedNodes:
        """Return the device of each node that the file decides; `devices` are the accelerators' names.

        `lost` are names of nodes that clean-up dropped, which are not missed. Raises InputError when
        the file names another device.
        """
        labels = {HOST: 0, **{name: number for number, name in enumerate(devices, 1)}}
        for node, device in self.file.nodes.items():
            if device not in labels:
                hint = f"{suggest_nearest(device, labels)}; there are {', '.join(labels)}"
                raise InputError(f"{self.source}: nodes.{node}: no device '{device}' here{hint}")
        names = NodeNames(index)
        found = self._find_named(names)
        renamed, several = self._find_renamed(found, names.graphs)
        found |= renamed
        wanted: dict[int, dict[int, PinnedNode]] = {}
        for name, (graph, number) in found.items():
            pinned = PinnedNode(name, labels[self.file.nodes[name]], self.source)
            wanted.setdefault(id(graph), {})[number] = pinned
        known = {*found, *several, *lost}
        gone = [name for name in self.file.nodes if name not in known]
        several = [name for name in several if name not in lost]
        notes = []
        if several:
            what = "not in the model by name, and several nodes are like it"
            notes.append(describe_nodes(self.source, what, several))
        if gone:
            are = "nodes are" if len(gone) > 1 else "node is"
            notes.append(f"{self.source}: {len(gone)} {are} not in the model: {list_names(gone)}")
        return PinnedNodes(wanted, notes)

    def _find_named(self, names: "NodeNames") -> dict[str, Node]:
        """Return the nodes that are named in the file: by their names, else by their first outputs.

        A name may have become another node's, or that of several, and so may an output. Where both lead
        to one node it is that; else, of what leads to several or is led to twice, what is alike by its
        signature counts first, and then names.
        """
        found: dict[str, Node] = {}
        claims: list[tuple[str, Node]] = []
        for name in self.file.nodes:
            output = self.file.outputs.get(name)
            by_name = names.find(name) if output is None else names.find_named(name)
            here = output or name
            by_output = names.find_output(here) or names.find_output(self._lead_by_outputs(here))
            if by_name is not None and (output is None or by_name == by_output):
                found[name] = by_name
            else:
                claims += [(name, node) for node in (by_name, by_output) if node is not None]
        taken = {*map(identify, found.values())}
        claims = [(name, node) for name, node in claims if identify(node) not in taken]
        for name, node in self._sort_claims(claims):
            if name not in found and identify(node) not in taken:
                found[name] = node
                taken.add(identify(node))
        return found

    def _sort_claims(self, claims: list[tuple[str, Node]]) -> list[tuple[str, Node]]:
        """Return pairs of a name and a node: those that are alike first, then names without a choice."""
        names, nodes = {name for name, _ in claims}, {identify(node) for _, node in claims}
        if len(names) == len(nodes) == len(claims):
            return claims
        signs = {id(index): sign_nodes(index) for index in {node[0] for _, node in claims}}

        def rate(claim: tuple[str, Node]) -> int:
            wanted, (index, number) = self.file.signatures.get(claim[0], ""), claim[1]
            there = signs[id(index)].get(number, "")
            alike = (wanted.rsplit("-", parts)[0] == there.rsplit("-", parts)[0] for parts in range(3))
            return next((place for place, equal in enumerate(alike) if equal), 3) if wanted else 3

        choices = Counter(name for name, _ in claims)
        return sorted(claims, key=lambda claim: (rate(claim), choices[claim[0]]))

    def _lead_by_outputs(self, name: str, stop: int = -1) -> str:
        """Return a node's name with the path to its graph by first outputs, where the file has them.

        Only what is before `stop` is looked for; a node may be called as the beginning of its output.
        """
        end = name.rfind("/", 0, stop if stop >= 0 else len(name))
        while end > 0:
            if name[:end] in self.file.outputs:
                return self._lead_by_outputs(self.file.outputs[name[:end]], end) + name[end:]
            end = name.rfind("/", 0, end)
        return name

    def _find_renamed(
        self, known: Mapping[str, Node], graphs: Sequence[GraphIndex]
    ) -> tuple[dict[str, Node], list[str]]:
        """Return the nodes of names that are gone, by their signatures, and names that several fit.

        What the node and all around it is counts first; where that changed, what it is by itself.
        """
        lost = {
            name: self.file.signatures.get(name, "") for name in self.file.nodes if name not in known
        }
        if not any(lost.values()):
            return {}, []
        named = {*map(identify, known.values())}
        fresh = {
            (id(index), node): (index, node, sign)
            for index in graphs
            for node, sign in sign_nodes(index).items()
            if (id(index), node) not in named
        }
        found: dict[str, Node] = {}
        several: set[str] = set()
        parts: tuple[Callable[[str], str], ...] = (str, lambda sign: sign.rpartition("-")[0])
        for part in parts:
            wanted: dict[str, list[str]] = {}
            for name, sign in lost.items():
                if sign and name not in found:
                    wanted.setdefault(part(sign), []).append(name)
            there: dict[str, list[tuple[int, int]]] = {}
            for key, (_, _, sign) in fresh.items():
                there.setdefault(part(sign), []).append(key)
            for sign, asking in wanted.items():
                if len(asking) == len(there.get(sign, ())) == 1:
                    index, node, _ = fresh.pop(there[sign][0])
                    found[asking[0]] = index, node
                elif there.get(sign):
                    several.update(asking)
        return found, [name for name in lost if name in several and name not in found]


def read_placement(path: Path) -> SavedPlacement:
    """Return the placement in a file. Raises InputError with a line for every mistake in it."""
    return SavedPlacement(str(path), read_yaml(path, SavedPlacementFile))


def save_placement(plan: Plan, path: str | Path) -> None:
    """Write where each node of a `plan` runs to a file at `path`, for `partition(placement=...)`.

    Raises InputError when the file cannot be written.
    """
    write_text(Path(path), _format_placement(plan))


def _format_placement(plan: Plan) -> str:
    nodes: dict[str, str] = {}
    outputs: dict[str, str] = {}
    signatures: dict[str, str] = {}
    for graph in plan.root.walk():
        devices, signs = graph.device_of_node, sign_nodes(graph.index)
        for node, name in name_nodes(graph.index, graph.path).items():
            if node in devices:
                nodes[name] = devices[node]
                signatures[name] = signs[node]
                output = find_output(graph.index, node, graph.path)
                if output not in ("", name):
                    outputs[name] = output
    content = {"nodes": nodes, "outputs": outputs, "signatures": signatures}
    kept = {key: value for key, value in content.items() if value}
    return _HEAD + dump_yaml({"format": 1, "model": name_source(plan.model.source), **kept})
