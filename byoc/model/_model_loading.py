"""Loading of models: from a file to a checked, sorted and typed `Model`, or to one clear sentence.

In ONNX a body reads the values of the graphs around it by name. Exporters give a body's inputs,
counters, initializers and outputs names that values around it have as well, and name many nodes alike.
ONNX's IR specification forbids some of it, and its checker finds little; onnxruntime resolves a name to
the innermost value, and refuses two nodes of one name. A function that has the name of a registered
operator is ignored by onnxruntime, and is dropped here.

The user's protobuf stays as it is, except for fixed dimensions, topological order, negative dimensions,
names that a body or a node shares with what is around it, functions with the names of operators, and
onnxruntime's own QuantizeLinear and DequantizeLinear, which become ONNX's. Checks and shape
inference run on a skeleton without the weights: their cost does not depend on the size of the weights.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    TypeProto,
)

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.model._dimensions import NOTHING_OPEN, Dimensions, PlannedSizes
from byoc.model._graph_index import GraphIndex
from byoc.model._heavy_weights import HeavyWeights, find_non_text, make_skeleton, replace_weights
from byoc.model._inference._shape_inference import (
    InferenceResult,
    clear_negative_dims,
    count_inlined_nodes,
    infer_checked_types,
)
from byoc.model._inference._window_shapes import check_nodes
from byoc.model._node_kinds import NodeRecords, list_distinct_nodes, normalize_qdq
from byoc.model._open_dims import fix_dims, name_open_dims
from byoc.model._tensor_data import check_tensor
from byoc.model._vendor_operators import hide_runtime_operators
from byoc.model._walk import (
    copy_without,
    describe_node,
    list_bodies,
    list_captures,
    list_own_names,
    list_tensor_names,
    sort_nodes,
    walk_distinct_tensors,
    walk_nodes,
)
from byoc.model.schemas import get_schema, list_onnx_domains
from byoc.support import describe_missing_file

# Its operators are onnxruntime's. Functions in a vendor's or a user's domain are their own.
_RUNTIME_DOMAIN = "com.microsoft"


def make_names_unique(proto: ModelProto, records: NodeRecords) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a model in which no body has a name of a graph around it, and notes for the user.

    No two nodes of one graph share a name, and no function has the name of a registered operator.
    `records` are those of the main graph's nodes. Names of tensors of the main graph stay, and those of
    nodes that are unique in their graph. A model in which nothing is to be done is returned as it is.
    Raises InputError for a name that runtimes read differently.
    """
    ignored = _find_ignored_functions(proto)
    scopes: list[GraphProto | FunctionProto] = [proto.graph, *proto.functions]
    with_bodies = [records.has_bodies, *[_has_bodies(function.node) for function in proto.functions]]
    pairs = list(zip(scopes, with_bodies, strict=True))
    shared_tensors = [has and _shadows(scope) for scope, has in pairs]
    shared_nodes = any(_shares_node_names(nodes) for pair in pairs for nodes in _walk_scope(*pair))
    if not ignored and not any(shared_tensors) and not shared_nodes:
        return proto, ()
    result = copy_without(proto)
    copies: list[GraphProto | FunctionProto] = [result.graph, *result.functions]
    for scope, shadows in zip(copies, shared_tensors, strict=True):
        if shadows:
            _ScopeRenamer(scope).rename()
        for nodes in _walk_scope(scope, with_bodies=True) if shared_nodes else ():
            _name_nodes_apart(nodes)
    notes = [_describe_ignored(result.functions[number]) for number in ignored]
    for number in reversed(ignored):
        del result.functions[number]
    return result, tuple(notes)


def _find_ignored_functions(proto: ModelProto) -> list[int]:
    """Return the numbers of the functions that have the name of a registered operator."""
    imports = _list_versions(proto.opset_import)
    found = []
    for number, function in enumerate(proto.functions):
        domain = "" if function.domain == "ai.onnx" else function.domain
        if domain != _RUNTIME_DOMAIN and domain not in list_onnx_domains():
            continue
        version = imports.get(domain) or _list_versions(function.opset_import).get(domain)
        if version is not None and get_schema(function.name, domain, version) is not None:
            found.append(number)
    return found


def _list_versions(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    return {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in imports}


def _describe_ignored(function: FunctionProto) -> str:
    domain = f"{function.domain}." if function.domain else ""
    return (
        f"the model's own function '{domain}{function.name}' has the name of an operator, and does not "
        f"count: as in onnxruntime, a node {function.name} is the operator"
    )


def _has_bodies(nodes: Iterable[NodeProto]) -> bool:
    return any(list_bodies(node) for node in nodes)


def _walk_scope(scope: GraphProto | FunctionProto, with_bodies: bool) -> Iterator[Sequence[NodeProto]]:
    """Yield the nodes of a graph or function, and those of each body inside."""
    pending = [scope.node]
    while pending:
        nodes = pending.pop()
        yield nodes
        if with_bodies:
            pending.extend(body.node for node in nodes for body in list_bodies(node))


def _list_scope_names(scope: GraphProto | FunctionProto) -> Iterable[str]:
    """Return the names that a graph, a function or a body defines."""
    if isinstance(scope, GraphProto):
        return list_own_names(scope)
    return {*scope.input, *(name for node in scope.node for name in node.output)}


def _shadows(scope: GraphProto | FunctionProto) -> bool:
    """Return whether a body inside has a name of a graph around it."""
    visible = {name for name in _list_scope_names(scope) if name}
    pending = [iter(_list_bodies_of(scope))]
    added: list[frozenset[str]] = []
    while pending:
        body = next(pending[-1], None)
        if body is None:
            pending.pop()
            visible.difference_update(added.pop() if added else ())
            continue
        own = list_own_names(body) - {""}
        if not visible.isdisjoint(own):
            return True
        visible.update(own)
        added.append(own)
        pending.append(iter(_list_bodies_of(body)))
    return False


def _list_bodies_of(scope: GraphProto | FunctionProto) -> list[GraphProto]:
    return [body for node in scope.node for body in list_bodies(node)]


def _shares_node_names(nodes: Iterable[NodeProto]) -> bool:
    names = [name for node in nodes if (name := node.name)]
    return len(set(names)) < len(names)


def _name_nodes_apart(nodes: Sequence[NodeProto]) -> None:
    """Name each node after its first output whose name another node has, too, in place.

    So reports and placement files name nodes without a name of their own.
    """
    counts = Counter(node.name for node in nodes)
    shared = [node for node in nodes if node.name and counts[node.name] > 1]
    taken = counts.keys() - {node.name for node in shared}
    names = _NewNames({*taken, *(name for node in nodes for name in node.output)} if shared else set())
    for node in shared:
        own = next(filter(None, node.output), node.name)
        node.name = own if own not in taken and own in node.output else names.make(own)


class _NewNames:
    """Makes new names, each in constant time on average: a name with the next number behind it."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._last: dict[str, int] = {}

    def make(self, name: str) -> str:
        number = self._last.get(name, 0) + 1
        while (found := f"{name}_{number}") in self._taken:
            number += 1
        self._last[name] = number
        self._taken.add(found)
        return found


class _ScopeRenamer:
    """Renames, in place, what bodies in a graph or function define and a graph around them has, too.

    `current` maps each name that is visible to what it is called now: inputs and stored tensors of a
    body are visible in all of it, what its nodes make only behind them. `around` are the names, as they
    are now, of the graphs around, visible or not.
    """

    def __init__(self, scope: GraphProto | FunctionProto) -> None:
        self._scope = scope
        self._names = _NewNames(list_tensor_names(scope))
        self._around = {name for name in _list_scope_names(scope) if name}
        self._current = {name: name for name in self._around}

    def rename(self) -> None:
        for node in self._scope.node:
            self._rename_bodies(node)

    def _rename_bodies(self, node: NodeProto) -> None:
        bodies = list_bodies(node)
        if len(bodies) > 1:
            self._check_stored_names(node, bodies)
        for body in bodies:
            self._rename_body(body)

    def _check_stored_names(self, node: NodeProto, bodies: Sequence[GraphProto]) -> None:
        """Raise InputError for a stored tensor of a body that has the name of what another one captures.

        onnxruntime gives the captured value to all bodies of a node, and this one then reads it in
        place of its own.
        """
        for body in bodies:
            given = {value.name for value in body.input}
            stored = {name for name in _list_stored_names(body) if name not in given}
            shadowing = stored.intersection(self._current)
            for other in bodies if shadowing else ():
                both = sorted(shadowing.intersection(list_captures(other)))
                if other is not body and both:
                    raise InputError(
                        f"{describe_node(node)} has an initializer '{both[0]}' in its body "
                        f"'{body.name}', and its body '{other.name}' reads a '{both[0]}' of the graph "
                        "around: runtimes disagree on which of the two the first one reads; name them "
                        "apart"
                    )

    def _rename_body(self, body: GraphProto) -> None:
        own = [name for name in _list_defined_names(body) if name]
        new = {n: self._names.make(n) if n in self._around else n for n in dict.fromkeys(own)}
        self._around.update(new.values())
        before = {name: self._current.get(name) for name in new}
        for name in (*(value.name for value in body.input), *_list_stored_names(body)):
            self._current[name] = new[name]
        for stored in (body.input, body.initializer, [each.values for each in body.sparse_initializer]):
            for value in stored:
                value.name = self._read(value.name)
        for node in body.node:
            self._rename_all(node.input)
            self._rename_bodies(node)
            self._current.update({name: new[name] for name in node.output if name})
            self._rename_all(node.output)
            for device in node.device_configurations:
                for sharding in device.sharding_spec:
                    sharding.tensor_name = self._read(sharding.tensor_name)
        for value in (*body.output, *body.value_info):
            value.name = self._read(value.name)
        for annotation in body.quantization_annotation:
            annotation.tensor_name = self._read(annotation.tensor_name)
            for entry in annotation.quant_parameter_tensor_names:
                entry.value = self._read(entry.value)
        self._around.difference_update(new.values())
        for name, outer in before.items():
            if outer is None:
                del self._current[name]
            else:
                self._current[name] = outer

    def _read(self, name: str) -> str:
        return self._current.get(name, name)

    def _rename_all(self, names: MutableSequence[str]) -> None:
        for number, name in enumerate(names):
            new = self._read(name)
            if new != name:
                names[number] = new


def _list_defined_names(body: GraphProto) -> list[str]:
    """Return the names that a body defines, in order; one may stand more than once."""
    return [
        *[value.name for value in body.input],
        *_list_stored_names(body),
        *[name for node in body.node for name in node.output],
    ]


def _list_stored_names(body: GraphProto) -> list[str]:
    return [
        *[tensor.name for tensor in body.initializer],
        *[sparse.values.name for sparse in body.sparse_initializer],
    ]


# Loading of models: from a file to a checked, sorted and typed `Model`, or to one clear sentence.


_TEXT_SUFFIXES = (".onnxtxt", ".onnxtext")
# The brackets of ONNX's text form, outside of texts and comments.
_BRACKETS = re.compile(r'"(?:\\.|[^"\\])*"|#[^\n]*|[(){}]', re.DOTALL)
_MAX_NESTING = 100  # as in protobuf's binary form
_MAX_INLINED_NODES = 1 << 20  # a runtime inlines functions, and few bytes may stand for any number


@dataclass(frozen=True, eq=False)
class Model:
    """A checked model: nodes are sorted, types are known as far as inference goes.

    `structure` is the protobuf, which may lack the data of heavy weights (`heavy`, None where it has
    all); `source` is the user's name for it, `folder` holds its external data (None if there is none),
    `make_samples` makes suitable inputs from a seed (None if nobody knows how), `planned` are the sizes
    of open dimensions that costs count with. `lost` are the names of nodes and tensors that
    clean-up dropped, by themselves and behind the paths of their graphs. `variable` are inputs that are
    constants unless the caller gives them. The protobuf must not be edited.
    """

    structure: ModelProto
    source: str
    folder: Path | None
    inference: InferenceResult
    make_samples: Callable[[int], Mapping[str, Any]] | None = None
    planned: PlannedSizes = NOTHING_OPEN
    lost: frozenset[str] = frozenset()
    heavy: HeavyWeights | None = None
    variable: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return the name of the model, without its graph."""
        return f"Model({self.source!r})"

    @cached_property
    def proto(self) -> ModelProto:
        """The whole model. Raises InputError where its file has changed since it was read."""
        if self.heavy is not None:
            self.heavy.fill(self.structure)
        return self.structure

    @cached_property
    def index(self) -> GraphIndex:
        """The index of the main graph."""
        types = self.inference
        return GraphIndex(
            self.structure,
            types.type_protos,
            types.typed_graph,
            planned=self.planned,
            certain=types.certain,
            known_records=types.records,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return self.inference.notes

    @property
    def name(self) -> str:
        """A short name for files: `squeezenet` for `zoo:squeezenet` and `a/squeezenet.onnx`."""
        return Path(self.source.rpartition(":")[2]).stem or "model"


def read_model_file(path: Path) -> ModelProto:
    """Read a model file (.onnx, or ONNX's text forms by suffix) without its external data.

    Raises InputError when there is no such file, or it is not an ONNX model.
    """
    try:
        if not path.exists():
            raise InputError(describe_missing_file(path))
        if path.is_dir():
            if (path / "manifest.json").exists():
                raise InputError(
                    f"{path}: is a bundle, not an ONNX model: give the model that it was made of"
                )
            raise InputError(f"{path}: is a folder, not an ONNX model")
        if not path.is_file():
            raise InputError(f"{path}: is not a regular file")
        if path.suffix in _TEXT_SUFFIXES:
            _check_nesting(path)
        return onnx.load(path, load_external_data=False)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except InputError:
        raise
    except Exception:  # each of ONNX's formats has errors of its own
        size = path.stat().st_size
        raise InputError(
            f"{path}: not an ONNX model, or a truncated one ({size} bytes could not be decoded)"
        ) from None


def _check_nesting(path: Path) -> None:
    """Raise InputError for text that is nested too deeply for the stack of ONNX's parser."""
    depth = 0
    for token in _BRACKETS.finditer(path.read_text(encoding="utf-8")):
        depth += (token[0] in "({") - (token[0] in ")}")
        if depth > _MAX_NESTING:
            raise InputError(f"{path}: bodies are nested too deeply")


def prepare_model(
    proto: ModelProto,
    source: str,
    folder: Path | None = None,
    given: Dimensions | None = None,
    heavy: HeavyWeights | None = None,
) -> Model:
    """Check a protobuf and infer its types; it is not changed.

    `given` says what open dimensions are, `heavy` has the weights that the protobuf lacks. Raises
    InputError, beginning with `source`, when the model is not valid ONNX, has a cycle, or its dimensions
    cannot be as they were given (`fix_dims`).
    """
    try:
        records = NodeRecords.read(proto.graph.node)
        distinct = records.list_distinct(proto.graph.node)
        outside = _check_contents(proto, folder, distinct, heavy)
        unique, ignored = make_names_unique(proto, records)
        if unique is not proto:
            records = NodeRecords.read(unique.graph.node)
        ordered = clear_negative_dims(_sort_nodes(unique, records), records)
        if ordered is not proto:
            records = NodeRecords.read(ordered.graph.node)
            distinct = records.list_distinct(ordered.graph.node)
        proto, notes = normalize_qdq(ordered, distinct)
        if proto is not ordered:
            records = NodeRecords.read(proto.graph.node)
        ranges: Mapping[str, tuple[int, int]] = {}
        if given:
            fixed = fix_dims(proto, given)
            proto, ranges = fixed.proto, fixed.ranges
            if records.has_bodies:  # whose types have changed with the dimensions
                records = NodeRecords.read(proto.graph.node)
        light = make_skeleton(proto, folder) if outside else replace_weights(proto)
        name_open_dims(light)
        inside = NodeRecords.read(light.graph.node) if outside else records  # embedded tensors differ
        if outside or proto is not ordered:
            distinct = inside.list_distinct(light.graph.node)
        notes = (*ignored, *notes, *_check_skeleton(light, distinct, inside))
        check_nodes(light, distinct)
        inferred = infer_checked_types(light, records=inside)
    except InputError as error:
        raise InputError(*(f"{source}: {line}" for line in error.lines)) from None
    except (RecursionError, DecodeError, EncodeError):
        raise InputError(f"{source}: bodies are nested too deeply, or the model is too large") from None
    certain = inferred.certain and not outside
    inferred = replace(inferred, notes=(*notes, *inferred.notes), certain=certain, records=records)
    return Model(proto, source, folder, inferred, planned=PlannedSizes(ranges=ranges), heavy=heavy)


def check_model(proto: ModelProto, folder: Path | None = None) -> None:
    """Raise InputError unless a protobuf is valid ONNX, its nodes in order; no types are inferred."""
    try:
        outside = _check_contents(proto, folder, list_distinct_nodes(proto.graph.node), None)
        light = make_skeleton(proto, folder) if outside else replace_weights(proto)
        records = NodeRecords.read(light.graph.node)
        _check_skeleton(light, records.list_distinct(light.graph.node), records)
    except (RecursionError, DecodeError, EncodeError):
        raise InputError("bodies are nested too deeply, or the model is too large") from None


def _check_contents(
    proto: ModelProto, folder: Path | None, distinct: Sequence[NodeProto], heavy: HeavyWeights | None
) -> bool:
    """Raise InputError for what ONNX's checker does not say or survive.

    `distinct` has one node of each kind of the main graph; where there are `heavy` weights, the file was
    seen to have their data. Returns whether tensors have their data in files, other than initializers of
    the main graph, which inference needs no values of.
    """
    if not proto.HasField("graph") or not proto.opset_import:
        raise InputError("not an ONNX model: it has no graph or names no operator set")
    unreadable = "" if heavy is not None and heavy.beside_text else find_non_text(proto)
    if unreadable:
        raise InputError(f"not valid ONNX: {unreadable} is not UTF-8 text")
    _check_function_calls(proto)
    others = [node for each in proto.functions for node in list_distinct_nodes(each.node)]
    tensors = list(walk_distinct_tensors(proto, [*distinct, *others]))
    known: dict[str, Path] = {}
    for tensor in tensors:
        check_tensor(tensor, folder, known, found=heavy is not None)
    inside = tensors[len(proto.graph.initializer) :]
    return any(tensor.data_location == TensorProto.EXTERNAL for tensor in inside)


def _check_function_calls(proto: ModelProto) -> None:
    """Raise InputError for two functions of one name, and for a call with more values than its has."""
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    if not functions:
        return
    if len(functions) < len(proto.functions):
        counts = Counter((f.domain, f.name, f.overload) for f in proto.functions)
        domain, name, _ = counts.most_common(1)[0][0]
        raise InputError(f"not valid ONNX: it has two functions '{domain}::{name}'")
    bodies = [function.node for function in proto.functions]
    for node in walk_nodes(chain(proto.graph.node, *bodies)):
        function = functions.get((node.domain, node.op_type, node.overload))
        if function is None:
            continue
        for what, given, most in (
            ("inputs", len(node.input), len(function.input)),
            ("outputs", len(node.output), len(function.output)),
        ):
            if given > most:
                raise InputError(f"{describe_node(node)} has {given} {what}, but its function {most}")


def _sort_nodes(proto: ModelProto, records: NodeRecords) -> ModelProto:
    reads = None if records.has_bodies else records.inputs
    try:
        order = sort_nodes(proto.graph.node, reads, records.outputs)
    except ValueError as error:
        raise InputError(str(error)) from None
    if order == list(range(len(order))):
        return proto
    result = copy_without(proto, "node")
    result.graph.node.extend(proto.graph.node[i] for i in order)
    return result


def _check_skeleton(
    skeleton: ModelProto, distinct: Sequence[NodeProto], records: NodeRecords
) -> tuple[str, ...]:
    """Check a model by ONNX's checker; return notes on the operators that only onnxruntime has.

    `records` are those of the main graph's nodes, `distinct` has one node of each kind.
    """
    for node in distinct:
        if any(attribute.ref_attr_name for attribute in node.attribute):
            raise InputError(
                f"{describe_node(node)} refers to an attribute of a function, and is in none"
            )
    hidden, notes = hide_runtime_operators(skeleton, distinct, records)
    try:
        onnx.checker.check_model(_state_shapes(hidden))
    except (onnx.checker.ValidationError, EncodeError) as error:
        raise InputError(f"not valid ONNX: {' '.join(str(error).split())}") from None
    except ValueError as error:  # protobuf 6 can encode messages that ONNX cannot decode
        raise DecodeError(str(error)) from None
    if skeleton.functions and count_inlined_nodes(skeleton) > _MAX_INLINED_NODES:
        raise InputError(f"its functions stand for more than {_MAX_INLINED_NODES} nodes")
    return notes


def _state_shapes(model: ModelProto) -> ModelProto:
    """Return a model for ONNX's checker, which asks for shapes that onnxruntime does not need.

    Graph outputs without a type, and tensors without a shape among inputs and outputs, as exporters
    write them, get one that nothing else reads.
    """
    bare = [v for v in (*model.graph.input, *model.graph.output) if _lacks_shape(v.type)]
    untyped = [v for v in model.graph.output if v.type.WhichOneof("value") is None]
    if not bare and not untyped:
        return model
    result = copy_without(model, "input", "output")
    result.graph.input.extend(model.graph.input)
    result.graph.output.extend(model.graph.output)
    for value in result.graph.output:
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for value in (*result.graph.input, *result.graph.output):
        if _lacks_shape(value.type):
            value.type.tensor_type.shape.SetInParent()
    return result


def _lacks_shape(kind: TypeProto) -> bool:
    return kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape")
