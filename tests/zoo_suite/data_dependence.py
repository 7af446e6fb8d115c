"""Which nodes have shapes that the data of a model's inputs decide, and which only seem to.

An analysis of two facts for each tensor: do its values depend on the data of the graph's inputs, and
does its shape? Shapes of the graph's inputs are given. It errs on one side: what it calls independent of
data is so, but `data[0:n]` counts as dependent along every axis where `n` comes from data.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto
from reference_run import Key, list_bodies

# Operators whose output is as large as their data say: the position of that data.
_SIZED_BY_VALUES: Mapping[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "DFT": (1, 2),
    "Expand": (1,),
    "GroupQueryAttention": (6,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Resize": (2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "StringSplit": (0,),
    "TfIdfVectorizer": (),
    "Tile": (1,),
    "TopK": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}


@dataclass(frozen=True)
class Dependence:
    """Whether data of the graph's inputs decide a tensor's values, and its shape."""

    values: bool
    shape: bool

    def join(self, other: "Dependence") -> "Dependence":
        """Return what holds of one or the other."""
        return Dependence(self.values or other.values, self.shape or other.shape)


_FIXED = Dependence(values=False, shape=False)


@dataclass(frozen=True)
class DataDependence:
    """The nodes of a model whose shapes data decide, and the operators where that begins."""

    nodes: frozenset[Key]
    sources: tuple[str, ...]


def find_data_dependence(model: ModelProto) -> DataDependence:
    """Return the nodes of a model that read or write a tensor whose shape depends on data."""
    analysis = _Analysis(set(), {})
    stored = {tensor.name for tensor in model.graph.initializer}
    overridable = model.ir_version >= 4
    known = dict.fromkeys(stored, _FIXED)
    for value in model.graph.input:
        if value.name not in stored or overridable:
            known[value.name] = Dependence(values=True, shape=False)
    analysis.visit(model.graph, known, "")
    return DataDependence(frozenset(analysis.nodes), tuple(sorted(analysis.sources)))


@dataclass
class _Analysis:
    nodes: set[Key]
    sources: dict[str, None]

    def visit(self, graph: GraphProto, known: dict[str, Dependence], path: str) -> list[Dependence]:
        """Visit the nodes of a graph in order; return the dependence of its outputs."""
        known.update((tensor.name, _FIXED) for tensor in graph.initializer if tensor.name not in known)
        for number, node in enumerate(graph.node):
            key = f"{path}{number}"
            reads = [known.get(name, _FIXED) for name in node.input if name]
            outputs = self._find_outputs(node, known, key)
            before = any(read.shape for read in reads)
            if before or any(output.shape for output in outputs):
                self.nodes.add(key)
            if not before and any(output.shape for output in outputs):
                self.sources[node.op_type] = None
            known.update(zip(node.output, outputs, strict=True))
        return [known.get(value.name, _FIXED) for value in graph.output]

    def _find_outputs(
        self, node: NodeProto, known: Mapping[str, Dependence], key: Key
    ) -> list[Dependence]:
        reads = [known.get(name, _FIXED) if name else _FIXED for name in node.input]
        if node.op_type == "If":
            return self._find_if_outputs(node, known, key, reads[0])
        if node.op_type == "Loop":
            return self._find_loop_outputs(node, known, key, reads)
        if node.op_type == "Scan":
            return self._find_scan_outputs(node, known, key, reads)
        shape = any(read.shape for read in reads)
        if node.op_type in ("Shape", "Size"):
            return [Dependence(values=shape, shape=False)] * len(node.output)
        sizing = _SIZED_BY_VALUES.get(node.op_type, ())
        if node.op_type == "Slice" and len(node.input) == 1:
            sizing = ()  # before operator set 10 its bounds were attributes
        shape |= any(reads[i].values for i in sizing if i < len(reads))
        values = shape or any(read.values for read in reads)
        return [Dependence(values, shape)] * len(node.output)

    def _find_if_outputs(
        self, node: NodeProto, known: Mapping[str, Dependence], key: Key, condition: Dependence
    ) -> list[Dependence]:
        branches = [
            self.visit(body, dict(known), f"{key}/{name}/{position}/")
            for name, position, body in list_bodies(node)
        ]
        both = [one.join(other) for one, other in zip(*branches, strict=True)]
        if condition.values:  # the branches may differ in shape, and then the data choose
            return [Dependence(values=True, shape=True)] * len(both)
        return both

    def _find_loop_outputs(
        self, node: NodeProto, known: Mapping[str, Dependence], key: Key, reads: list[Dependence]
    ) -> list[Dependence]:
        ((name, position, body),) = list_bodies(node)
        carried = list(reads[2:])
        trips = any(read.values for read in reads[:2])
        found: list[Dependence] = []
        for _ in range(3):  # a fact that is carried reaches what depends on it in a few turns
            inner = dict(known)
            inner.update(
                zip((value.name for value in body.input), [_FIXED, _FIXED, *carried], strict=True)
            )
            found = self.visit(body, inner, f"{key}/{name}/{position}/")
            carried = [one.join(other) for one, other in zip(carried, found[1:], strict=False)]
        trips |= found[0].values
        scanned = [
            Dependence(each.values or trips, each.shape or trips) for each in found[1 + len(carried) :]
        ]
        return [Dependence(each.values or trips, each.shape) for each in carried] + scanned

    def _find_scan_outputs(
        self, node: NodeProto, known: Mapping[str, Dependence], key: Key, reads: list[Dependence]
    ) -> list[Dependence]:
        ((name, position, body),) = list_bodies(node)
        inner = dict(known)
        given = reads[-len(body.input) :] if body.input else []
        inner.update(zip((value.name for value in body.input), given, strict=True))
        found = self.visit(body, inner, f"{key}/{name}/{position}/")
        around = any(read.shape for read in reads)
        return [Dependence(each.values, each.shape or around) for each in found]
