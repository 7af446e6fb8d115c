"""From a plan's regions to functions of the model, and conversions where tensors cross to them."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from byoc.boundary.convert import ConvertedModel, RegionBoundary, TransposeShares, convert_boundary
from byoc.model import (
    ONLY_VARIANT,
    TARGET_KEY,
    GraphBody,
    GraphCuts,
    GraphIndex,
    HeavyWeights,
    OutlineGroup,
    RegionCut,
    Variant,
    find_images,
    get_node_name,
    list_node_captures,
    outline,
)
from byoc.patterns import Unit
from byoc.planning import GraphPlan, PlannedRegion, read_requirements
from byoc.rules import Target

# Names of regions by what they hold, so that edits elsewhere in a model leave them as they are.

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32 in lower case: no i, l, o and u, and no two files that differ in case alone."""
_LENGTH = 6  # characters of 5 bits each
_HASH_BYTES = 8  # of BLAKE2b, of which a name keeps 30 bits
# Look-ups in protobuf's enumerations are slow.
_INT64 = TensorProto.INT64
_MAX_HASHED_BYTES = 1 << 20


def name_regions(root: GraphPlan, variant: Variant = ONLY_VARIANT) -> GraphPlan:
    """Return a plan whose regions are named after their targets and what they hold: `dla_k3v9xq`.

    The six characters are a digest of the region's content (`ContentHashes`): its operators with their
    attributes, how they are connected, and its constants by dtype and shape, weights by name as well.
    Names of nodes and of tensors, the order of nodes and all that is around the region do not count.

    A region without a weight of its own also takes in the names of the tensors that it makes and does
    not read: any other region of the same operators would equal it, as the 24 lone Softmax of a
    transformer, or layers that share their weights. Launch order could tell them apart as well, but an
    equal region in front would rename all that follow. So do regions that are equal all the same, such
    as those of two bodies; what is equal even then gets `_2`, `_3` in launch order. At the end stands
    the name of the bundle's `variant`, if it has one: its regions are the same at other sizes.
    """
    hashes: dict[int, ContentHashes] = {}
    regions = [region for graph in root.walk() for region in graph.regions]
    found = []
    for region in regions:
        content = hashes.setdefault(id(region.index), ContentHashes(region.index))
        found.append((region, region.nodes, content, content.hash_region(region.nodes)))
    equal = Counter((region.target.name, digest) for region, _, _, digest in found)
    taken: Counter[str] = Counter()
    names: dict[int, str] = {}
    for region, nodes, content, digest in found:
        chosen = digest
        if equal[region.target.name, digest] > 1 or not content.has_own_weight(nodes):
            chosen = _hash(digest, *sorted(name.encode() for name in _list_sinks(region.index, nodes)))
        name = f"{region.target.name}_{_format_digest(chosen)}"
        taken[name] += 1
        name = name if taken[name] == 1 else f"{name}_{taken[name]}"
        names[id(region)] = variant.name_region(name)
    return _rename(root, names)


def _rename(plan: GraphPlan, names: Mapping[int, str]) -> GraphPlan:
    return replace(
        plan,
        regions=tuple(replace(region, name=names[id(region)]) for region in plan.regions),
        bodies={
            node: tuple(_rename(body, names) for body in inner) for node, inner in plan.bodies.items()
        },
    )


def _list_sinks(index: GraphIndex, nodes: Sequence[int]) -> list[str]:
    """Return the tensors that nodes make and do not read: no edit elsewhere changes them."""
    read = {name for node in nodes for name in index.reads[node]}
    return [name for node in nodes for name in index.node_outputs[node] if name and name not in read]


def _format_digest(digest: bytes) -> str:
    number = int.from_bytes(digest, "big")
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in range(_LENGTH))


class ContentHashes:
    """Hashes of a graph's nodes and of sets of them, which depend on no name but those of weights.

    A node's hash is of its operator, its attributes, and for each input the hash of the node that makes
    it, of a constant, or of a tensor from outside; in the manner of Weisfeiler and Lehman
    (Nauchno-Technicheskaya Informatsia 2, 1968), in one pass, since the graph has no cycles. A set is
    hashed as the sorted hashes of its nodes.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._kinds: dict[int, bytes] = {}
        self._outside: dict[str, bytes] = {}

    def hash_region(self, nodes: Sequence[int]) -> bytes:
        """Return the hash of some nodes, sorted topologically, none of them constant."""
        return _hash(*sorted(self.hash_nodes(nodes, {})))

    def has_own_weight(self, nodes: Sequence[int]) -> bool:
        """Return whether nodes read a weight that no others read, which says which nodes they are."""
        stored, consumers, inside = self._index.stored_tensors, self._index.consumers, set(nodes)
        return any(
            name in stored and _is_weight(stored[name]) and inside.issuperset(consumers[name])
            for node in nodes
            for name in self._index.reads[node]
        )

    def hash_nodes(self, nodes: Sequence[int], made: dict[str, bytes]) -> list[bytes]:
        """Return the hashes of some nodes; `made` has those of known tensors, and gains theirs."""
        index, found = self._index, []
        outside, hash_outside = self._outside, self.hash_outside
        for number in nodes:
            parts = [self._hash_kind(number, made)]
            for name in index.node_inputs[number]:
                part = made.get(name) or outside.get(name) or hash_outside(name)
                parts.append(part)
            digest = hashlib.blake2b(b"".join(parts), digest_size=_HASH_BYTES).digest()
            found.append(digest)
            for position, name in enumerate(index.node_outputs[number]):
                if name:
                    made[name] = digest if position == 0 else _hash(digest, b"%d" % position)
        return found

    def _hash_kind(self, number: int, made: Mapping[str, bytes]) -> bytes:
        """Return the hash of a node's operator and attributes; bodies are hashed like the graph."""
        index = self._index
        kind = index.node_kinds[number]
        known = self._kinds.get(id(kind))
        if known is not None:
            return known
        node = index.nodes[number]
        bodies = []
        if kind.has_bodies:
            names = list_node_captures(node)
            captured = {name: made.get(name) or self.hash_outside(name) for name in names}
            bodies = [_hash_body(body, captured) for body in index.bodies[number]]
        operator = "" if kind.is_onnx else kind.domain, kind.op_type
        found = _hash(*(text.encode() for text in operator), *_describe_attributes(node), *bodies)
        if not bodies:  # which may read what others of the kind do not
            self._kinds[id(kind)] = found
        return found

    def hash_outside(self, name: str) -> bytes:
        """Return the hash of a tensor that no node of the set makes, and remember it."""
        index = self._index
        stored, sparse = index.stored_tensors.get(name), index.sparse_initializers.get(name)
        if not name:
            found = bytes(_HASH_BYTES)
        elif stored is not None:
            weight = name if _is_weight(stored) else ""
            found = _hash(b"constant", weight.encode(), repr((stored.data_type, *stored.dims)).encode())
        elif sparse is not None:
            found = _hash(
                b"sparse", name.encode(), repr((sparse.values.data_type, *sparse.dims)).encode()
            )
        elif index.producers.get(name) in index.constant_nodes:
            self.hash_nodes(index.find_constant_nodes([name]), self._outside)
            return self._outside[name]
        else:
            found = _hash(b"tensor", repr((index.get_dtype(name), index.get_rank(name))).encode())
        self._outside[name] = found
        return found


def _is_weight(tensor: TensorProto) -> bool:
    """Return whether a stored tensor is told by its name: no single number, and not int64.

    Scales, shapes and axes are called after tensors, or by their position in the file.
    """
    return max(tensor.dims, default=1) > 1 and tensor.data_type != _INT64


def _hash_body(body: GraphBody, captured: Mapping[str, bytes]) -> bytes:
    """Return the hash of a body, given those of the tensors that it captures."""
    index, inside = body.index, dict(captured)
    content = ContentHashes(index)
    for position, name in enumerate(index.inputs):
        inside[name] = _hash(b"input", b"%d" % position)
    nodes = [number for number in range(len(index.nodes)) if number not in index.constant_nodes]
    hashes = sorted(content.hash_nodes(nodes, inside))
    outputs = [inside.get(name) or content.hash_outside(name) for name in index.outputs]
    return _hash(f"{body.attribute}/{body.position}".encode(), *hashes, b"outputs", *outputs)


def _describe_attributes(node: NodeProto) -> list[bytes]:
    """Return the attributes of a node but for its bodies, sorted, without names of tensors in them."""
    own = (each for each in node.attribute if not each.HasField("g") and not each.graphs)
    return sorted(map(_describe_attribute, own))


def _describe_attribute(attribute: AttributeProto) -> bytes:
    if attribute.ByteSize() > _MAX_HASHED_BYTES:
        return f"{attribute.name} {attribute.type} {attribute.ByteSize()}".encode()
    if attribute.doc_string or attribute.t.name or attribute.t.doc_string:
        copied = AttributeProto()
        copied.CopyFrom(attribute)
        copied.doc_string = ""
        if copied.HasField("t"):
            copied.t.name = copied.t.doc_string = ""
        attribute = copied
    return attribute.SerializeToString(deterministic=True)


def _hash(*parts: bytes) -> bytes:
    """Return the hash of some parts, each with its length in front."""
    joined = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hashlib.blake2b(joined, digest_size=_HASH_BYTES).digest()


# The tensors at the boundary of a region, with the units on the other side and why they are there.


def outline_regions(root: GraphPlan, heavy: HeavyWeights | None) -> ModelProto:
    """Return the model of a plan with its regions as functions, and the weights that its index lacks.

    Raises InputError as `outline`, and where the file of these weights has changed since it was read.
    """
    outlined = outline(_describe_cuts(root))
    if heavy is not None:
        heavy.fill(outlined)
    return outlined


def computes_otherwise(targets: Sequence[Target]) -> bool:
    """Return whether regions of a target compute in another dtype than the model, which may fail."""
    return any(read_requirements(target).compute is not None for target in targets)


def _describe_cuts(plan: GraphPlan) -> GraphCuts:
    """Return the changes of a plan to its graph, as `outline` takes them."""
    # Many nodes have one reason.
    why: dict[int, dict[str, str]] = {}
    on_host: dict[int, dict[str, str]] = {}
    for unit, reason in plan.host_units:
        if id(reason) not in why:
            why[id(reason)] = {"byoc.device": "host", "byoc.reason": str(reason)}
        on_host.update(dict.fromkeys(unit.nodes, why[id(reason)]))
    return GraphCuts(
        index=plan.index,
        cuts=tuple(_describe_cut(plan.index, region) for region in plan.regions),
        metadata=on_host,
        bodies={node: [_describe_cuts(body) for body in inner] for node, inner in plan.bodies.items()},
    )


def _describe_cut(index: GraphIndex, region: PlannedRegion) -> RegionCut:
    return RegionCut(
        name=region.name,
        domain=region.target.domain,
        groups=tuple(_describe_group(index, unit) for unit in region.units),
        metadata={
            TARGET_KEY: region.target.name,
            "byoc.units": str(len(region.units)),
            "byoc.predicted_seconds": f"{region.seconds:.3e}",
        },
    )


def _describe_group(index: GraphIndex, unit: Unit) -> OutlineGroup:
    """Return a unit as it is in its region; the nodes of a QDQ group bear its name."""
    metadata = {"byoc.rules": ", ".join(unit.rules)}
    if unit.kind == "qdq":
        metadata["byoc.qdq"] = unit.name
    if unit.match is None:
        return OutlineGroup(unit.nodes, metadata=metadata)
    inside = [index.nodes[i] for i in sorted(unit.match.nodes.values())]
    metadata["byoc.nodes"] = ", ".join(map(get_node_name, inside))
    return OutlineGroup(unit.nodes, unit.match.make_composite(index), metadata)


def cut_regions(
    index: GraphIndex, regions: Sequence[PlannedRegion], folder: Path | None
) -> ConvertedModel:
    """Return the model of a main graph with nothing but some regions cut out, boundaries converted.

    The nodes of each region are units of the graph, or of a body in it; `folder` is where the model's
    external data lies. Raises InputError as `outline_regions` and `convert_boundaries`.
    """
    outlined = outline(_cut_graph(index, regions))
    graphs = {id(region.index): region.index for region in regions}
    boundaries = [
        boundary
        for graph in graphs.values()
        for boundary in _describe_boundaries(graph, [each for each in regions if each.index is graph])
    ]
    return convert_boundary(outlined, boundaries, folder)


def _cut_graph(index: GraphIndex, regions: Sequence[PlannedRegion]) -> GraphCuts:
    """Return the cuts of some regions in a graph and in its bodies."""
    own = {id(region.index) for region in regions}
    around = {
        node: [_cut_graph(body.index, regions) for body in bodies]
        for node, bodies in index.bodies.items()
        if any(id(inner) in own for body in bodies for inner in body.index.walk())
    }
    cuts = tuple(_describe_cut(index, region) for region in regions if region.index is index)
    return GraphCuts(index, cuts, bodies=around)


def convert_boundaries(root: GraphPlan, outlined: ModelProto, folder: Path | None) -> ConvertedModel:
    """Return the outlined model of a plan with conversions at its boundaries; it is edited in place.

    `folder` is where the model's external data lies. Raises InputError as `convert_boundary` does.
    """
    boundaries = [boundary for graph in root.walk() for boundary in _region_boundaries(graph)]
    return convert_boundary(outlined, boundaries, folder)


def _region_boundaries(graph: GraphPlan) -> list[RegionBoundary]:
    """Return the boundaries of a graph's own regions, without those of bodies."""
    if not graph.regions:
        return []
    names = [target.name for target in graph.targets]
    shares = dict(zip(names, graph.graph_problem.transpose_shares, strict=False))
    return _describe_boundaries(graph.index, graph.regions, shares)


def _describe_boundaries(
    index: GraphIndex,
    regions: Sequence[PlannedRegion],
    shares: Mapping[str, Mapping[str, TransposeShares]] = MappingProxyType({}),
) -> list[RegionBoundary]:
    """Return the boundaries of regions; `shares` says by target what its regions transpose."""
    spatial = find_images(index)
    return [
        RegionBoundary(
            region.name,
            read_requirements(region.target),
            spatial,
            index.type_protos,
            shares.get(region.target.name, {}),
        )
        for region in regions
    ]
