"""Rewriting of a graph into the chosen forms."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc.boundary.convert._layout_graph import ChosenForms, LayoutGraph
from byoc.boundary.convert._movable_operators import (
    AxisOrder,
    GraphTensors,
    MovablePorts,
    compose_orders,
    identity_order,
    invert_order,
    permute_axis,
    transpose_type,
)
from byoc.boundary.convert._tensor_transfers import RegionCall
from byoc.model import (
    LAYOUT,
    LAYOUT_KEY,
    build_node,
    get_input,
    get_stated_attributes,
    make_unique_name,
    mark_inserted,
    set_attribute,
    set_metadata,
)


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
