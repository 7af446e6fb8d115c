"""Random edits of models that compute the same kind of thing: nodes inserted, removed, renamed, moved.

Each node keeps a tag, so that a test knows which node of the edited model is which of the original.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper

from byoc.model import GraphIndex, Model, TensorType, list_bodies, list_reads

Tag = int | str
"""The position of a node in the original model, or the name of a new one."""

LARGE = 1024
_FLOATS = ("float32", "float16", "float64")


def point_weights_at_one_file(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Return a copy of a model whose large weights are all the beginning of one file of zeros."""
    size = 0
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    for tensor in light.graph.initializer:
        count = len(tensor.raw_data)
        for entry in tensor.external_data:
            count = int(entry.value) if entry.key == "length" else count
        if count <= LARGE:
            continue
        size = max(size, count)
        tensor.ClearField("raw_data")
        del tensor.external_data[:]
        for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(count))):
            tensor.external_data.add(key=key, value=value)
        tensor.data_location = TensorProto.EXTERNAL
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(size)
    return light


@dataclass
class EditedModel:
    """A model that is edited in place: its nodes with their tags, and the types of its tensors."""

    proto: onnx.ModelProto
    types: dict[str, TensorType]
    rng: random.Random
    nodes: list[tuple[Tag, NodeProto]] = field(default_factory=list)
    edits: list[str] = field(default_factory=list)
    _made: int = 0

    @classmethod
    def copy(cls, model: Model, seed: int) -> "EditedModel":
        """Return a copy of a model to edit."""
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        nodes: list[tuple[Tag, NodeProto]] = [*enumerate(proto.graph.node)]
        return cls(proto, dict(model.index.types), random.Random(seed), nodes)

    def edit(self, count: int) -> None:
        """Make some random edits."""
        kinds: tuple[Callable[[], str], ...] = (
            *(self.insert_node, self.insert_node, self.remove_node, self.remove_node),
            *(self.rename_nodes, self.rename_tensors, self.reorder_nodes),
        )
        while count:
            done = self.rng.choice(kinds)()
            if done:
                self.edits.append(done)
                count -= 1

    def build(self) -> onnx.ModelProto:
        """Return the edited model."""
        result = onnx.ModelProto()
        result.CopyFrom(self.proto)
        del result.graph.node[:]
        result.graph.node.extend(node for _, node in self.nodes)
        return result

    def find_tags(self) -> dict[str, Tag]:
        """Return the tag of the node that makes each tensor."""
        return {name: tag for tag, node in self.nodes for name in node.output if name}

    def _name(self, stem: str) -> str:
        self._made += 1
        return f"edit/{stem}_{self._made}"

    def insert_node(self) -> str:
        """Insert an Identity or a Relu between a tensor and one of its readers, or all of them."""
        place, (_, maker) = self.rng.choice([*enumerate(self.nodes)])
        readers = [
            (node, at)
            for _, node in self.nodes
            for at, name in enumerate(node.input)
            if name and name in maker.output[:1]
        ]
        kind = self.types.get(next(iter(maker.output), ""))
        if not readers or kind is None:
            return ""
        operator = self.rng.choice(["Identity", "Relu"]) if kind.dtype in _FLOATS else "Identity"
        output = self._name("tensor")
        self.types[output] = kind
        for node, at in readers if self.rng.random() < 0.5 else [self.rng.choice(readers)]:
            node.input[at] = output
        name = self.rng.choice([self._name("node"), "", self.rng.choice(self.nodes)[1].name])
        made = helper.make_node(operator, [maker.output[0]], [output], name)
        self.nodes.insert(place + 1, (output, made))
        return f"insert {operator} behind {maker.output[0]}"

    def remove_node(self) -> str:
        """Remove a node whose readers can have its input instead."""
        read = {name for _, node in self.nodes for body in list_bodies(node) for name in _reads(body)}
        read |= {value.name for value in self.proto.graph.output}
        place, (_, node) = self.rng.choice([*enumerate(self.nodes)])
        made = [name for name in node.output if name]
        if len(made) != 1 or made[0] in read or not node.input or list_bodies(node):
            return ""
        same = [name for name in node.input if name and self.types.get(name) is not None]
        same = [name for name in same if self.types[name] == self.types.get(made[0])]
        if not same:
            return ""
        for _, reader in self.nodes:
            for at, name in enumerate(reader.input):
                if name == made[0]:
                    reader.input[at] = same[0]
        del self.nodes[place]
        return f"remove {node.op_type} {made[0]}"

    def rename_nodes(self) -> str:
        """Give a part of all nodes other names, or none, or that of another node."""
        share = self.rng.choice([0.05, 0.5, 1.0])
        for _, node in self.nodes:
            if self.rng.random() < share:
                other = self.rng.choice(self.nodes)[1].name
                node.name = self.rng.choice([self._name("node"), self._name("node"), "", other])
        return f"rename {share:.0%} of the nodes"

    def rename_tensors(self) -> str:
        """Give a part of the tensors that nodes make other names; some constants, too."""
        share = self.rng.choice([0.01, 0.1, 0.5])
        fixed = {value.name for value in (*self.proto.graph.output, *self.proto.graph.input)}
        names = [name for _, node in self.nodes if node.op_type != "Constant" for name in node.output]
        names += [tensor.name for tensor in self.proto.graph.initializer if self.rng.random() < 0.05]
        chosen = [name for name in names if name and name not in fixed and self.rng.random() < share]
        new = {name: self._name("renamed") for name in chosen}
        for _, node in self.nodes:
            _rename(node, new)
        for value in self.proto.graph.value_info:
            value.name = new.get(value.name, value.name)
        for tensor in self.proto.graph.initializer:
            tensor.name = new.get(tensor.name, tensor.name)
        self.types.update({new[name]: self.types[name] for name in chosen if name in self.types})
        return f"rename {share:.0%} of the tensors" if new else ""

    def reorder_nodes(self) -> str:
        """Put the nodes in another order in which they can run."""
        maker = {
            name: place for place, (_, node) in enumerate(self.nodes) for name in node.output if name
        }
        waiting: dict[int, set[int]] = {}
        readers: dict[int, list[int]] = {}
        for place, (_, node) in enumerate(self.nodes):
            waiting[place] = {maker[name] for name in list_reads(node) if name in maker}
            for before in waiting[place]:
                readers.setdefault(before, []).append(place)
        ready = [place for place, before in waiting.items() if not before]
        order: list[int] = []
        while ready:
            at = self.rng.randrange(len(ready))
            ready[at], ready[-1] = ready[-1], ready[at]
            order.append(ready.pop())
            for place in readers.get(order[-1], ()):
                waiting[place].discard(order[-1])
                if not waiting[place]:
                    ready.append(place)
        assert len(order) == len(self.nodes)
        self.nodes = [self.nodes[place] for place in order]
        return "reorder"


def _reads(graph: GraphProto) -> Iterator[str]:
    """Yield all names that a body reads or returns, its own among them."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for body in list_bodies(node):
            yield from _reads(body)


def _rename(node: NodeProto, new: Mapping[str, str]) -> None:
    for names in (node.input, node.output):
        for at, name in enumerate(names):
            if name in new:
                names[at] = new[name]
    for body in list_bodies(node):
        for inner in body.node:
            _rename(inner, new)
        for value in body.output:
            value.name = new.get(value.name, value.name)


def is_weight(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor is stored, has more than one number, and is no shape."""
    tensor = index.initializers.get(name)
    return (
        tensor is not None and max(tensor.dims, default=1) > 1 and tensor.data_type != TensorProto.INT64
    )
