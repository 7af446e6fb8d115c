"""The striping problem of a model: layers that can be computed row by row.

The same tensors count as in convention C: inputs until their last read, no weights, no views. An image
(a batch of one) is `[H][C][W]` in memory, with H rows; any other tensor is one row in the order of ONNX.
A Reshape between the two moves bytes, and is then a layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import NodeProto

from byoc.memory.reading._in_place import is_view, written_outputs
from byoc.memory.reading._row_rules import NodeView, RowRule, find_row_rule, is_channel_shuffle
from byoc.memory.reading._tensor_sizes import TensorSizes
from byoc.memory.stripes import ALL_ROWS, SAME_ROW, RowLayer, RowTensor
from byoc.model import GraphIndex, copy_without


@dataclass(frozen=True)
class RowwiseModel:
    """The arguments of `stripe`, and their relation to the graph.

    `nodes` gives for each layer, by name, the nodes it computes. `storage_of` gives for each tensor in
    the arena the tensor among `tensors` that holds it.
    """

    tensors: tuple[RowTensor, ...]
    layers: tuple[RowLayer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Mapping[str, tuple[int, ...]]
    storage_of: Mapping[str, str]


def read_row_model(index: GraphIndex, source: str = "model") -> RowwiseModel:
    """Return the row-wise layers of a graph whose extents are all known.

    Nodes that compute constants, or from shapes alone, are left out, as are inputs that nothing reads.
    Raises InputError, beginning with `source`, for a tensor of unknown size.
    """
    index = _store_defaults(index)
    reader = _RowModelReader(index, TensorSizes(index, source))
    for name in index.inputs:
        if index.is_used(name):
            reader.add_tensor(name)
    inputs = tuple(reader.storage)
    for number in range(len(index.nodes)):
        if number not in reader.sizes.constant_nodes:
            reader.add(number)
    outputs = dict.fromkeys(reader.storage[name] for name in index.outputs if name in reader.storage)
    return RowwiseModel(
        tuple(reader.tensors.values()),
        tuple(reader.layers),
        inputs,
        tuple(outputs),
        reader.nodes,
        reader.storage,
    )


def _store_defaults(index: GraphIndex) -> GraphIndex:
    """Return an index in which stored tensors are constants, even those that a caller may override."""
    stored = {tensor.name for tensor in index.graph.initializer}
    given = [value for value in index.graph.input if value.name not in stored]
    if index.body is not None or not index.has_default_inputs or len(given) == len(index.graph.input):
        return index
    proto = copy_without(index.proto, "input")
    proto.graph.input.extend(given)
    return replace(index, proto=proto)


class _RowModelReader:
    """Converts nodes to layers, in order."""

    def __init__(self, index: GraphIndex, sizes: TensorSizes) -> None:
        self.index, self.sizes = index, sizes
        self.tensors: dict[str, RowTensor] = {}
        self.layers: list[RowLayer] = []
        self.nodes: dict[str, tuple[int, ...]] = {}
        self.storage: dict[str, str] = {}
        self.skipped: set[int] = set()

    def add_tensor(self, name: str) -> None:
        """Add a tensor with bytes of its own."""
        size = self.sizes.count_bytes(name)
        shape = self.index.types[name].shape or ()
        rows = shape[2] if len(shape) == 4 and shape[0] == 1 else 1
        rows = rows if isinstance(rows, int) and rows else 1
        self.tensors[name] = RowTensor(name, rows, size // rows)
        self.storage[name] = name

    def add(self, number: int) -> None:
        """Add a node."""
        node = self.index.nodes[number]
        if number in self.skipped:
            return
        data = tuple(name for name in self.index.reads[number] if name in self.storage)
        look = NodeView(self.index, node, tuple(dict.fromkeys(data)))
        shuffle = self._find_shuffle(look, number)
        if shuffle:
            self.skipped.update(shuffle[1:])
            last = self.index.nodes[shuffle[-1]]
            self._add_layer(shuffle, last, RowRule(((node.input[0], SAME_ROW),)))
        elif is_view(self.index, node) and data == (node.input[0],) and self._same_bytes(look, node):
            self.storage[node.output[0]] = self.storage[data[0]]
            self._add_layer(
                (number,), node, RowRule(((data[0], SAME_ROW),))
            )  # of what it makes besides: a mask
        else:
            whole = RowRule(tuple((name, ALL_ROWS) for name in look.data), "whole")
            self._add_layer((number,), node, find_row_rule(look) or whole)

    def _find_shuffle(self, look: NodeView, number: int) -> tuple[int, ...]:
        """Return the three nodes of a channel shuffle that begins here, if there is one."""
        numbers = [number]
        while len(numbers) < 3:
            made = self.index.nodes[numbers[-1]].output[0]
            readers = self.index.consumers.get(made, ())
            if len(readers) != 1 or made in self.index.outputs:
                return ()
            numbers.append(readers[0])
        found = is_channel_shuffle(self.index, look, [self.index.nodes[n] for n in numbers])
        return tuple(numbers) if found else ()

    def _same_bytes(self, look: NodeView, node: NodeProto) -> bool:
        """Tell whether a view's elements have the same order in memory as those it views."""
        source, made = look.shape(node.input[0]), look.shape(node.output[0])
        if source == made:
            return True
        return all(
            not look.is_image(name) or look.shape(name)[2] == 1
            for name in (node.input[0], node.output[0])
        )

    def _add_layer(self, numbers: Sequence[int], node: NodeProto, rule: RowRule) -> None:
        writes = [name for name in written_outputs(self.index, node) if name not in self.storage]
        for name in writes:
            self.add_tensor(name)
        if not writes:
            return
        name = writes[0]
        reads = dict.fromkeys((self.storage[each], rows) for each, rows in rule.reads)
        over = dict.fromkeys(self.storage[each] for each in rule.may_overwrite)
        self.layers.append(
            RowLayer(name, tuple(reads), tuple(writes), rule.mode, tuple(over), rule.scratch)
        )
        self.nodes[name] = tuple(numbers)
