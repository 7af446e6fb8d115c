"""Loading of models: from a file to a checked, sorted and typed `Model`, or to one clear sentence.

The user's protobuf stays as it is, except for fixed dimensions, topological order, negative dimensions,
names that a body or a node shares with what is around it, functions with the names of operators, and
onnxruntime's own QuantizeLinear and DequantizeLinear, which become ONNX's. Checks and shape
inference run on a skeleton without the weights: their cost does not depend on the size of the weights.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import ModelProto, NodeProto, TensorProto, TypeProto

from byoc.errors import InputError
from byoc.model._dimensions import NOTHING_OPEN, Dimensions, PlannedSizes, fix_dims, name_open_dims
from byoc.model._graph_index import GraphIndex
from byoc.model._heavy_weights import HeavyWeights, find_non_text, make_skeleton, replace_weights
from byoc.model._node_kinds import NodeRecords, list_distinct_nodes, normalize_qdq
from byoc.model._tensor_data import check_tensor
from byoc.model._unique_names import make_names_unique
from byoc.model._vendor_operators import hide_runtime_operators
from byoc.model._walk import copy_without, describe_node, sort_nodes, walk_distinct_tensors, walk_nodes
from byoc.model.inference import (
    InferenceResult,
    check_nodes,
    clear_negative_dims,
    count_inlined_nodes,
    infer_checked_types,
)

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
            raise InputError(f"{path}: no such file")
        if path.is_dir():
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
