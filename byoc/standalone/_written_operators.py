"""Operators that are written out by others before a model becomes C: If, Loop, Scan and more.

A program in C is a list of steps without jumps. An If whose condition is known is its branch; a Loop of
a known number of iterations and a Scan over a known extent are copies of their bodies in a row. An
Attention that no function in C computes is the operators by which ONNX defines it, and what adds up
many products of halves is computed in floats, as is all that computes in bfloat16. A Slice in steps
back is a Gather, a Pad that cuts is a Slice and a Pad, an STFT of a signal without a channel is one of a
signal with one, a recurrent node in two directions is two, and so on.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    DTYPE_NUMBERS,
    GraphIndex,
    Model,
    build_node,
    copy_without,
    find_constant_value,
    get_stated_attributes,
    is_onnx,
    list_bodies,
    list_own_names,
    make_body_model,
    make_unique_name,
    prepare_model,
    rename_tensors,
    walk_graphs,
)
from byoc.passes import clean_model, list_clean_passes
from byoc.standalone._unrolled_bodies import write_out_bodies

MOST_ADDED = 4096
"""The most nodes that copies of bodies may add to a model: each is a call in C."""

_INITIALIZER_IR = 4  # from which on a stored tensor is no input
_PADS_BY_INPUT = 11  # the operator set; Slice has its limits as inputs from 10 on
_RANK_OF_SIGNALS = 2  # batch and samples, without a channel
_ATTENTION = frozenset({"Attention", "LinearAttention"})
MOVERS = frozenset(
    [
        *("CenterCropPad", "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather"),
        *("GatherElements", "GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "Scatter"),
        *("ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze"),
        *("Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "BitCast"),
    ]
)
"""Operators that put elements elsewhere, or zeros beside them, and compute nothing with them."""

CONVERSIONS = frozenset({"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"})
_OF_TYPES = frozenset({"Constant", "ConstantOfShape", "EyeLike", "RandomNormal", "RandomUniform"})
_NOT_WIDENED = MOVERS | CONVERSIONS | _OF_TYPES  # the last have the type of their result as an attribute
_PREVIEW = "ai.onnx.preview"  # the domain of operators that ONNX tries out, each with a definition
_DEFINED = frozenset({"FlexAttention", "SwiGLU"})
"""Operators that no function in C computes, and ONNX defines by others."""
_SUMS = frozenset({"LogSoftmax", "ReduceMean", "ReduceSum", "Softmax"})
"""Operators that add up many numbers, in halves too, where each sum would be rounded.

Products are none of them: their weights would take twice the bytes.
"""
_REWRITTEN = (
    _ATTENTION
    | _DEFINED
    | _SUMS
    | {"Pad", "Slice", "STFT", "SpaceToDepth", "Compress", "OptionalHasElement", "GRU", "RNN"}
)
_REVERSE_SEQUENCE = 10  # the operator set that has it
_DIRECTIONS = {"reverse": (True,), "bidirectional": (False, True)}
"""The directions of a recurrent node other than forward, and whether they begin at the end."""
_PADDED_KEYS = 6  # input of Attention


def write_out_operators(model: Model, domains: Collection[str] = ()) -> Model:
    """Return a model in which no If, Loop or Scan is left that can be written out; it computes the same.

    Those whose bodies call functions of `domains` stay, and those that would add more than MOST_ADDED
    nodes in all. Attention over a window, or over padded keys in causal order, is written out as well,
    attention of halves is one of floats between Casts, and a Pad that cuts, a Slice in steps back and an
    STFT without a channel are other nodes.
    """
    added = 0
    while True:
        writer = OperatorWriter(model, frozenset(domains), MOST_ADDED - added)
        nodes = writer.rewrite()
        if not writer.added:
            return model
        added += writer.added
        proto = copy_without(model.proto, "node", "input")
        # From version 4 on, what is stored and is an input as well would be an input that has a default.
        known = {tensor.name for tensor in model.proto.graph.initializer}
        proto.graph.input.extend(each for each in model.proto.graph.input if each.name not in known)
        proto.graph.node.extend(nodes)
        proto.graph.initializer.extend(writer.stored)
        proto.ir_version = max(proto.ir_version, _INITIALIZER_IR)
        prepared = prepare_model(proto, model.source, model.folder)
        cleaned = clean_model(prepared, list_clean_passes(False, True)).model
        model = replace(cleaned, make_samples=model.make_samples)


def put_steps_first(model: Model) -> Model:
    """Return a model whose recurrent nodes, those of bodies too, read steps along the first axis.

    onnxruntime runs no others (`layout` 1), so the model that it judges is written so, too.
    """
    graphs = list(walk_graphs(model.proto.graph))
    if not any(_has_batches_first(node) for graph in graphs for node in graph.node):
        return model
    taken = {name for graph in graphs for name in list_own_names(graph)}
    proto = copy_without(model.proto)
    for graph in walk_graphs(proto.graph):
        nodes = list(graph.node)
        del graph.node[:]
        for node in nodes:
            graph.node.extend(_turn_layout(node, taken) if _has_batches_first(node) else [node])
    prepared = prepare_model(proto, model.source, model.folder)
    cleaned = clean_model(prepared, list_clean_passes(False, True)).model
    return replace(cleaned, make_samples=model.make_samples)


def _has_batches_first(node: NodeProto) -> bool:
    is_recurrent = is_onnx(node) and node.op_type in ("LSTM", "GRU", "RNN")
    return is_recurrent and bool(get_stated_attributes(node).get("layout"))


def _turn_layout(node: NodeProto, taken: set[str]) -> Iterator[NodeProto]:
    """Yield a recurrent node of layout 0 between Transpose nodes."""
    turned = NodeProto()
    turned.CopyFrom(node)
    for attribute in turned.attribute:
        if attribute.name == "layout":
            attribute.i = 0
    for place in (0, 5, 6):  # x, and the states before the first step
        if node.input[place : place + 1] not in ([], [""]):
            turned.input[place] = make_unique_name(f"{node.input[place]}_turned", taken)
            yield build_node("Transpose", [node.input[place]], [turned.input[place]], perm=[1, 0, 2])
    for place, name in enumerate(node.output):
        turned.output[place] = make_unique_name(f"{name}_turned", taken) if name else ""
    yield turned
    for place, name in enumerate(node.output):
        if name:
            axes = [1, 0, 2] if place else [2, 0, 1, 3]
            yield build_node("Transpose", [turned.output[place]], [name], perm=axes)


@dataclass(eq=False)
class OperatorWriter:
    """One round over the main graph; what bodies hold themselves is for the next one.

    `added` counts new nodes, of which there may be `most`; `stored` are the tensors that bodies stored.
    """

    model: Model
    domains: frozenset[str]
    most: int
    added: int = 0
    stored: list[TensorProto] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    @property
    def index(self) -> GraphIndex:
        return self.model.index

    def rewrite(self) -> list[NodeProto]:
        """Return the nodes of the graph, with copies of bodies in the places of their operators."""
        if not self.index.bodies and not any(
            n.op_type in _REWRITTEN or self._find_narrow(n, "bfloat16") for n in self.index.nodes
        ):
            return list(self.index.nodes)
        for graph in walk_graphs(self.model.proto.graph):
            self.taken |= list_own_names(graph)
        return [
            made
            for number, node in enumerate(self.index.nodes)
            for made in self._write_out(number, node) or [node]
        ]

    def _write_out(self, number: int, node: NodeProto) -> list[NodeProto]:
        """Return the nodes that compute what a node does; empty where it stays."""
        if _is_attention(node):
            is_written = _needs_definition(node)
            return self._define(number) if is_written else self._widen(node, "float16", "bfloat16")
        narrow = ("float16", "bfloat16") if node.op_type in _SUMS else ("bfloat16",)
        if self._find_narrow(node, *narrow):
            return self._widen(node, *narrow)
        if node.op_type in _DEFINED and (is_onnx(node) or node.domain == _PREVIEW):
            return self._define(number)
        simple: dict[str, Callable[[NodeProto], Iterator[NodeProto]]] = {
            "Pad": self._cut_first,
            "Slice": self._gather_backwards,
            "STFT": self._add_channel,
            "SpaceToDepth": self._permute_blocks,
            "Compress": self._gather_chosen,
            "OptionalHasElement": self._find_element,
            "GRU": self._run_forwards,
            "RNN": self._run_forwards,
        }
        if is_onnx(node) and node.op_type in simple:
            made = list(simple[node.op_type](node))
            self.added += len(made)
            return made
        found = list(write_out_bodies(self, number))
        self.added += len(found)
        return found

    def _define(self, number: int) -> list[NodeProto]:
        """Return the nodes by which ONNX defines a node; empty where they are of other operator sets."""
        body = make_body_model(self.index, number)
        opsets = self.index.opsets
        if body is None or any(
            each.version != opsets.get("", 0) for each in body.opset_import if not each.domain
        ):
            return []
        made = {name for each in body.graph.node for name in each.output if name}
        if self.taken & made - set(self.index.nodes[number].output):
            return []
        known = self.taken - made
        self.stored.extend(each for each in body.graph.initializer if each.name not in known)
        self.added += len(body.graph.node)
        return list(body.graph.node)

    def _find_narrow(self, node: NodeProto, *dtypes: str) -> dict[str, str]:
        """Return the tensors of some types that a node computes with, and their types.

        There are none where it moves or converts elements, and where it has bodies.
        """
        if not is_onnx(node) or node.op_type in _NOT_WIDENED or list_bodies(node):
            return {}
        types = {name: self.index.get_dtype(name) or "" for name in (*node.input, *node.output) if name}
        return {name: dtype for name, dtype in types.items() if dtype in dtypes}

    def _widen(self, node: NodeProto, *dtypes: str) -> list[NodeProto]:
        """Return a node of types of 16 bits as one of floats, which are rounded once, at the end."""
        narrow = self._find_narrow(node, *dtypes)
        if not narrow:
            return []
        names = {name: self.new_name(f"{name}_wide") for name in narrow}
        wide = NodeProto()
        wide.CopyFrom(node)
        rename_tensors(wide, names)
        read = [name for name in names if name in node.input]
        self.added += len(names) + 1
        return [
            *(build_node("Cast", [name], [names[name]], to=TensorProto.FLOAT) for name in read),
            wide,
            *(
                build_node("Cast", [names[name]], [name], to=DTYPE_NUMBERS[narrow[name]])
                for name in names
                if name not in read
            ),
        ]

    def _find_extents(self, name: str) -> list[int] | None:
        """Return the extents of a tensor, None where not all are known."""
        kind = self.index.types.get(name)
        if kind is None or kind.shape is None or not all(isinstance(each, int) for each in kind.shape):
            return None
        return [int(each) for each in kind.shape if isinstance(each, int)]

    def _cut_first(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a Slice and a Pad for a Pad by constants of which some are below 0."""
        extents = self._find_extents(node.input[0])
        mode = get_stated_attributes(node).get("mode", b"constant")
        if (
            self.index.get_opset(node) < _PADS_BY_INPUT
            or extents is None
            or mode not in (b"constant", "constant")
        ):
            return
        given = self.find_value(node.input[1])
        named = (*node.input, "", "")[3]
        axes = self.find_value(named) if named else np.arange(len(extents))
        if given is None or axes is None or not np.any(given < 0):
            return
        first, last = np.split(np.maximum(-given, 0), 2)
        ends = np.array([extents[axis] for axis in axes]) - last
        if np.any(first > ends):
            return
        rest = self.new_name(f"{node.output[0]}_rest")
        limits = [self.store(each, f"{rest}_limits") for each in (first, ends, axes)]
        yield build_node("Slice", [node.input[0], *limits], [rest])
        padded = NodeProto()
        padded.CopyFrom(node)
        padded.input[:2] = [rest, self.store(np.maximum(given, 0), f"{rest}_pads")]
        yield padded

    def _gather_backwards(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a Gather for each axis of a Slice by constants of which a step is below 0."""
        extents = self._find_extents(node.input[0])
        values = [self.find_value(name) if name else None for name in (*node.input[1:], "", "")[:4]]
        starts, ends, axes, steps = values
        if extents is None or starts is None or ends is None or steps is None or np.all(steps > 0):
            return
        if axes is None and (*node.input, "")[3]:
            return
        places = [
            (int(axis), range(extents[axis])[slice(*map(int, limits))])
            for axis, *limits in zip(
                range(len(starts)) if axes is None else axes, starts, ends, steps, strict=True
            )
        ]
        if not all(place for _, place in places):
            return
        name = node.input[0]
        for at, (axis, place) in enumerate(places):
            is_last = at == len(places) - 1
            made = node.output[0] if is_last else self.new_name(f"{node.output[0]}_{axis}")
            where = self.store(list(place), f"{made}_places")
            yield build_node("Gather", [name, where], [made], axis=axis)
            name = made

    def _add_channel(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield an STFT of a signal of rank 3, whose last extent is 1, for one of rank 2."""
        extents = self._find_extents(node.input[0])
        if extents is None or len(extents) != _RANK_OF_SIGNALS:
            return
        made = self.new_name(f"{node.input[0]}_channel")
        shape = self.store([*extents, 1], f"{made}_shape")
        yield build_node("Reshape", [node.input[0], shape], [made])
        changed = NodeProto()
        changed.CopyFrom(node)
        changed.input[0] = made
        yield changed

    def _permute_blocks(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a Reshape, a Transpose and a Reshape for a SpaceToDepth of the mode CRD."""
        stated = get_stated_attributes(node)
        extents = self._find_extents(node.input[0])
        if extents is None or stated.get("mode", b"DCR") not in (b"CRD", "CRD"):
            return
        block, (batch, channels, height, width) = int(stated["blocksize"]), extents
        rows, cols = height // block, width // block
        names = [self.new_name(f"{node.output[0]}_{each}") for each in ("blocks", "channels")]
        shapes = [
            self.store(each, f"{names[0]}_shape")
            for each in (
                [batch, channels, rows, block, cols, block],
                [batch, channels * block * block, rows, cols],
            )
        ]
        yield build_node("Reshape", [node.input[0], shapes[0]], [names[0]])
        yield build_node("Transpose", [names[0]], [names[1]], perm=[0, 1, 3, 5, 2, 4])
        yield build_node("Reshape", [names[1], shapes[1]], [node.output[0]])

    def _gather_chosen(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a Gather for a Compress whose condition is known."""
        chosen = self.find_value(node.input[1])
        if chosen is None:
            return
        stated, name = get_stated_attributes(node), node.input[0]
        if "axis" not in stated:
            name = self.new_name(f"{name}_flat")
            yield build_node("Reshape", [node.input[0], self.store([-1], f"{name}_shape")], [name])
        where = self.store(np.flatnonzero(chosen), f"{node.output[0]}_places")
        yield build_node("Gather", [name, where], [node.output[0]], axis=int(stated.get("axis", 0)))

    def _find_element(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield the constant that an OptionalHasElement makes: a tensor is there or is left out."""
        name = (*node.input, "")[0]
        if not name or name in self.index.types:
            yield build_node(
                "Identity", [self.store_truth(f"{node.output[0]}_known", bool(name))], node.output
            )

    def _run_forwards(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield a recurrent node from the first step on for each direction of a GRU or an RNN.

        What is read from the end is turned round before, and what it makes behind, each sequence within
        its length.
        """
        stated = get_stated_attributes(node)
        turned = _DIRECTIONS.get(_read_text(stated, "direction"), ())
        extents = self._find_extents(node.input[0])
        x, *weights, lengths, initial = (*node.input, "", "", "")[:6]
        if not turned or extents is None or (lengths and self.index.get_opset(node) < _REVERSE_SEQUENCE):
            return
        made: list[list[str]] = [[] for _ in node.output]
        for way, is_turned in enumerate(turned):
            given = [x]
            if is_turned:
                given = [self.new_name(f"{x}_turned")]
                yield from self._turn_round(x, given[0], lengths, extents)
            place = self.store([way], f"{x}_way")
            for name, axis in (*((each, 0) for each in weights), (lengths, None), (initial, 0)):
                given.append(self.new_name(f"{name}_{way}") if name and axis is not None else name)
                if given[-1] != name:
                    yield build_node("Gather", [name, place], [given[-1]], axis=axis)
            own = [self.new_name(f"{name}_{way}") if name else "" for name in node.output]
            one = build_node(node.op_type, given, own)
            one.attribute.extend(_take_direction(node, way, len(turned)))
            yield one
            if is_turned and own[0]:
                all_steps, own[0] = own[0], self.new_name(f"{own[0]}_turned")
                yield from self._turn_round(all_steps, own[0], lengths, extents, has_ways=True)
            for names, name in zip(made, own, strict=True):
                names.append(name)
        for name, names, axis in zip(node.output, made, (1, 0), strict=False):
            if name:
                yield build_node("Concat", names, [name], axis=axis)

    def _turn_round(
        self, given: str, made: str, lengths: str, extents: Sequence[int], has_ways: bool = False
    ) -> Iterator[NodeProto]:
        """Yield nodes that turn round each sequence of x, or of a result, which has an axis of ways."""
        if not lengths:
            backwards = self.store(list(range(extents[0]))[::-1], f"{given}_backwards")
            yield build_node("Gather", [given, backwards], [made], axis=0)
            return
        counts = self.new_name(f"{lengths}_whole")
        yield build_node("Cast", [lengths], [counts], to=TensorProto.INT64)
        turn = partial(build_node, "ReverseSequence", time_axis=0, batch_axis=1)
        if not has_ways:
            yield turn([given, counts], [made])
            return
        # ReverseSequence takes its axes in front: the one of ways, of one extent, goes meanwhile.
        first, second = extents[:2]
        plain, turned = (self.new_name(f"{given}_{each}") for each in ("plain", "plain_turned"))
        flat = self.store([first, second, -1], f"{given}_flat")
        whole = [first, 1, second, -1]
        yield build_node("Reshape", [given, flat], [plain])
        yield turn([plain, counts], [turned])
        yield build_node("Reshape", [turned, self.store(whole, f"{given}_ways")], [made])

    def find_value(self, name: str) -> Any:
        """Return the value of a tensor that is known before a run, None where it is not."""
        return find_constant_value(self.index, name, self.model.folder)

    def new_name(self, name: str) -> str:
        """Return a name that no tensor has yet."""
        return make_unique_name(name, self.taken)

    def store(self, value: Any, name: str) -> str:
        """Store integers, and return the name of their tensor."""
        made = self.new_name(name)
        self.stored.append(numpy_helper.from_array(np.asarray(value, np.int64), made))
        return made

    def store_truth(self, name: str, value: bool = True) -> str:
        """Store a truth, and return the name of its tensor."""
        made = self.new_name(name)
        self.stored.append(numpy_helper.from_array(np.asarray(value), made))
        return made


def _read_text(stated: Mapping[str, Any], name: str) -> str:
    found = stated.get(name, "")
    return found.decode() if isinstance(found, bytes) else str(found)


def _take_direction(node: NodeProto, way: int, count: int) -> Iterator[AttributeProto]:
    """Yield the attributes of one direction of a recurrent node, as those of a node of its own."""
    for attribute in node.attribute:
        if attribute.name == "direction":
            continue
        own = AttributeProto()
        own.CopyFrom(attribute)
        for values in (own.strings, own.floats):  # activations, and their parameters, by direction
            share = len(values) // count
            del values[(way + 1) * share :], values[: way * share]
        yield own


def _is_attention(node: NodeProto) -> bool:
    return is_onnx(node) and node.op_type in _ATTENTION


def _needs_definition(node: NodeProto) -> bool:
    """Return whether attention states a window, or is over padded keys in causal order."""
    stated = get_stated_attributes(node)
    has_window = any(f"{side}_window_size" in stated for side in ("left", "right"))
    is_padded = len(node.input) > _PADDED_KEYS and bool(node.input[_PADDED_KEYS])
    return has_window or (is_padded and bool(stated.get("is_causal", 0)))
