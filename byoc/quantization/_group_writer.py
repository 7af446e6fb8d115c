"""Writing a model in which some convolutions are computed in groups of channels."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from byoc.model import (
    EditableGraph,
    Model,
    copy_without,
    make_node,
    prepare_model,
    set_attribute,
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
        self.graph = EditableGraph.of_index(self.index)
        self.count = len(chains)
        self.chain_of = {number: entry for entry in chains for number in entry[0].nodes}
        self.order_of = {n: np.concatenate(groups) for chain, groups in chains for n in chain.readers}
        self.parts: dict[str, list[str]] = {}
        self.sources: dict[str, str] = {}

    def write(self) -> GroupedModel:
        """Return the model."""
        for number, node in enumerate(self.index.nodes):
            if number in self.chain_of:
                chain, groups = self.chain_of[number]
                self.graph.replace(number, *self._make_groups(number, node, groups))
                if number == chain.nodes[-1]:
                    self._join(chain)
            elif number in self.order_of:
                ordered = deepcopy(node)
                ordered.input[1] = self._store(self._read_weights(number), node.input[1], "ordered")
                self.graph.replace(number, ordered)
        model = self.model
        proto = copy_without(model.proto)
        self.graph.write_to(proto.graph)
        self.graph.write_stored(proto.graph, self.graph.list_unread_stored())
        grouped = replace(
            prepare_model(proto, model.source, model.folder),
            lost=model.lost,
            make_samples=partial(model_samples, model),
        )
        return GroupedModel(grouped, self.count, self.sources)

    def _read_weights(self, number: int) -> NDArray[Any]:
        """Return the weights of a convolution, for its input channels in the order that they are in."""
        weights = read_constant(self.index, self.index.nodes[number].input[1], self.model.folder)
        return weights[:, self.order_of[number]] if number in self.order_of else weights

    def _store(self, values: NDArray[Any], name: str, what: str) -> str:
        return self.graph.store(np.ascontiguousarray(values), f"{name}_{what}")

    def _make_groups(
        self, number: int, node: NodeProto, groups: Sequence[Integers]
    ) -> Iterator[NodeProto]:
        """Yield a node of a chain once for each group of channels."""
        made = []
        for place, channels in enumerate(groups):
            what = f"group{place + 1}"
            copy = deepcopy(node)
            copy.name = self.graph.names.new_node(f"{node.name or node.output[0]}_{what}")
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
            copy.output[0] = self.graph.names.new_tensor(f"{node.output[0]}_{what}")
            self.sources[copy.output[0]] = node.output[0]
            made.append(copy.output[0])
            yield copy
        self.parts[node.output[0]] = made

    def _join(self, chain: ChannelChain) -> None:
        """Add the Concat of what the groups of a chain make."""
        name = self.graph.names.new_tensor(f"{chain.last}_groups")
        node = make_node("Concat", self.parts.pop(chain.last), [name], name, axis=CHANNELS)
        self.graph.insert_after(chain.nodes[-1], node)
        self.graph.link(chain.last, name)
        self.sources[name] = chain.last
