"""Annotations in the model: metadata of nodes that says on which device they are wanted.

ONNX nodes carry metadata as pairs of texts (`metadata_props`, IR version 10 and later). A pair either
names a device itself (`--annotations KEY`), or has a text that rule files map to devices, such as the
layer names under `layer_ann` that Olive writes and onnxruntime's layer assignment reads.
"""

from collections.abc import Iterator, Sequence

from onnx import NodeProto

from byoc.errors import InputError, suggest_nearest
from byoc.expressions import matches
from byoc.model import GraphIndex, get_metadata, name_nodes, walk_graph_paths
from byoc.planning._graph_units import HOST, PinnedNode, PinnedNodes
from byoc.rules import Target


def read_annotations(index: GraphIndex, targets: Sequence[Target], key: str | None) -> PinnedNodes:
    """Return the nodes of a model whose metadata says where they are wanted, bodies included.

    `key` is the metadata key whose value names a device, None for none; `annotations` of each target
    maps other metadata to it. A node in a body that has no annotation of its own takes that of the node
    around it. A device named under `key` counts before one by `annotations`, and the first target that
    wants a node before later ones.

    Raises InputError when a value under `key` names no device, and when no node has that key.
    """
    if key is not None and key not in (keys := _list_keys(index)):
        known = f"there is {', '.join(sorted(keys))}" if keys else "no node has any"
        raise InputError(f"--annotations {key}: no node has metadata of this key; {known}")
    if key is None and not any(target.rules.annotations for target in targets):
        return PinnedNodes()
    reader = _AnnotationReader(targets, key)
    wanted: dict[int, dict[int, PinnedNode]] = {}
    inherited: dict[int, tuple[int, str]] = {}
    for path, graph in walk_graph_paths(index):
        names = name_nodes(graph, path)
        around = inherited.get(id(graph))
        for number, node in enumerate(graph.nodes):
            found = reader.find_device(node, names.get(number, node.name)) or around
            if found is None:
                continue
            if number in names:
                pinned = PinnedNode(names[number], *found)
                wanted.setdefault(id(graph), {})[number] = pinned
            for body in graph.bodies.get(number, ()):
                inherited[id(body.index)] = found
    return PinnedNodes(wanted)


class _AnnotationReader:
    """Reads the device that a node's metadata asks for."""

    def __init__(self, targets: Sequence[Target], key: str | None) -> None:
        self._targets = targets
        self._key = key
        self._numbers = {HOST: 0, **{target.name: i for i, target in enumerate(targets, 1)}}

    def find_device(self, node: NodeProto, name: str) -> tuple[int, str] | None:
        """Return the number of the device that a node asks for, and who says so; None without any."""
        if not node.metadata_props:
            return None
        if self._key is not None and (value := get_metadata(node, self._key)):
            return self._read_device(value, name), f"--annotations {self._key}"
        for number, target in enumerate(self._targets, 1):
            for key, patterns in target.rules.annotations.items():
                value = get_metadata(node, key)
                if value and any(matches(pattern, value) for pattern in patterns):
                    return number, f"{target.source}: {target.locate('annotations')}.{key}"
        return None

    def _read_device(self, value: str, name: str) -> int:
        if value not in self._numbers:
            known = ", ".join(self._numbers)
            raise InputError(
                f"--annotations {self._key}: node '{name}' asks for device '{value}', which is not here"
                f"{suggest_nearest(value, self._numbers)}; there are {known}"
            )
        return self._numbers[value]


def _list_keys(index: GraphIndex) -> set[str]:
    """Return the keys of metadata that is not empty."""
    nodes = (node for graph in index.walk() for node in graph.nodes)
    return {entry.key for node in nodes for entry in node.metadata_props if entry.value}


def find_unmatched_annotations(index: GraphIndex, target: Target) -> Iterator[str]:
    """Yield a sentence for each pattern under `annotations` of a rule file that matches no node.

    A key that the model does not use at all yields nothing, since rule files are for many models.
    """
    values: dict[str, set[str]] = {key: set() for key in target.rules.annotations}
    for graph in index.walk() if values else ():
        for node in graph.nodes:
            for entry in node.metadata_props:
                if entry.key in values:
                    values[entry.key].add(entry.value)
    for key, patterns in target.rules.annotations.items():
        for position, pattern in enumerate(patterns):
            if values[key] and not any(matches(pattern, value) for value in values[key]):
                location = f"{target.locate('annotations')}.{key}[{position}]"
                yield f"{location}: no node has metadata '{key}' that matches '{pattern}'"
