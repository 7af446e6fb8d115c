"""Layout conversions at boundaries: regions read and return images in their target's layout.

An image that a region reads is brought into the target's layout before the call, and back inside; for an
image that it returns it is the reverse. A tensor has one form per layout, which all regions of that
layout share: between two of them nothing is converted, and a tensor that no node of the host reads never
returns to ONNX's own layout.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import NodeProto

from byoc.boundary.convert._model_editor import ModelEditor, RegionCall, Scope, find_owner
from byoc.boundary.convert._tensor_transfers import RegionBoundary
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


@dataclass(eq=False)
class _FormInstance:
    """A form under its name, with the graph in which it is made and the nodes there that need it."""

    form: _LayoutForm
    name: str
    scope: Scope
    users: list[NodeProto] = field(default_factory=list)


def insert_layouts(edit: ModelEditor, boundaries: Sequence[RegionBoundary]) -> None:
    """Insert conversions of images into the targets' layouts and back; the model is edited in place.

    Images whose layout cannot be converted stay plain. A tensor from outside a Loop or Scan that regions
    inside read is converted once, before the loop; one from outside an If is converted in the branches
    that need it, unless something outside needs it too.
    """
    wanting = [b for b in boundaries if b.format.activations and not b.format.activations.is_plain]
    if not wanting:
        return
    exits, entries = _find_ports(edit, wanting)
    returned = {end.form: _make_instance(edit, end.form, end.form.home) for end in exits}
    read = _assign_entries(edit, entries, returned)
    for end, made in zip(entries, read, strict=True):
        _convert_input(edit, end, made.name)
        made.users.append(_find_user(made.scope, end.call))
    _insert_conversions(edit, [made for made in dict.fromkeys(read) if made.form not in returned])
    needed: dict[Scope, set[str]] = {}
    for end in exits:
        scope = end.call.scope
        if scope not in needed:
            needed[scope] = {*scope.find_readers(), *scope.outputs}
        _convert_output(edit, end, returned[end.form].name, needed[scope])


def _find_ports(
    edit: ModelEditor, boundaries: Sequence[RegionBoundary]
) -> tuple[list[_RegionPort], list[_RegionPort]]:
    """Return the outputs and the inputs of calls that are to be in their target's layout."""
    own_names = {scope: scope.own_names() for scope in edit.scopes}
    # One type for all who read a tensor, though in a body more may be known than around it.
    kinds: dict[tuple[Scope, str], TensorType | None] = {}
    exits: list[_RegionPort] = []
    entries: list[_RegionPort] = []
    for found, is_exit in ((exits, True), (entries, False)):
        for boundary in boundaries:
            call, layout = edit.calls[boundary.region], boundary.format.activations
            assert layout is not None
            for position, name in enumerate(call.node.output if is_exit else call.node.input):
                if edit.find_origin(name) not in boundary.spatial:
                    continue
                home = find_owner(call.scope, name, own_names)
                if (home, name) not in kinds:
                    proto = edit.values.get(name) or boundary.types.get(name)
                    kinds[home, name] = read_type(proto) if proto is not None else None
                kind = kinds[home, name]
                if kind is not None and can_convert_layout(layout, kind, edit.opset):
                    found.append(_RegionPort(call, position, _LayoutForm(home, name, kind, layout)))
    return exits, entries


def _make_instance(edit: ModelEditor, form: _LayoutForm, scope: Scope) -> _FormInstance:
    packed = form.layout.pack_type(form.kind)
    assert packed is not None
    name = edit.add_tensor(f"{form.tensor}_{form.layout}", write_type(packed), form.tensor)
    return _FormInstance(form, name, scope)


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
            shared[form, place] = _make_instance(edit, form, place)
        result.append(shared[form, place])
    return result


def _enclosing_scopes(scope: Scope, home: Scope) -> Iterator[Scope]:
    """Yield a graph and the graphs around it up to `home`."""
    for around in scope.walk_outward():
        yield around
        if around is home:
            return


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
    node = call.node
    for scope in _enclosing_scopes(call.scope, place):
        if scope is not place and scope.owner is not None:
            node = scope.owner
    return node


def _convert_input(edit: ModelEditor, end: _RegionPort, name: str) -> None:
    """Let a region read a form by its name, and revert the conversion inside."""
    function = end.call.function
    inside = edit.new_name(name, end.form.tensor) if name in function.input else name
    steps = end.form.layout.make_unpack_steps(end.form.kind)
    nodes = _make_nodes(edit, end.form, steps, inside, function.input[end.position])
    end.call.replace_input(end.position, name, *nodes, inside=inside)


def _insert_conversions(edit: ModelEditor, instances: Sequence[_FormInstance]) -> None:
    """Make forms that no region returns, each before the first node that needs it."""
    orders: dict[Scope, dict[int, int]] = {}
    for made in instances:
        if made.scope not in orders:
            orders[made.scope] = {id(node): i for i, node in enumerate(made.scope.nodes)}
        order, form = orders[made.scope], made.form
        first = min(made.users, key=lambda node: order[id(node)])
        steps = form.layout.make_pack_steps(form.kind)
        made.scope.insert_before(first, *_make_nodes(edit, form, steps, form.tensor, made.name))


def _convert_output(edit: ModelEditor, end: _RegionPort, name: str, needed: Collection[str]) -> None:
    """Let a region return a form, and revert it outside if the plain tensor is needed there."""
    call, form = end.call, end.form
    steps = form.layout.make_pack_steps(form.kind)
    inside = _make_nodes(edit, form, steps, call.function.output[end.position], name)
    call.replace_output(end.position, name, *inside)
    if form.tensor in needed:
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
