"""Tensors in two layouts: forms with the fewest bytes transposed, and the graph rewritten into them.

A Transpose into the layout or back makes no new tensor but another form of the same one. The names at
both its ends therefore stand for one `value`; the `form` of a name is its form in the model.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass
from byoc.boundary.convert._movable_operators import (
    AxisOrder,
    GraphTensors,
    MovablePorts,
    PortShares,
    compose_orders,
    find_ports,
    identity_order,
    invert_order,
    permute_axis,
    read_order,
    transpose_type,
)
from byoc.boundary.convert._tensor_transfers import RegionCall
from byoc.model import (
    LAYOUT,
    LAYOUT_KEY,
    build_node,
    get_input,
    get_purpose,
    get_stated_attributes,
    is_onnx,
    make_unique_name,
    mark_inserted,
    set_attribute,
    set_metadata,
)
from byoc.numerics.solvers import SINK, SOURCE, find_minimum_cut


@dataclass(frozen=True, eq=False)
class LayoutGraph:
    """The part of a graph that is connected with a layout; nodes are identified by their numbers."""

    order: AxisOrder
    form: Mapping[str, int]
    """The form in which the model has a tensor, for those that matter."""
    value: Mapping[str, str]
    """The first of the names that stand for the same value, by name."""
    links: frozenset[int]
    """Transposes that are nothing but another form of a value."""
    movable: Mapping[int, MovablePorts]
    """Nodes that can run in either form."""
    other_transposes: Mapping[int, AxisOrder]
    """Other Transposes at tensors that matter, which can read either form and make either form."""
    shape_nodes: frozenset[int]
    """Shape operators, which can read either form."""
    region_inputs: Mapping[int, Mapping[str, float]]
    """Inputs of regions in form 1 that these may read in form 0, by node and name: the price of their
    Transpose there as a share of that on the host."""
    region_outputs: Mapping[int, Mapping[str, float]]
    """The same of outputs."""


def find_layout_graph(tensors: GraphTensors, order: AxisOrder) -> LayoutGraph | None:
    """Find the part of a graph that is connected with a layout, None if byoc converts nothing there.

    It includes everything connected with a Transpose of byoc's by movable operators, the user's own
    Transposes included; one that fits no form is in `other_transposes`.
    """
    finder = _LayoutGraphFinder(tensors, order)
    if not finder.own_links:
        return None
    finder.spread()
    return finder.build()


class _LayoutGraphFinder:
    def __init__(self, tensors: GraphTensors, order: AxisOrder) -> None:
        self.tensors = tensors
        self.nodes: Sequence[NodeProto] = tensors.scope.nodes
        self.order = order
        self.region_outputs = {name for call in tensors.edit.calls.values() for name in call.node.output}
        self.form: dict[str, int] = {}
        self.used: set[int] = set()
        self.opaque: set[int] = set()
        self.ports: dict[int, MovablePorts | None] = {}
        self.turns = {
            i: turn
            for i, node in enumerate(self.nodes)
            if node.op_type == "Transpose"
            and (turn := read_order(node, tensors.find_rank(node.input[0]))) is not None
            and len(turn) == len(order)
        }
        # Transposes into the layout (1) or back (-1).
        back = invert_order(order)
        self.steps = {
            i: 1 if turn == order else -1 for i, turn in self.turns.items() if turn in (order, back)
        }
        self.own_links = [i for i in self.steps if get_purpose(self.nodes[i]) == LAYOUT]
        self.own_inverse = order == back
        self.around: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in dict.fromkeys((*node.input, *node.output)):
                if name:
                    self.around.setdefault(name, []).append(i)

    def spread(self) -> None:
        """Assign forms to everything connected with a Transpose of byoc's, and to nothing else."""
        pending = deque(self.own_links)
        while pending:
            number = pending.popleft()
            if number not in self.used and number not in self.opaque:
                for name in self._use_link(number):
                    pending.extend(i for i in self.around[name] if i in self.steps and i != number)

    def _use_link(self, number: int) -> list[str]:
        """Use a link if its ends fit the forms, and return the names that received a form."""
        node, step = self.nodes[number], self.steps[number]
        source, target = node.input[0], node.output[0]
        before, after = self.form.get(source), self.form.get(target)
        if before is None and after is None:
            before = int(step < 0 or (self.own_inverse and source in self.region_outputs))
        if before is None and after is not None:
            before = 1 - after if self.own_inverse else after - step
        assert before is not None
        made = 1 - before if self.own_inverse else before + step
        if before not in (0, 1) or made not in (0, 1) or after not in (None, made):
            self.opaque.add(number)
            return []
        self.used.add(number)
        return [*self._spread_form(source, before), *self._spread_form(target, made)]

    def _spread_form(self, start: str, form: int) -> list[str]:
        """Assign a form to a tensor and to all tensors that movable operators connect with it."""
        if start in self.form:
            return []
        self.form[start] = form
        reached = [start]
        for name in reached:  # grows while it is walked
            for i in self.around.get(name, ()):
                for other in self._connected_names(i, name):
                    if other not in self.form:
                        self.form[other] = form
                        reached.append(other)
        return reached

    def _connected_names(self, number: int, name: str) -> list[str]:
        """Return the tensors that must share a tensor's form, since a node moves with all of them."""
        node = self.nodes[number]
        if number not in self.ports:
            is_turn = number in self.turns
            self.ports[number] = None if is_turn else find_ports(node, self.tensors, len(self.order))
        found = self.ports[number]
        if found is None:
            return []
        names = [*(node.input[i] for i in found.inputs), *(node.output[i] for i in found.outputs)]
        return names if name in names else []

    def build(self) -> LayoutGraph:
        value: dict[str, str] = {}
        for i in sorted(self.used):
            source, target = self.nodes[i].input[0], self.nodes[i].output[0]
            value[target] = value.setdefault(source, source)
        for name in self.form:
            value.setdefault(name, name)
        # A node that was only looked at, since a scalar or a list of axes of it matters, stays.
        movable = {
            i: found
            for i, found in sorted(self.ports.items())
            if found is not None and self.nodes[i].input[found.inputs[0]] in self.form
        }
        others = {
            i: turn
            for i, turn in self.turns.items()
            if i not in self.used
            and (self.nodes[i].input[0] in self.form or self.nodes[i].output[0] in self.form)
        }
        shapes = frozenset(
            i
            for i, node in enumerate(self.nodes)
            if node.op_type == "Shape" and is_onnx(node) and node.input[0] in self.form
        )
        inputs, outputs = self._find_ports()
        return LayoutGraph(
            self.order,
            self.form,
            value,
            frozenset(self.used),
            movable,
            others,
            shapes,
            inputs,
            outputs,
        )

    def _find_ports(self) -> tuple[dict[int, PortShares], dict[int, PortShares]]:
        """Return the inputs and the outputs in form 1 that regions may transpose themselves."""
        sides: tuple[dict[int, PortShares], dict[int, PortShares]] = {}, {}
        for i, node in enumerate(self.nodes):
            for side, shares in zip(sides, self.tensors.find_port_shares(node, self.order), strict=True):
                found = {name: share for name, share in shares.items() if self.form.get(name) == 1}
                if found:
                    side[i] = found
        return sides


# The form in which each operator runs, such that the fewest bytes are transposed: a minimum cut.


@dataclass(frozen=True, eq=False)
class ChosenForms:
    """The chosen forms of nodes by number, and the form in which each value is made.

    `plain_ports` are the inputs and outputs of regions, by node and name, that cross in form 0.
    """

    node_forms: Mapping[int, int]
    value_forms: Mapping[str, int]
    plain_ports: frozenset[tuple[int, str]]


def choose_forms(tensors: GraphTensors, frames: LayoutGraph) -> ChosenForms:
    """Choose the forms with the fewest bytes transposed, and among those the fewest changed nodes.

    Each node of `frames.movable` runs in one of two forms, in which it reads and makes its tensors;
    regions and all other nodes keep the forms of the model. A value that is made in one form and read in
    the other costs one Transpose of its bytes, however many nodes read it. An input or output that a
    region may transpose itself crosses in form 0 for a share of these bytes, which each region pays.
    This is a minimum cut with the values as arcs (form 0 on the source's side, form 1 on the sink's), so
    no choice of forms transposes fewer bytes.
    """
    return _CutProblem(tensors, frames).solve()


class _CutProblem:
    def __init__(self, tensors: GraphTensors, frames: LayoutGraph) -> None:
        self.frames = frames
        self.nodes = tensors.scope.nodes
        turned = (
            i for i, turn in frames.other_transposes.items() if self.nodes[i].output[0] in frames.form
        )
        self.unit_of = {number: i for i, number in enumerate(sorted([*frames.movable, *turned]), 2)}
        sides = (frames.region_inputs, frames.region_outputs)
        ports = ((i, name, each[name]) for side in sides for i, each in side.items() for name in each)
        first = 2 + len(self.unit_of)
        self.ports = {(i, name): (row, share) for row, (i, name, share) in enumerate(ports, first)}
        values = dict.fromkeys(frames.value.values())
        self.size = {value: float(tensors.estimate_bytes(value)) for value in values}
        self.producer = {value: SINK if frames.form[value] else SOURCE for value in values}
        self.consumers: dict[str, set[int]] = {value: set() for value in values}
        for i, node in enumerate(self.nodes):
            if i not in frames.links:
                self._add_reads(i, tensors.scope.find_reads(node))
                self._add_producer(i)
        for name in tensors.scope.find_lasting_names():
            self._require_as_is(name)

    def _require_as_is(self, name: str) -> None:
        """Record that a tensor is read in the form that it has in the model."""
        if name in self.frames.form:
            reader = SINK if self.frames.form[name] else SOURCE
            self.consumers[self.frames.value[name]].add(reader)

    def _add_reads(self, number: int, names: Sequence[str]) -> None:
        if number in self.frames.other_transposes or number in self.frames.shape_nodes:
            return  # reads whichever form there is
        ports = self.frames.movable.get(number)
        if ports is None:
            for name in names:
                port = self.ports.get((number, name))
                if port is not None:
                    self.consumers[self.frames.value[name]].add(port[0])
                else:
                    self._require_as_is(name)
            return
        for i, name in enumerate(self.nodes[number].input):
            if i in ports.inputs:
                self.consumers[self.frames.value[name]].add(self.unit_of[number])
            elif i not in ports.constants:
                self._require_as_is(name)

    def _add_producer(self, number: int) -> None:
        if number in self.unit_of:
            ports, node = self.frames.movable.get(number), self.nodes[number]
            for i in ports.outputs if ports is not None else (0,):
                self.producer[self.frames.value[node.output[i]]] = self.unit_of[number]
        for name in self.frames.region_outputs.get(number, ()):
            self.producer[self.frames.value[name]] = self.ports[number, name][0]

    def solve(self) -> ChosenForms:
        size = 2 + len(self.unit_of) + len(self.ports)
        # Less than one byte for all together: it only decides between equals.
        extra = 0.25 / size
        arcs: list[tuple[int, int, float]] = [
            (unit, SINK, extra) if self._model_form(number) else (SOURCE, unit, extra)
            for number, unit in self.unit_of.items()
        ]
        for (_, name), (port, share) in self.ports.items():
            arcs.append((port, SINK, share * self.size[self.frames.value[name]]))
        for value, producer in self.producer.items():
            # One node has form 1 as soon as one reader has it, another has form 0 as soon as one has it.
            down, up, size = size, size + 1, size + 2
            arcs += [(producer, down, self.size[value]), (up, producer, self.size[value])]
            for reader in self.consumers[value]:
                arcs += [(down, reader, inf), (reader, up, inf)]
        permuted = find_minimum_cut(size, list(zip(*arcs, strict=True)))[1].tolist()
        return ChosenForms(
            {number: int(permuted[unit]) for number, unit in self.unit_of.items()},
            {value: int(permuted[producer]) for value, producer in self.producer.items()},
            frozenset(port for port, (row, _) in self.ports.items() if not permuted[row]),
        )

    def _model_form(self, number: int) -> int:
        """Return the form that a node has in the model."""
        ports, node = self.frames.movable.get(number), self.nodes[number]
        return self.frames.form[node.input[ports.inputs[0]] if ports is not None else node.output[0]]


# Rewriting of a graph into the chosen forms.


def rewrite_graph(
    tensors: GraphTensors, frames: LayoutGraph, forms: ChosenForms, layouts: tuple[str, str]
) -> set[str]:
    """Rewrite a graph into the chosen forms; return the constants that are now read transposed.

    `layouts` names the two forms. Graph outputs and tensors that bodies read keep their names.
    """
    return _FormRewriter(tensors, frames, forms, layouts).run()


class _FormRewriter:
    def __init__(
        self, tensors: GraphTensors, frames: LayoutGraph, forms: ChosenForms, layouts: tuple[str, str]
    ) -> None:
        self.tensors = tensors
        self.frames = frames
        self.forms = forms
        self.layouts = layouts
        self.nodes = tensors.scope.nodes
        self.turns = (invert_order(frames.order), identity_order(len(frames.order)), frames.order)
        makers = {name for node in self.nodes for name in node.output}
        values = dict.fromkeys(frames.value.values())
        self.foreign = [value for value in values if value not in makers]
        self.pinned = [name for name in tensors.scope.find_lasting_names() if name in frames.form]
        # The first name of a value before its others.
        names = [*values, *(name for name, value in frames.value.items() if name != value)]
        self.written: dict[tuple[str, int], list[str]] = {}
        for name in names:
            self.written.setdefault((frames.value[name], frames.form[name]), []).append(name)
        self.old: dict[tuple[str, int], NodeProto] = {}
        for i in sorted(frames.links):
            target = self.nodes[i].output[0]
            self.old.setdefault((frames.value[target], frames.form[target]), self.nodes[i])
        self.chosen: dict[tuple[str, int], str] = {}
        self.there: set[tuple[str, int]] = set()
        self.result: list[NodeProto] = []
        self.taken = {node.name for node in self.nodes}
        self.constants = _LayoutConstants(tensors, layouts)

    def run(self) -> set[str]:
        for value in self.foreign:
            self._record_made(value)
        for number, node in enumerate(self.nodes):
            if number in self.frames.links:
                continue
            makes = [name for name in node.output if self.frames.value.get(name) == name]
            ports = self.frames.movable.get(number)
            after: list[NodeProto] = []
            if number in self.frames.other_transposes:
                self._rewrite_transpose(number, node)
            elif number in self.frames.shape_nodes:
                after = self._rewrite_shape(node)
            elif ports is not None:
                self._move_node(number, node, ports)
            else:
                self._keep_node(number, node)
            self.result += [node, *after]
            for value in makes:
                self._record_made(value)
        for name in self.pinned:
            self._require_form(name, self.frames.form[name])
        self.tensors.scope.nodes = self.result
        return self.constants.replaced

    def _keep_node(self, number: int, node: NodeProto) -> None:
        """Rename the inputs and outputs of a node that stays in its form, but for a region's own."""
        plain = {name for at, name in self.forms.plain_ports if at == number}
        frame = {name: self.frames.form[name] for name in self.frames.form.keys() - plain}
        names = {
            name: self._require_form(name, frame[name])
            for name in self.tensors.scope.find_reads(node)
            if name in frame
        }
        names |= {
            name: self._name_in_form(self.frames.value[name], frame[name])
            for name in node.output
            if name in frame
        }
        changed = {old: new for old, new in names.items() if old != new}
        if changed:
            self.result += self.tensors.edit.rename_tensors(node, changed)
        for name in plain:
            self._open_port(self.tensors.edit.calls[node.op_type], name)

    def _open_port(self, call: RegionCall, name: str) -> None:
        """Let a region read or return a tensor in form 0, and transpose it itself."""
        value = self.frames.value[name]
        to_layout, back = self.frames.order, self.turns[0]
        kind = transpose_type(self.tensors.find_type_proto(name), back)
        for position, read in enumerate(call.node.input):
            if read == name:
                outside = self._require_form(name, 0)
                inside = self.tensors.edit.add_tensor(f"{outside}_{self.layouts[0]}", kind, name)
                step = self._make_node("Transpose", inside, call.function.input[position])
                set_attribute(step, helper.make_attribute("perm", to_layout))
                call.replace_input(position, outside, step, inside=inside)
        for position, made in enumerate(call.node.output):
            if made == name:
                outside = self._name_in_form(value, 0)
                inside = self.tensors.edit.add_tensor(f"{outside}_{self.layouts[0]}", kind, name)
                step = self._make_node("Transpose", call.function.output[position], inside)
                set_attribute(step, helper.make_attribute("perm", back))
                call.replace_output(position, outside, step, inside=inside)

    def _move_node(self, number: int, node: NodeProto, ports: MovablePorts) -> None:
        """Run a node in the form that was chosen for it."""
        form = self.forms.node_forms[number]
        frame = self.frames.form[node.input[ports.inputs[0]]]
        turn = self.turns[1 + form - frame]
        inputs = list(node.input)
        for i, name in enumerate(node.input):
            if name in self.frames.form and i not in ports.constants:
                inputs[i] = self._require_form(
                    name, form if i in ports.inputs else self.frames.form[name]
                )
        if form != frame:
            for i in ports.constants:
                inputs[i] = self.constants.transpose(node.input[i], turn, form)
            self._apply_change(node, ports, form, inputs)
            set_metadata(node, LAYOUT_KEY, self.layouts[form])
        node.input[:] = inputs
        for i in ports.outputs:
            node.output[i] = self._name_in_form(self.frames.value[node.output[i]], form)

    def _apply_change(self, node: NodeProto, ports: MovablePorts, form: int, inputs: list[str]) -> None:
        """Set the attributes and constant inputs that a node needs on transposed tensors."""
        for key, permute in ports.changes.items():
            value = permute(self.turns[2 * form])
            if isinstance(key, str):
                set_attribute(node, helper.make_attribute(key, value))
            else:
                inputs.extend([""] * (key + 1 - len(inputs)))
                inputs[key] = self.constants.add_numbers(node, key, value, form)

    def _rewrite_transpose(self, number: int, node: NodeProto) -> None:
        """Let another Transpose read the form at hand and make the chosen one."""
        source, target = node.input[0], node.output[0]
        turn = self.frames.other_transposes[number]
        before = after = 0
        if source in self.frames.form:
            form = self._available_form(source)
            node.input[0], before = self._require_form(source, form), form - self.frames.form[source]
        if target in self.frames.form:
            form = self.forms.node_forms[number]
            node.output[0] = self._name_in_form(self.frames.value[target], form)
            after = form - self.frames.form[target]
        if before or after:
            whole = compose_orders(compose_orders(self.turns[1 - before], turn), self.turns[1 + after])
            set_attribute(node, helper.make_attribute("perm", whole))
            set_metadata(node, LAYOUT_KEY, self.layouts[1])

    def _rewrite_shape(self, node: NodeProto) -> list[NodeProto]:
        """Let a Shape read the form at hand; return the node that restores the order of its extents."""
        source, target = node.input[0], node.output[0]
        form = self._available_form(source)
        turn = self.turns[1 + form - self.frames.form[source]]
        node.input[0] = self._require_form(source, form)
        if form == self.frames.form[source]:
            return []
        inputs = get_stated_attributes(node)
        axes = range(len(turn))[inputs.get("start", 0) : inputs.get("end", len(turn))]
        del node.attribute[:]
        kind = helper.make_tensor_type_proto(TensorProto.INT64, [len(turn)])
        node.output[0] = self.tensors.edit.add_tensor(f"{target}_{self.layouts[form]}", kind)
        where = self.constants.add_numbers(node, 1, [permute_axis(turn, axis) for axis in axes], form)
        set_metadata(node, LAYOUT_KEY, self.layouts[form])
        gather = self._make_node("Gather", node.output[0], target)
        gather.input.append(where)
        return [gather]

    def _available_form(self, name: str) -> int:
        """Return a form in which a value exists already, preferably that of the model."""
        value, frame = self.frames.value[name], self.frames.form[name]
        return frame if (value, frame) in self.there else self.forms.value_forms[value]

    def _record_made(self, value: str) -> None:
        """Record that a value exists in the form in which it is made."""
        form = self.forms.value_forms[value]
        self._record_available(value, form, self._name_in_form(value, form))

    def _record_available(self, value: str, form: int, name: str) -> None:
        self.there.add((value, form))
        for other in self.written.get((value, form), ()):
            if other in self.pinned and other != name:
                self.result.append(self._make_node("Identity", name, other))

    def _require_form(self, name: str, form: int) -> str:
        """Return the name of a value in a form, transposing it if it does not exist yet."""
        value = self.frames.value[name]
        target = self._name_in_form(value, form)
        if (value, form) not in self.there:
            source = self._name_in_form(value, self.forms.value_forms[value])
            old = self.old.get((value, form))
            if old is None:
                node = self._make_node("Transpose", source, target)
                set_attribute(node, helper.make_attribute("perm", self.turns[2 * form]))
            else:
                node = old
                node.input[0], node.output[0] = source, target
            self.result.append(node)
            self._record_available(value, form, target)
        return target

    def _name_in_form(self, value: str, form: int) -> str:
        """Return the name of a value in a form: the original name if possible."""
        if (value, form) not in self.chosen:
            names = self.written.get((value, form), [])
            fixed = [name for name in names if name in self.pinned]
            if value in self.foreign and form == self.forms.value_forms[value]:
                choice = value
            elif names:
                choice = (fixed or names)[0]
            else:
                turn = self.turns[1 + form - self.frames.form[value]]
                kind = transpose_type(self.tensors.find_type_proto(value), turn)
                choice = self.tensors.edit.add_tensor(f"{value}_{self.layouts[form]}", kind, value)
            self.chosen[value, form] = choice
        return self.chosen[value, form]

    def _make_node(self, op: str, source: str, target: str) -> NodeProto:
        """Return a new node with a unique name."""
        node = build_node(op, [source], [target], name=make_unique_name(target, self.taken))
        set_metadata(mark_inserted(node, LAYOUT), LAYOUT_KEY, self.layouts[1])
        return node


class _LayoutConstants:
    """New initializers of a graph, each made once; `replaced` names the constants that they replace."""

    def __init__(self, tensors: GraphTensors, layouts: tuple[str, str]) -> None:
        self.replaced: set[str] = set()
        self._tensors = tensors
        self._layouts = layouts
        self._transposed: dict[tuple[str, AxisOrder], str] = {}
        self._numbers: dict[tuple[str, tuple[int, ...]], str] = {}

    def transpose(self, name: str, order: AxisOrder, form: int) -> str:
        """Return the name of a transposed constant; one of lower rank is broadcast first."""
        if (name, order) not in self._transposed:
            tensor = self._tensors.find_tensor(name)
            assert tensor is not None
            value = numpy_helper.to_array(tensor)
            value = value.reshape((1,) * (len(order) - value.ndim) + value.shape)
            self._transposed[name, order] = self._add(name, form, value.transpose(order))
        self.replaced.add(name)
        return self._transposed[name, order]

    def add_numbers(self, node: NodeProto, position: int, numbers: list[int], form: int) -> str:
        """Return the name of a list of axes or pads for an input of a node."""
        old = get_input(node, position)
        dtype = "int64"
        if node.op_type == "Slice":  # whose lists are all of one type
            kind = self._tensors.find_type(node.input[1])
            dtype = kind.dtype if kind is not None else dtype
        key = (dtype, tuple(numbers))
        if key not in self._numbers:
            base = old or f"{node.output[0]}_axes"
            self._numbers[key] = self._add(base, form, np.array(numbers, dtype))
        if old:
            self.replaced.add(old)
        return self._numbers[key]

    def _add(self, name: str, form: int, value: NDArray[Any]) -> str:
        new = self._tensors.edit.new_name(f"{name}_{self._layouts[form]}", name)
        self._tensors.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), new))
        return new
