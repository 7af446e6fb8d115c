"""The boundary stage: regions take boundary tensors in the dtypes and layouts of their targets.

Tensors are cast and quantized, brought into layouts, and transposed on the host as little as possible.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from onnx import ModelProto, NodeProto, TypeProto, helper

from byoc._dataclasses import dataclass, field
from byoc.boundary.convert._cast_regions import cast_regions, tidy_quantization
from byoc.boundary.convert._form_rewrite import choose_forms, find_layout_graph, rewrite_graph
from byoc.boundary.convert._movable_operators import (
    AxisOrder,
    GraphTensors,
    compose_orders,
    identity_order,
    read_order,
)
from byoc.boundary.convert._tensor_transfers import (
    AskedTranspose,
    BoundaryFormat,
    Conversion,
    ModelEditor,
    RegionBoundary,
    RegionCall,
    TensorTransfer,
    TransposeOffer,
    TransposeShares,
    find_own_quantization,
    find_owner,
    make_transfer_lookup,
)
from byoc.model import (
    LAYOUT,
    LAYOUT_KEY,
    EditableGraph,
    LayoutStep,
    TensorLayout,
    TensorType,
    can_convert_layout,
    drop_named,
    get_metadata,
    get_purpose,
    is_onnx,
    make_layout_nodes,
    mark_inserted,
    read_type,
    set_attribute,
    set_metadata,
    write_type,
)

__all__ = [
    "AskedTranspose",
    "BoundaryFormat",
    "Conversion",
    "ConvertedModel",
    "ModelEditor",
    "RegionBoundary",
    "TensorTransfer",
    "TransposeOffer",
    "TransposeShares",
    "convert_boundary",
    "find_own_quantization",
    "insert_layouts",
    "make_transfer_lookup",
    "minimize_transposes",
]


def minimize_transposes(edit: ModelEditor, boundaries: Sequence[RegionBoundary]) -> None:
    """Remove Transposes of layouts from the host's graphs; the model is edited in place.

    In each graph, and for each layout in turn, every operator that can run on transposed tensors does so
    if that helps; a minimum cut chooses them, so that no other choice transposes fewer bytes. The user's
    own Transposes between a layout and ONNX's order count like byoc's if movable operators connect them.
    Consecutive steps are merged afterwards. Steps of blocked layouts are not moved.

    Moved nodes bear the metadata `byoc.layout`. Elementwise operators, Concat, Pad and the like compute
    the same numbers in either order. A reduction of floats that adds or multiplies is not moved, since
    it would round differently in another order.
    """
    layouts = dict.fromkeys(b.format.activations for b in boundaries if b.format.activations is not None)
    if not layouts:
        return
    for scope in edit.scopes:
        replaced: set[str] = set()
        for layout in layouts:
            if layout.blocks or layout.is_plain:
                continue
            tensors = GraphTensors(edit, scope, boundaries)
            order = tuple(layout.plain_axes.index(axis) for axis in layout.axes)
            found = find_layout_graph(tensors, order)
            if found is not None:
                forms = choose_forms(tensors, found)
                replaced |= rewrite_graph(tensors, found, forms, (layout.plain_axes, str(layout)))
        merge_steps(GraphTensors(edit, scope, boundaries), replaced)


@dataclass(frozen=True)
class ConvertedModel:
    """A partitioned model whose boundary tensors are converted.

    `values` gives the types of all inserted tensors, in the graphs and in the regions' functions, and
    `origins` the user's tensor whose content each one holds. `notes` are sentences for the user.
    """

    proto: ModelProto
    values: Mapping[str, TypeProto]
    origins: Mapping[str, str]
    notes: tuple[str, ...] = ()


def convert_boundary(
    model: ModelProto, boundaries: Sequence[RegionBoundary], folder: Path | None = None
) -> ConvertedModel:
    """Convert the boundary tensors of an outlined model, which is edited in place.

    `boundaries` has one entry for each region of the model, in any order; `folder` is the directory of
    external data. Raises InputError if a region is to compute in a type that the model's operator set
    lacks.
    """
    edit = ModelEditor(model)
    cast_regions(edit, boundaries, folder)
    tidy_quantization(edit, boundaries)
    insert_layouts(edit, boundaries)
    minimize_transposes(edit, boundaries)
    return ConvertedModel(edit.finish(), edit.types, edit.origins, tuple(edit.notes))


# Merging of consecutive layout steps that cancel: Transposes, and steps of blocked layouts.

_STEPS = frozenset({"Identity", "Reshape", "Pad", "Slice"})
# A step, and the one that undoes it if what comes out is of the type that went in: blocks are split and
# joined, and what fills the last block is cut off and filled with zeros again.
_INVERSE_STEPS = {("Reshape", "Reshape"), ("Slice", "Pad")}


def merge_steps(tensors: GraphTensors, replaced: Collection[str]) -> None:
    """Merge consecutive Transposes, at least one of them byoc's, and drop nodes no longer needed.

    Steps that amount to the identity vanish; equal steps on one tensor exist once; a step of byoc's, or
    one that was merged into the next, is removed if nothing reads it, and so are the constants in
    `replaced`. Sequences of the user's own Transposes stay as they are.
    """
    _Merger(tensors, replaced).run()


class _Merger:
    def __init__(self, tensors: GraphTensors, replaced: Collection[str]) -> None:
        self.tensors = tensors
        self.replaced = set(replaced)
        self.maker = {name: node for node in tensors.scope.nodes for name in node.output if name}
        self.pinned = set(tensors.scope.find_lasting_names())
        self.same: dict[str, str] = {}
        self.steps: dict[Hashable, str] = {}
        self.bypassed: set[int] = set()

    def run(self) -> None:
        scope, kept = self.tensors.scope, list[NodeProto]()
        for node in scope.nodes:
            names = {name: self.same[name] for name in node.input if name in self.same}
            if names:
                kept += self.tensors.edit.rename_tensors(node, names)
            if not self._merge_node(node):
                kept.append(node)
        scope.nodes = kept
        scope.drop_unread(may_go=self._is_unneeded)
        unread = scope.drop_unread(self.replaced, lambda number, nodes: False)
        drop_named(scope.graph.initializer, unread)

    def _merge_node(self, node: NodeProto) -> bool:
        """Merge a node with its predecessor; return whether it is to be removed."""
        if not is_onnx(node):
            return False
        if node.op_type == "Transpose":
            return self._merge_transpose(node)
        if get_purpose(node) != LAYOUT or node.op_type not in _STEPS:
            return False
        if node.op_type == "Identity":
            return self._replace_output(node, node.input[0])
        before = self.maker.get(node.input[0])
        if before is not None and self._is_inverse(before, node):
            return self._replace_output(node, before.input[0])
        equal = self._find_equal(node, self.tensors.find_type(node.output[0]))
        return equal != node.output[0] and self._replace_output(node, equal)

    def _merge_transpose(self, node: NodeProto) -> bool:
        merged = _is_own_transpose(node)
        while (before := self.maker.get(node.input[0])) is not None:
            first, second = self._transpose_order(before), self._transpose_order(node)
            if first is None or second is None or not (merged or _is_own_transpose(before)):
                break
            merged = True
            set_attribute(node, helper.make_attribute("perm", compose_orders(first, second)))
            node.input[0] = before.input[0]
            self.bypassed.add(id(before))
        order = self._transpose_order(node)
        if merged and order is not None and order == identity_order(len(order)):
            return self._replace_output(node, node.input[0])
        equal = self._find_equal(node, order)  # a step of the user's is recorded, and not made again
        return merged and equal != node.output[0] and self._replace_output(node, equal)

    def _find_equal(self, node: NodeProto, what: Hashable) -> str:
        """Return the output of the first equal step on the same tensor, `what` being what it does."""
        if what is None:
            return node.output[0]
        return self.steps.setdefault((node.op_type, node.input[0], what), node.output[0])

    def _is_inverse(self, before: NodeProto, node: NodeProto) -> bool:
        """Return whether a step of a blocked layout reverts the preceding one, also byoc's."""
        if (before.op_type, node.op_type) not in _INVERSE_STEPS or get_purpose(before) != LAYOUT:
            return False
        began, ended = self.tensors.find_type(before.input[0]), self.tensors.find_type(node.output[0])
        return began is not None and began == ended and None not in (began.shape or (None,))

    def _transpose_order(self, node: NodeProto) -> AxisOrder | None:
        if not node.input:  # as of a Constant
            return None
        return read_order(node, self.tensors.find_rank(node.input[0]))

    def _replace_output(self, node: NodeProto, name: str) -> bool:
        """Replace a node's output by another tensor; a name that must stay becomes a copy.

        The copy is byoc's: a Transpose of the user's that became one has left its other form to the node
        that it copies.
        """
        if node.output[0] in self.pinned:
            mark_inserted(node, LAYOUT)
            node.op_type = "Identity"
            del node.attribute[:]
            node.input[:] = [name]
            return False
        self.same[node.output[0]] = name
        return True

    def _is_unneeded(self, number: int, nodes: Sequence[NodeProto]) -> bool:
        """Return whether a node that nothing reads is byoc's, or was bypassed or replaced."""
        (node,) = nodes
        replaced = node.op_type == "Constant" and not self.replaced.isdisjoint(node.output)
        return get_purpose(node) == LAYOUT or id(node) in self.bypassed or replaced


def _is_own_transpose(node: NodeProto) -> bool:
    """Return whether byoc inserted a Transpose, or changed one of the user's."""
    return get_purpose(node) == LAYOUT or bool(get_metadata(node, LAYOUT_KEY))


# Layout conversions at boundaries: regions read and return images in their target's layout.
#
# An image that a region reads is brought into the target's layout before the call, and back inside;
# for an image that it returns it is the reverse. A tensor has one form per layout, which all
# regions of that layout share: between two of them nothing is converted, and a tensor that no node
# of the host reads never returns to ONNX's own layout.

# Bodies of these run many times, and a tensor from around them is converted once.
_REPEATED = ("Loop", "Scan")


@dataclass(frozen=True)
class _LayoutForm:
    """A tensor in a layout: the graph and name of the tensor, and its plain type."""

    home: EditableGraph
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
    scope: EditableGraph
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
    needed: dict[EditableGraph, set[str]] = {}
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
    kinds: dict[tuple[EditableGraph, str], TensorType | None] = {}
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
                    proto = edit.types.get(name) or boundary.types.get(name)
                    kinds[home, name] = read_type(proto) if proto is not None else None
                kind = kinds[home, name]
                if kind is not None and can_convert_layout(layout, kind, edit.opset):
                    found.append(_RegionPort(call, position, _LayoutForm(home, name, kind, layout)))
    return exits, entries


def _make_instance(edit: ModelEditor, form: _LayoutForm, scope: EditableGraph) -> _FormInstance:
    packed = form.layout.pack_type(form.kind)
    assert packed is not None
    name = edit.add_tensor(f"{form.tensor}_{form.layout}", write_type(packed), form.tensor)
    return _FormInstance(form, name, scope)


def _assign_entries(
    edit: ModelEditor, entries: Sequence[_RegionPort], returned: Mapping[_LayoutForm, _FormInstance]
) -> list[_FormInstance]:
    """Return the form that each entry reads: one that a region returns, or one to be made."""
    wanted: dict[_LayoutForm, set[EditableGraph]] = {}
    for end in entries:
        wanted.setdefault(end.form, set()).add(_find_scope(end))
    shared: dict[tuple[_LayoutForm, EditableGraph], _FormInstance] = {}
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


def _enclosing_scopes(scope: EditableGraph, home: EditableGraph) -> Iterator[EditableGraph]:
    """Yield a graph and the graphs around it up to `home`."""
    for around in scope.walk_outward():
        yield around
        if around is home:
            return


def _find_scope(end: _RegionPort) -> EditableGraph:
    """Return the graph for an entry's form: outside all loops in which the tensor is constant."""
    place = end.call.scope
    for scope in _enclosing_scopes(end.call.scope, end.form.home):
        if scope is end.form.home or scope.owner is None or scope.outer is None:
            break
        if scope.owner.op_type in _REPEATED:
            place = scope.outer
    return place


def _find_user(place: EditableGraph, call: RegionCall) -> NodeProto:
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
    orders: dict[EditableGraph, dict[int, int]] = {}
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
