"""Rewriting of a graph into the chosen forms."""

from onnx import NodeProto, TensorProto, helper

from byoc.boundary.transposes.constants import Constants, Room
from byoc.boundary.transposes.facts import lasting
from byoc.boundary.transposes.forms import Forms
from byoc.boundary.transposes.frames import Frames
from byoc.boundary.transposes.permutation import (
    axis_after,
    identity,
    inverse,
    set_attribute,
    then,
    transposed_type,
)
from byoc.boundary.transposes.ports import Ports
from byoc.graph.attributes import written
from byoc.graph.marks import LAYOUT, LAYOUT_NAME, mark, note
from byoc.graph.names import fresh


def rewrite(room: Room, frames: Frames, forms: Forms, layouts: tuple[str, str]) -> set[str]:
    """Rewrite a graph into the chosen forms; return the constants that are now read transposed.

    `layouts` names the two forms. Graph outputs and tensors that bodies read keep their names.
    """
    return _Rewriter(room, frames, forms, layouts).run()


class _Rewriter:
    def __init__(self, room: Room, frames: Frames, forms: Forms, layouts: tuple[str, str]) -> None:
        self.room = room
        self.frames = frames
        self.forms = forms
        self.layouts = layouts
        self.nodes = room.scope.nodes
        self.turns = (inverse(frames.order), identity(len(frames.order)), frames.order)
        makers = {name for node in self.nodes for name in node.output}
        values = dict.fromkeys(frames.value.values())
        self.foreign = [value for value in values if value not in makers]
        self.pinned = [name for name in lasting(room.scope) if name in frames.frame]
        # The first name of a value before its others.
        names = [*values, *(name for name, value in frames.value.items() if name != value)]
        self.written: dict[tuple[str, int], list[str]] = {}
        for name in names:
            self.written.setdefault((frames.value[name], frames.frame[name]), []).append(name)
        self.old: dict[tuple[str, int], NodeProto] = {}
        for i in sorted(frames.links):
            target = self.nodes[i].output[0]
            self.old.setdefault((frames.value[target], frames.frame[target]), self.nodes[i])
        self.chosen: dict[tuple[str, int], str] = {}
        self.there: set[tuple[str, int]] = set()
        self.result: list[NodeProto] = []
        self.taken = {node.name for node in self.nodes}
        self.constants = Constants(room, layouts)

    def run(self) -> set[str]:
        for value in self.foreign:
            self._arrived(value)
        for number, node in enumerate(self.nodes):
            if number in self.frames.links:
                continue
            makes = [name for name in node.output if self.frames.value.get(name) == name]
            ports = self.frames.movable.get(number)
            after: list[NodeProto] = []
            if number in self.frames.turning:
                self._turning(number, node)
            elif number in self.frames.shapes:
                after = self._shape(node)
            elif ports is not None:
                self._movable(number, node, ports)
            else:
                self._fixed(node)
            self.result += [node, *after]
            for value in makes:
                self._arrived(value)
        for name in self.pinned:
            self._need(name, self.frames.frame[name])
        self.room.scope.nodes = self.result
        return self.constants.replaced

    def _fixed(self, node: NodeProto) -> None:
        """Rename the inputs and outputs of a node that stays in its form."""
        frame = self.frames.frame
        names = {
            name: self._need(name, frame[name]) for name in self.room.scope.reads(node) if name in frame
        }
        names |= {
            name: self._name(self.frames.value[name], frame[name])
            for name in node.output
            if name in frame
        }
        changed = {old: new for old, new in names.items() if old != new}
        if changed:
            self.result += self.room.calls.rename(node, changed)

    def _movable(self, number: int, node: NodeProto, ports: Ports) -> None:
        """Run a node in the form that was chosen for it."""
        form = self.forms.node[number]
        frame = self.frames.frame[node.input[ports.data[0]]]
        turn = self.turns[1 + form - frame]
        inputs = list(node.input)
        for i, name in enumerate(node.input):
            if name in self.frames.frame and i not in ports.constants:
                inputs[i] = self._need(name, form if i in ports.data else self.frames.frame[name])
        if form != frame:
            for i in ports.constants:
                inputs[i] = self.constants.transposed(node.input[i], turn, form)
            self._change(node, ports, form, inputs)
            note(node, LAYOUT_NAME, self.layouts[form])
        del node.input[:]
        node.input.extend(inputs)
        for i in ports.made:
            node.output[i] = self._name(self.frames.value[node.output[i]], form)

    def _change(self, node: NodeProto, ports: Ports, form: int, inputs: list[str]) -> None:
        """Set the attributes and constant inputs that a node needs on transposed tensors."""
        change = ports.change(self.turns[2 * form])
        for name, value in change.attributes.items():
            set_attribute(node, name, value)
        for position, numbers in change.numbers.items():
            inputs.extend([""] * (position + 1 - len(inputs)))
            inputs[position] = self.constants.numbers(node, position, numbers, form)

    def _turning(self, number: int, node: NodeProto) -> None:
        """Let another Transpose read the form at hand and make the chosen one."""
        source, target = node.input[0], node.output[0]
        turn = self.frames.turning[number]
        before = after = 0
        if source in self.frames.frame:
            form = self._at_hand(source)
            node.input[0], before = self._need(source, form), form - self.frames.frame[source]
        if target in self.frames.frame:
            form = self.forms.node[number]
            node.output[0] = self._name(self.frames.value[target], form)
            after = form - self.frames.frame[target]
        if before or after:
            whole = then(then(self.turns[1 - before], turn), self.turns[1 + after])
            set_attribute(node, "perm", whole)
            note(node, LAYOUT_NAME, self.layouts[1])

    def _shape(self, node: NodeProto) -> list[NodeProto]:
        """Let a Shape read the form at hand; return the node that restores the order of its extents."""
        source, target = node.input[0], node.output[0]
        form = self._at_hand(source)
        turn = self.turns[1 + form - self.frames.frame[source]]
        node.input[0] = self._need(source, form)
        if form == self.frames.frame[source]:
            return []
        inputs = written(node)
        axes = range(len(turn))[inputs.get("start", 0) : inputs.get("end", len(turn))]
        del node.attribute[:]
        kind = helper.make_tensor_type_proto(TensorProto.INT64, [len(turn)])
        node.output[0] = self.room.edit.add(f"{target}_{self.layouts[form]}", kind)
        where = self.constants.numbers(node, 1, [axis_after(turn, axis) for axis in axes], form)
        note(node, LAYOUT_NAME, self.layouts[form])
        gather = self._ours("Gather", node.output[0], target)
        gather.input.append(where)
        return [gather]

    def _at_hand(self, name: str) -> int:
        """Return a form in which a value exists already, preferably that of the model."""
        value, frame = self.frames.value[name], self.frames.frame[name]
        return frame if (value, frame) in self.there else self.forms.made[value]

    def _arrived(self, value: str) -> None:
        """Record that a value exists in the form in which it is made."""
        form = self.forms.made[value]
        self._there(value, form, self._name(value, form))

    def _there(self, value: str, form: int, name: str) -> None:
        self.there.add((value, form))
        for other in self.written.get((value, form), ()):
            if other in self.pinned and other != name:
                self.result.append(self._ours("Identity", name, other))

    def _need(self, name: str, form: int) -> str:
        """Return the name of a value in a form, transposing it if it does not exist yet."""
        value = self.frames.value[name]
        target = self._name(value, form)
        if (value, form) not in self.there:
            source = self._name(value, self.forms.made[value])
            old = self.old.get((value, form))
            if old is None:
                node = self._ours("Transpose", source, target)
                set_attribute(node, "perm", self.turns[2 * form])
            else:
                node = old
                node.input[0], node.output[0] = source, target
            self.result.append(node)
            self._there(value, form, target)
        return target

    def _name(self, value: str, form: int) -> str:
        """Return the name of a value in a form: the original name if possible."""
        if (value, form) not in self.chosen:
            names = self.written.get((value, form), [])
            fixed = [name for name in names if name in self.pinned]
            if value in self.foreign and form == self.forms.made[value]:
                choice = value
            elif names:
                choice = (fixed or names)[0]
            else:
                turn = self.turns[1 + form - self.frames.frame[value]]
                kind = transposed_type(self.room.facts.proto(value), turn)
                choice = self.room.edit.add(f"{value}_{self.layouts[form]}", kind, value)
            self.chosen[value, form] = choice
        return self.chosen[value, form]

    def _ours(self, op: str, source: str, target: str) -> NodeProto:
        """Return a new node with a unique name."""
        node = helper.make_node(op, [source], [target], name=fresh(target, self.taken))
        note(mark(node, LAYOUT), LAYOUT_NAME, self.layouts[1])
        return node
