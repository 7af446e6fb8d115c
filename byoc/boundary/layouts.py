"""Layout conversions at boundaries: regions read and return images in their target's layout.

An image that a region reads is brought into the target's layout before the call, and back inside; for an
image that it returns it is the reverse. A tensor has one form per layout, which all regions of that
layout share: between two of them nothing is converted, and a tensor that no node of the host reads never
returns to ONNX's own layout.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from onnx import GraphProto, NodeProto

from byoc.boundary.border import Border
from byoc.boundary.edit import Call, Editing, Scope
from byoc.graph.layout import Layout, Step
from byoc.graph.layout_nodes import can_lie, layout_nodes
from byoc.graph.marks import LAYOUT, LAYOUT_NAME, mark, note
from byoc.graph.types import TensorType, read_type, write_type

# Bodies of these run many times, and a tensor from around them is converted once.
_REPEATED = ("Loop", "Scan")


@dataclass(frozen=True)
class _Form:
    """A tensor in a layout: the graph and name of the tensor, and its plain type."""

    home: Scope
    tensor: str
    kind: TensorType
    layout: Layout


@dataclass(frozen=True)
class _End:
    """An input or output of a region that is to be in a layout."""

    call: Call
    position: int
    form: _Form


@dataclass
class _Made:
    """The name of a form, the graph in which it is made, and the nodes there that need it."""

    name: str
    place: Scope
    users: list[NodeProto] = field(default_factory=list)


def arrange(edit: Editing, borders: Sequence[Border]) -> None:
    """Insert conversions of images into the targets' layouts and back; the model is edited in place.

    Images that must stay plain (`byoc.graph.layout_nodes.can_lie`) do so. A tensor from outside a Loop
    or Scan that regions inside read is converted once, before the loop; one from outside an If is
    converted in the branches that need it, unless something outside needs it too.
    """
    wanting = [b for b in borders if b.wants.activations and not b.wants.activations.is_plain]
    if not wanting:
        return
    ends = _Ends(edit)
    exits = [end for border in wanting for end in ends.of(border, "output")]
    entries = [end for border in wanting for end in ends.of(border, "input")]
    returned = {end.form: _Made(_name(edit, end.form), end.form.home) for end in exits}
    read = _read(edit, entries, returned)
    for end, made in zip(entries, read, strict=True):
        _enter(edit, end, made.name)
        made.users.append(_user(made.place, end.call))
    _convert(edit, entries, read, returned)
    readers: dict[Scope, dict[str, list[NodeProto]]] = {}
    for end in exits:
        scope = end.call.scope
        if scope not in readers:
            readers[scope] = scope.readers()
        _leave(edit, end, returned[end.form].name, readers[scope])


class _Ends:
    """The inputs and outputs of calls that are to be in their target's layout."""

    def __init__(self, edit: Editing) -> None:
        self._edit = edit
        self._own = {scope: scope.own() for scope in edit.scopes}
        # One type for all who read a tensor, though in a body more may be known than around it.
        self._kinds: dict[tuple[Scope, str], TensorType | None] = {}

    def of(self, border: Border, side: Literal["input", "output"]) -> Iterator[_End]:
        """Yield the inputs or outputs of a region whose target has a layout."""
        edit, layout = self._edit, border.wants.activations
        assert layout is not None
        call = edit.calls[border.region]
        for position, name in enumerate(call.node.input if side == "input" else call.node.output):
            if edit.origin(name) not in border.spatial:
                continue
            home = call.scope
            while name not in self._own[home] and home.outer is not None:
                home = home.outer
            if (home, name) not in self._kinds:
                proto = edit.values.get(name) or border.types.get(name)
                self._kinds[home, name] = read_type(proto) if proto is not None else None
            kind = self._kinds[home, name]
            if kind is not None and can_lie(layout, kind, edit.opset):
                yield _End(call, position, _Form(home, name, kind, layout))


def _name(edit: Editing, form: _Form) -> str:
    packed = form.layout.packed(form.kind)
    assert packed is not None
    return edit.add(f"{form.tensor}_{form.layout}", write_type(packed), form.tensor)


def _read(edit: Editing, entries: Sequence[_End], returned: Mapping[_Form, _Made]) -> list[_Made]:
    """Return the form that each entry reads: one that a region returns, or one to be made."""
    wanted: dict[_Form, set[Scope]] = {}
    for end in entries:
        wanted.setdefault(end.form, set()).add(_place(end))
    shared: dict[tuple[_Form, Scope], _Made] = {}
    result = []
    for end in entries:
        form = end.form
        if form in returned:
            result.append(returned[form])
            continue
        around = _outwards(_place(end), form.home)
        place = [scope for scope in around if scope in wanted[form]][-1]
        if (form, place) not in shared:
            shared[form, place] = _Made(_name(edit, form), place)
        result.append(shared[form, place])
    return result


def _outwards(scope: Scope, home: Scope) -> Iterator[Scope]:
    """Yield a graph and the graphs around it up to `home`."""
    yield scope
    while scope is not home and scope.outer is not None:
        scope = scope.outer
        yield scope


def _place(end: _End) -> Scope:
    """Return the graph for an entry's form: outside all loops in which the tensor is constant."""
    place = end.call.scope
    for scope in _outwards(end.call.scope, end.form.home):
        if scope is end.form.home or scope.owner is None or scope.outer is None:
            break
        if scope.owner.op_type in _REPEATED:
            place = scope.outer
    return place


def _user(place: Scope, call: Call) -> NodeProto:
    """Return the node in a graph that is a call, or that holds the call in a body."""
    scope, node = call.scope, call.node
    while scope is not place and scope.outer is not None and scope.owner is not None:
        node, scope = scope.owner, scope.outer
    return node


def _enter(edit: Editing, end: _End, name: str) -> None:
    """Let a region read a form by its name, and revert the conversion inside."""
    function = end.call.function
    inside = edit.fresh(name, end.form.tensor) if name in function.input else name
    steps = end.form.layout.inverse(end.form.kind)
    nodes = _nodes(edit, end.form, steps, inside, function.input[end.position])
    end.call.enter(end.position, name, *nodes, inside=inside)


def _convert(
    edit: Editing, entries: Sequence[_End], read: Sequence[_Made], returned: Mapping[_Form, _Made]
) -> None:
    """Make the forms that no region returns, each before the first node that needs it."""
    orders: dict[Scope, dict[int, int]] = {}
    for form, made in {
        made.name: (e.form, made) for e, made in zip(entries, read, strict=True)
    }.values():
        if form in returned:
            continue
        if made.place not in orders:
            orders[made.place] = {id(node): i for i, node in enumerate(made.place.nodes)}
        order = orders[made.place]
        first = min(made.users, key=lambda node: order[id(node)])
        steps = form.layout.forward(form.kind)
        made.place.before(first, *_nodes(edit, form, steps, form.tensor, made.name))


def _leave(edit: Editing, end: _End, name: str, readers: dict[str, list[NodeProto]]) -> None:
    """Let a region return a form, and revert it outside if the plain tensor is read there."""
    call, form = end.call, end.form
    steps = form.layout.forward(form.kind)
    inside = _nodes(edit, form, steps, call.function.output[end.position], name)
    call.leave(end.position, name, *inside)
    graph = call.scope.proto
    assert isinstance(graph, GraphProto)
    if form.tensor in readers or any(value.name == form.tensor for value in graph.output):
        back = form.layout.inverse(form.kind)
        call.scope.after(call.node, *_nodes(edit, form, back, name, form.tensor))


def _nodes(
    edit: Editing, form: _Form, steps: Iterable[Step], source: str, target: str
) -> list[NodeProto]:
    nodes = layout_nodes(
        steps, source, target, lambda name, kind: edit.add(name, write_type(kind), form.tensor)
    )
    for node in nodes:
        note(mark(node, LAYOUT), LAYOUT_NAME, str(form.layout))
    return nodes
