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

from byoc.boundary.convert._model_editor import ModelEditor, RegionBoundary, RegionCall, Scope
from byoc.model import (
    LAYOUT,
    LAYOUT_KEY,
    LayoutStep,
    TensorLayout,
    TensorType,
    can_convert_layout,
    make_layout_nodes,
    mark_inserted,
    read_type,
    set_metadata,
    write_type,
)

# Bodies of these run many times, and a tensor from around them is converted once.
_REPEATED = ("Loop", "Scan")


@dataclass(frozen=True)
class _LayoutForm:
    """A tensor in a layout: the graph and name of the tensor, and its plain type."""

    home: Scope
    tensor: str
    kind: TensorType
    layout: TensorLayout


@dataclass(frozen=True)
class _RegionPort:
    """An input or output of a region that is to be in a layout."""

    call: RegionCall
    position: int
    form: _LayoutForm


@dataclass
class _FormInstance:
    """The name of a form, the graph in which it is made, and the nodes there that need it."""

    name: str
    scope: Scope
    users: list[NodeProto] = field(default_factory=list)


def insert_layouts(edit: ModelEditor, boundaries: Sequence[RegionBoundary]) -> None:
    """Insert conversions of images into the targets' layouts and back; the model is edited in place.

    Images whose layout cannot be converted stay plain. A tensor from outside a Loop or Scan that regions
    inside read is converted once, before the loop; one from outside an If is
    converted in the branches that need it, unless something outside needs it too.
    """
    wanting = [b for b in boundaries if b.format.activations and not b.format.activations.is_plain]
    if not wanting:
        return
    ends = _PortFinder(edit)
    exits = [end for border in wanting for end in ends.find(border, "output")]
    entries = [end for border in wanting for end in ends.find(border, "input")]
    returned = {end.form: _FormInstance(_name_form(edit, end.form), end.form.home) for end in exits}
    read = _assign_entries(edit, entries, returned)
    for end, made in zip(entries, read, strict=True):
        _convert_input(edit, end, made.name)
        made.users.append(_find_user(made.scope, end.call))
    _insert_conversions(edit, entries, read, returned)
    readers: dict[Scope, dict[str, list[NodeProto]]] = {}
    for end in exits:
        scope = end.call.scope
        if scope not in readers:
            readers[scope] = scope.find_readers()
        _convert_output(edit, end, returned[end.form].name, readers[scope])


class _PortFinder:
    """The inputs and outputs of calls that are to be in their target's layout."""

    def __init__(self, edit: ModelEditor) -> None:
        self._edit = edit
        self._own = {scope: scope.own_names() for scope in edit.scopes}
        # One type for all who read a tensor, though in a body more may be known than around it.
        self._kinds: dict[tuple[Scope, str], TensorType | None] = {}

    def find(self, border: RegionBoundary, side: Literal["input", "output"]) -> Iterator[_RegionPort]:
        """Yield the inputs or outputs of a region whose target has a layout."""
        edit, layout = self._edit, border.format.activations
        assert layout is not None
        call = edit.calls[border.region]
        for position, name in enumerate(call.node.input if side == "input" else call.node.output):
            if edit.find_origin(name) not in border.spatial:
                continue
            home = call.scope
            while name not in self._own[home] and home.outer is not None:
                home = home.outer
            if (home, name) not in self._kinds:
                proto = edit.values.get(name) or border.types.get(name)
                self._kinds[home, name] = read_type(proto) if proto is not None else None
            kind = self._kinds[home, name]
            if kind is not None and can_convert_layout(layout, kind, edit.opset):
                yield _RegionPort(call, position, _LayoutForm(home, name, kind, layout))


def _name_form(edit: ModelEditor, form: _LayoutForm) -> str:
    packed = form.layout.pack_type(form.kind)
    assert packed is not None
    return edit.add_tensor(f"{form.tensor}_{form.layout}", write_type(packed), form.tensor)


def _assign_entries(
    edit: ModelEditor, entries: Sequence[_RegionPort], returned: Mapping[_LayoutForm, _FormInstance]
) -> list[_FormInstance]:
    """Return the form that each entry reads: one that a region returns, or one to be made."""
    wanted: dict[_LayoutForm, set[Scope]] = {}
    for end in entries:
        wanted.setdefault(end.form, set()).add(_find_scope(end))
    shared: dict[tuple[_LayoutForm, Scope], _FormInstance] = {}
    result = []
    for end in entries:
        form = end.form
        if form in returned:
            result.append(returned[form])
            continue
        around = _enclosing_scopes(_find_scope(end), form.home)
        place = [scope for scope in around if scope in wanted[form]][-1]
        if (form, place) not in shared:
            shared[form, place] = _FormInstance(_name_form(edit, form), place)
        result.append(shared[form, place])
    return result


def _enclosing_scopes(scope: Scope, home: Scope) -> Iterator[Scope]:
    """Yield a graph and the graphs around it up to `home`."""
    yield scope
    while scope is not home and scope.outer is not None:
        scope = scope.outer
        yield scope


def _find_scope(end: _RegionPort) -> Scope:
    """Return the graph for an entry's form: outside all loops in which the tensor is constant."""
    place = end.call.scope
    for scope in _enclosing_scopes(end.call.scope, end.form.home):
        if scope is end.form.home or scope.owner is None or scope.outer is None:
            break
        if scope.owner.op_type in _REPEATED:
            place = scope.outer
    return place


def _find_user(place: Scope, call: RegionCall) -> NodeProto:
    """Return the node in a graph that is a call, or that holds the call in a body."""
    scope, node = call.scope, call.node
    while scope is not place and scope.outer is not None and scope.owner is not None:
        node, scope = scope.owner, scope.outer
    return node


def _convert_input(edit: ModelEditor, end: _RegionPort, name: str) -> None:
    """Let a region read a form by its name, and revert the conversion inside."""
    function = end.call.function
    inside = edit.new_name(name, end.form.tensor) if name in function.input else name
    steps = end.form.layout.make_unpack_steps(end.form.kind)
    nodes = _make_nodes(edit, end.form, steps, inside, function.input[end.position])
    end.call.replace_input(end.position, name, *nodes, inside=inside)


def _insert_conversions(
    edit: ModelEditor,
    entries: Sequence[_RegionPort],
    read: Sequence[_FormInstance],
    returned: Mapping[_LayoutForm, _FormInstance],
) -> None:
    """Make the forms that no region returns, each before the first node that needs it."""
    orders: dict[Scope, dict[int, int]] = {}
    for form, made in {
        made.name: (e.form, made) for e, made in zip(entries, read, strict=True)
    }.values():
        if form in returned:
            continue
        if made.scope not in orders:
            orders[made.scope] = {id(node): i for i, node in enumerate(made.scope.nodes)}
        order = orders[made.scope]
        first = min(made.users, key=lambda node: order[id(node)])
        steps = form.layout.make_pack_steps(form.kind)
        made.scope.insert_before(first, *_make_nodes(edit, form, steps, form.tensor, made.name))


def _convert_output(
    edit: ModelEditor, end: _RegionPort, name: str, readers: dict[str, list[NodeProto]]
) -> None:
    """Let a region return a form, and revert it outside if the plain tensor is read there."""
    call, form = end.call, end.form
    steps = form.layout.make_pack_steps(form.kind)
    inside = _make_nodes(edit, form, steps, call.function.output[end.position], name)
    call.replace_output(end.position, name, *inside)
    graph = call.scope.proto
    assert isinstance(graph, GraphProto)
    if form.tensor in readers or any(value.name == form.tensor for value in graph.output):
        back = form.layout.make_unpack_steps(form.kind)
        call.scope.insert_after(call.node, *_make_nodes(edit, form, back, name, form.tensor))


def _make_nodes(
    edit: ModelEditor, form: _LayoutForm, steps: Iterable[LayoutStep], source: str, target: str
) -> list[NodeProto]:
    nodes = make_layout_nodes(
        steps, source, target, lambda name, kind: edit.add_tensor(name, write_type(kind), form.tensor)
    )
    for node in nodes:
        set_metadata(mark_inserted(node, LAYOUT), LAYOUT_KEY, str(form.layout))
    return nodes
