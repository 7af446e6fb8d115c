"""Editing of an outlined model: its regions by name, and the contents of new tensors."""

from collections.abc import Collection, Mapping

from onnx import FunctionProto, ModelProto, NodeProto, TypeProto

from byoc.model import (
    LAYOUT,
    EditableGraph,
    EditableModel,
    build_node,
    mark_inserted,
    rename_tensors,
    replace_names,
)


class RegionCall:
    """A call of a region: the calling node, the graph that it is in, and the nodes inside the region.

    Inputs and outputs of call and function correspond by position; at first they have the same names
    outside and inside.
    """

    def __init__(self, node: NodeProto, scope: EditableGraph, function: FunctionProto) -> None:
        """Take a node that calls a function."""
        self.node = node
        self.scope = scope
        self.function = function
        self.inside = EditableGraph(function)

    def replace_input(self, position: int, name: str, *steps: NodeProto, inside: str = "") -> None:
        """Let the region read `name` at an input, and make its former input by `steps`.

        The function's input is named `inside`, or the same as outside.
        """
        self.node.input[position] = name
        self.function.input[position] = inside or name
        self.inside.insert_first(*steps)

    def replace_output(self, position: int, name: str, *steps: NodeProto, inside: str = "") -> None:
        """Let the region return `name` at an output, which `steps` make of its former output."""
        self.node.output[position] = name
        self.function.output[position] = inside or name
        self.inside.insert_last(*steps)

    def rename_inside(self, names: Mapping[str, str]) -> None:
        """Rename the function's inputs and outputs like those of the call."""
        function = self.function
        inner: dict[str, str] = {}
        for ports, formals in ((self.node.input, function.input), (self.node.output, function.output)):
            pairs = zip(ports, formals, strict=True)
            inner |= {formal: names[outside] for outside, formal in pairs if outside in names}
        replace_names(function.input, inner)
        replace_names(function.output, inner)
        for node in self.inside.nodes:
            rename_tensors(node, inner)


class ModelEditor(EditableModel):
    """A model while its boundaries are edited: the graphs inside it, and `calls` by the region's name.

    Names are unique in the model, so `types` hold in each graph. `origins` names the user's tensor whose
    content each inserted one holds. `notes` are sentences for the user.
    """

    def __init__(self, model: ModelProto) -> None:
        """Take an outlined model, which is edited in place."""
        super().__init__(model)
        self.notes: list[str] = []
        self.origins: dict[str, str] = {}
        functions = {(f.domain, f.name): f for f in model.functions if f.domain.startswith("byoc.")}
        domains = {domain for domain, _ in functions}
        self.calls = {
            node.op_type: RegionCall(node, scope, functions[node.domain, node.op_type])
            for scope in self.scopes
            for node in scope.nodes
            if node.domain in domains and (node.domain, node.op_type) in functions
        }

    @property
    def opset(self) -> int:
        """The version of ONNX's operators in the model and its regions, 0 if it uses none."""
        versions = (e.version for e in self.model.opset_import if e.domain in ("", "ai.onnx"))
        return next(versions, 0)

    def new_name(self, name: str, of: str = "") -> str:
        """Return a name that is not in the model: `name`, or that with a number.

        `of` is the tensor whose content the new one holds in another form; see `find_origin`.
        """
        new = self.names.new_tensor(name)
        if of:
            self.origins[new] = self.find_origin(of)
        return new

    def find_origin(self, name: str) -> str:
        """Return the user's tensor whose content a tensor holds."""
        return self.origins.get(name, name)

    def add_tensor(self, name: str, kind: TypeProto | None, of: str = "") -> str:
        """Return a free name for a tensor and record its type."""
        new = self.new_name(name, of)
        if kind is not None:
            self.types[new] = kind
        return new

    def rename_tensors(self, node: NodeProto, names: Mapping[str, str]) -> list[NodeProto]:
        """Rename the tensors that a node reads and makes; those of a region also inside it.

        If a name is already taken in a region, the region receives a copy; the nodes that make the
        copies are returned and must be placed before the node.
        """
        call = self.calls.get(node.op_type)
        copies: list[NodeProto] = []
        if call is not None and call.node is node:
            names, copies = self._avoid_collisions(call, names)
            call.rename_inside(names)
        replace_names(node.input, names)
        replace_names(node.output, names)
        return copies

    def _avoid_collisions(
        self, call: RegionCall, names: Mapping[str, str]
    ) -> tuple[dict[str, str], list[NodeProto]]:
        """Return names that a region's function can use, and nodes that make the copies among them."""
        made = (name for node in call.inside.nodes for name in node.output)
        taken = {*call.function.input, *call.function.output, *made}
        result: dict[str, str] = {}
        copies = []
        for old in dict.fromkeys((*call.node.input, *call.node.output)):
            new = names.get(old, "")
            if new in taken:
                copy = self.add_tensor(new, self.types.get(old), old)
                node = build_node("Identity", [new], [copy], f"{call.node.name}_{copy}")
                copies.append(mark_inserted(node, LAYOUT))
                new = copy
            if new:
                taken.add(new)
                result[old] = new
        return result, copies

    def finish(self) -> ModelProto:
        """Write all nodes and the types of new tensors back, those in regions, too."""
        for call in self.calls.values():
            call.inside.write_to(call.function)
        return super().finish()


def find_owner(
    scope: EditableGraph, name: str, own_names: Mapping[EditableGraph, Collection[str]]
) -> EditableGraph:
    """Return the graph that a tensor is in, this one or one around it; this one if it is in none."""
    return next((around for around in scope.walk_outward() if name in own_names[around]), scope)
