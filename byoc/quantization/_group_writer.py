"""Writing a model in which some convolutions are computed in groups of channels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from byoc.model import (
    Model,
    NameAllocator,
    copy_without,
    prepare_model,
    set_attribute,
    walk_nodes,
)
from byoc.quantization._arithmetic import read_constant
from byoc.quantization._channel_chains import ChannelChain
from byoc.quantization._channel_statistics import CHANNELS
from byoc.samples import model_samples

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupedModel:
    """A model with channels in groups, and the `count` of chains that have them.

    `sources` has by each new tensor the one whose channels it holds, some or all.
    """

    model: Model
    count: int
    sources: Mapping[str, str]


class GroupWriter:
    """Writes a model with chains in groups of channels."""

    def __init__(self, model: Model, chains: Sequence[tuple[ChannelChain, Sequence[Integers]]]) -> None:
        self.model = model
        self.index = model.index
        self.names = NameAllocator(self.index.graph)
        self.proto = copy_without(model.proto, "node")
        self.count = len(chains)
        self.chain_of = {number: entry for entry in chains for number in entry[0].nodes}
        self.order_of = {n: np.concatenate(groups) for chain, groups in chains for n in chain.readers}
        self.joined: dict[str, str] = {}
        self.parts: dict[str, list[str]] = {}
        self.sources: dict[str, str] = {}

    def write(self) -> GroupedModel:
        """Return the model."""
        for number, node in enumerate(self.index.nodes):
            if number not in self.chain_of:
                self._add(number, self._copy(node))
                continue
            chain, groups = self.chain_of[number]
            self._add_groups(number, node, groups)
            if number == chain.nodes[-1]:
                self._join(chain)
        read = {name for node in walk_nodes(self.proto.graph.node) for name in node.input}
        read.update(self.index.outputs)
        kept = [each for each in self.proto.graph.initializer if each.name in read]
        del self.proto.graph.initializer[:]
        self.proto.graph.initializer.extend(kept)
        model = self.model
        grouped = replace(
            prepare_model(self.proto, model.source, model.folder),
            lost=model.lost,
            make_samples=partial(model_samples, model),
        )
        return GroupedModel(grouped, self.count, self.sources)

    def _copy(self, node: NodeProto) -> NodeProto:
        """Return a node that reads channels in the order that they are in."""
        copy = NodeProto()
        copy.CopyFrom(node)
        for position, name in enumerate(node.input):
            copy.input[position] = self.joined.get(name, name)
        return copy

    def _add(self, number: int, node: NodeProto) -> None:
        if number in self.order_of:
            weights = self._read_weights(number)
            node.input[1] = self._store(weights, node.input[1], "ordered")
        self.proto.graph.node.append(node)

    def _read_weights(self, number: int) -> NDArray[Any]:
        """Return the weights of a convolution, for its input channels in the order that they are in."""
        weights = read_constant(self.index, self.index.nodes[number].input[1], self.model.folder)
        return weights[:, self.order_of[number]] if number in self.order_of else weights

    def _store(self, values: NDArray[Any], name: str, what: str) -> str:
        made = self.names.new_tensor(f"{name}_{what}")
        self.proto.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), made))
        return made

    def _add_groups(self, number: int, node: NodeProto, groups: Sequence[Integers]) -> None:
        """Add a node of a chain once for each group of channels."""
        made = []
        for place, channels in enumerate(groups):
            what = f"group{place + 1}"
            copy = self._copy(node)
            copy.name = self.names.new_node(f"{node.name or node.output[0]}_{what}")
            for position, name in enumerate(node.input):
                if name in self.parts:
                    copy.input[position] = self.parts[name][place]
            if node.op_type == "Conv":
                copy.input[1] = self._store(self._read_weights(number)[channels], node.input[1], what)
                if len(node.input) > 2 and node.input[2]:
                    bias = read_constant(self.index, node.input[2], self.model.folder)
                    copy.input[2] = self._store(bias[channels], node.input[2], what)
                if number == self.chain_of[number][0].depthwise:
                    set_attribute(copy, helper.make_attribute("group", len(channels)))
            copy.output[0] = self.names.new_tensor(f"{node.output[0]}_{what}")
            self.sources[copy.output[0]] = node.output[0]
            made.append(copy.output[0])
            self.proto.graph.node.append(copy)
        self.parts[node.output[0]] = made

    def _join(self, chain: ChannelChain) -> None:
        """Add the Concat of what the groups of a chain make."""
        name = self.names.new_tensor(f"{chain.last}_groups")
        node = helper.make_node("Concat", self.parts.pop(chain.last), [name], name, axis=CHANNELS)
        self.proto.graph.node.append(node)
        self.joined[chain.last] = name
        self.sources[name] = chain.last
