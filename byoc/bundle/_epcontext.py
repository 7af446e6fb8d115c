"""The partitioned model with com.microsoft EPContext nodes for its regions, for ONNX Runtime.

Attributes and their meaning are those of ONNX Runtime's "EP Context Cache Feature Design"
(onnxruntime.ai/docs/execution-providers/EP-Context-Design.html): `ep_cache_context` is, with
`embed_mode` 0, the path of the file with the context, relative to the model's folder and inside it. A
provider takes the nodes with its own `source`, and loads contexts instead of compiling.
"""

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from byoc._dataclasses import dataclass
from byoc.boundary.contracts import TensorContract
from byoc.bundle._manifest import RegionEntry, VariantEntry, describe_file, entry_to_contract
from byoc.codegen import (
    Artifact,
    Codegen,
    Context,
    ContextSource,
    has_driver,
    has_model_driver,
    read_context,
)
from byoc.errors import ByocError, InputError, get_error_text, must_propagate
from byoc.model import (
    DTYPE_NUMBERS,
    EditableGraph,
    GraphIndex,
    build_node,
    count_bits,
    walk_tensors,
    write_raw_bytes,
    write_type,
)
from byoc.onnxrt import use_equal_types
from byoc.support import describe_failure

# The description of a region in an EPContext node of byoc's own provider: what a driver is told of
# it.
#
# It is read in C (byoc/onnxrt/provider/region_description.c), so it is no JSON; docs/epcontext.md
# has its bytes. All numbers are little-endian.

MAGIC = b"BYOCREGN"
VERSION = 1  # of the layout in `byoc_driver.h`; drivers refuse another
_HEADER = struct.Struct("<8s6I")  # magic, version, bytes in all, files, texts, inputs, outputs


MODEL_TEXT = "byoc.model"
"""The text by which a driver that is made of regions' models knows the model of a region."""


def hash_region_model(folder: Path, entry: RegionEntry) -> str:
    """Return the SHA-256, in hex, of a region's model in a bundle's folder and of its constants."""
    path = folder / entry.model
    content = path.read_bytes()
    digest = hashlib.sha256(content)
    for tensor in walk_tensors(onnx.load_from_string(content)):
        if tensor.data_location == TensorProto.EXTERNAL:
            write_raw_bytes(tensor, path.parent, digest.update)
    return digest.hexdigest()


def describe_region(folder: Path, entry: RegionEntry, of_model: bool = False) -> bytes:
    """Return the description of a region whose artifact is in a bundle's folder.

    With `of_model` it has `MODEL_TEXT`, by which a driver that is made of regions' models finds the
    region. Raises InputError for a tensor that does not cross to a driver: of extents that are not all
    known, of text, or of elements of less than a byte.
    """
    inputs = [_encode_tensor(entry.name, each) for each in map(entry_to_contract, entry.inputs)]
    outputs = [_encode_tensor(entry.name, each) for each in map(entry_to_contract, entry.outputs)]
    files = [_encode_file(folder, name, path) for name, path in sorted(entry.artifact_files.items())]
    made = {MODEL_TEXT: hash_region_model(folder, entry)} if of_model else {}
    metadata = sorted({**entry.artifact_metadata, **made}.items())
    texts = [_encode_text(key) + _encode_text(value) for key, value in metadata]
    names = _encode_text(entry.codegen) + _encode_text(entry.name)
    content = b"".join([names, *files, *texts, *inputs, *outputs])
    counts = (len(files), len(texts), len(inputs), len(outputs))
    return _HEADER.pack(MAGIC, VERSION, _HEADER.size + len(content), *counts) + content


def _encode_file(folder: Path, name: str, path: str) -> bytes:
    found = describe_file(folder / path)
    content = struct.pack("<Q", found.bytes) + bytes.fromhex(found.sha256)
    return _encode_text(name) + _encode_text(path) + content


def _encode_tensor(region: str, contract: TensorContract) -> bytes:
    tensor = contract.type
    what = f"region {region}: '{contract.name}'"
    if tensor.shape is None or tensor.elements is None:
        raise InputError(f"{what}: its extents are not all known, which a driver needs")
    if tensor.dtype == "string" or count_bits(tensor.dtype) % 8:
        raise InputError(f"{what}: {tensor.dtype} does not cross to a driver")
    shape = [extent for extent in tensor.shape if isinstance(extent, int)]
    numbers = struct.pack(f"<2I{len(shape)}q", DTYPE_NUMBERS[tensor.dtype], len(shape), *shape)
    return _encode_text(contract.name) + numbers


def _encode_text(text: str) -> bytes:
    """Return a text, its length before it and a zero behind it. Raises InputError for a zero inside."""
    content = text.encode()
    if b"\0" in content:
        raise InputError(f"a text of an artifact has a zero byte: {text[:40]!r}")
    return struct.pack("<I", len(content)) + content + b"\0"


CONTEXT_MODEL_FILE = "model_ctx.onnx"
CONTEXT_DOMAIN = "com.microsoft"
CONTEXT_OPERATOR = "EPContext"
OWN_SOURCE = "byoc"
"""The `source` of nodes that byoc's own provider takes, and runs by a driver."""


@dataclass(frozen=True, eq=False)
class NodeContext:
    """The contents of a region's EPContext node: attributes, and the region's tensors in its order.

    With `in_bodies` the node may stand in the body of an If, Loop or Scan.
    """

    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_bodies: bool = False


def require_contexts(codegens: Mapping[str, Codegen]) -> None:
    """Raise InputError for the first target for whose codegen there is no provider."""
    for target, codegen in codegens.items():
        drivers = has_driver(codegen) or has_model_driver(codegen)
        if not isinstance(codegen, ContextSource) and not drivers:
            raise InputError(
                f"--emit epcontext: no provider of ONNX Runtime loads what codegen {codegen.name} makes "
                f"for {target}: it has neither a `context` nor a `driver`"
            )


def write_context_model(
    folder: Path,
    variant: VariantEntry,
    regions: Sequence[RegionEntry],
    codegens: Mapping[str, Codegen],
) -> None:
    """Write the `model_ctx.onnx` of a variant into the folder of a complete bundle.

    The arguments are those of `make_context_model`, and it raises as that.
    """
    proto = make_context_model(folder, variant, regions, codegens)
    path = folder / variant.variant.name_file(CONTEXT_MODEL_FILE)
    path.write_bytes(proto.SerializeToString(deterministic=True))


def make_context_model(
    folder: Path,
    variant: VariantEntry,
    regions: Sequence[RegionEntry],
    codegens: Mapping[str, Codegen],
) -> ModelProto:
    """Return the model of a variant, in the folder of its bundle, with EPContext nodes for its regions.

    `regions` are those of all variants; `codegens` maps targets to codegens. Raises InputError when a
    region has no context, or is where its provider does not take it.
    """
    require_contexts(codegens)
    own = variant.regions
    contexts = {entry.name: _make_context(folder, entry, regions, codegens) for entry in own}
    partitioned = onnx.load(folder / variant.model, load_external_data=False)
    return use_equal_types(build_context_model(partitioned, own, contexts), folder)


def build_context_model(
    proto: ModelProto, regions: Sequence[RegionEntry], contexts: Mapping[str, NodeContext]
) -> ModelProto:
    """Replace each region's call in a partitioned model by an EPContext node.

    `contexts` maps each region to its context, with the region's names of tensors. Functions and weights
    that only regions need are removed. Raises InputError as `write_context_model`.
    """
    result = ModelProto()
    result.CopyFrom(proto)
    functions = {(each.domain, each.name): each for each in proto.functions}
    left = {(f"byoc.{entry.target}", entry.name): entry for entry in regions}
    for graph, is_body in _walk_graphs(result.graph, False):
        types = {info.name: info for info in graph.value_info}
        for number, node in enumerate(graph.node):
            entry = left.pop((node.domain, node.op_type), None)
            if entry is None:
                continue
            context = contexts[entry.name]
            if is_body and not context.in_bodies:
                what = f"region {entry.name} stands in the body of an If, Loop or Scan"
                raise InputError(f"--emit epcontext: {what}, where none is written")
            function = functions[node.domain, node.op_type]
            names = dict(
                zip((*function.input, *function.output), (*node.input, *node.output), strict=True)
            )
            graph.node[number].CopyFrom(_context_node(node, entry, names, context))
            for value in map(entry_to_contract, entry.outputs):
                name = names[value.name]
                types[name] = helper.make_value_info(name, write_type(value.type))
        _replace_types(graph, types)
    if left:
        name = next(iter(left.values())).name
        raise InputError(f"--emit epcontext: region {name} stands in a function, where none is written")
    _remove_regions(result, {f"byoc.{entry.target}" for entry in regions})
    return result


def _walk_graphs(graph: GraphProto, is_body: bool) -> Iterator[tuple[GraphProto, bool]]:
    """Yield a graph and the bodies in it, each with whether it is one."""
    yield graph, is_body
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _walk_graphs(attribute.g, True)


def _replace_types(graph: GraphProto, types: Mapping[str, ValueInfoProto]) -> None:
    """State the types of what a graph's nodes make, as far as they are known.

    An output keeps its own, unless it is wrong: onnxruntime warns of that, a provider refuses it.
    """
    made = {name for node in graph.node for name in node.output}
    for output in graph.output:
        if output.name in made & types.keys() and _contradict(output, types[output.name]):
            output.type.CopyFrom(types[output.name].type)
    made -= {value.name for value in graph.output}
    del graph.value_info[:]
    graph.value_info.extend(types[name] for name in sorted(made & types.keys()))


def _contradict(one: ValueInfoProto, other: ValueInfoProto) -> bool:
    """Return whether the shapes that two infos state of a tensor cannot both be."""
    shapes = [value.type.tensor_type.shape.dim for value in (one, other)]
    if not one.type.tensor_type.HasField("shape"):
        return False
    return len(shapes[0]) != len(shapes[1]) or any(
        first.dim_value != second.dim_value
        for first, second in zip(*shapes, strict=True)
        if first.HasField("dim_value") and second.HasField("dim_value")
    )


def _context_node(
    call: NodeProto, entry: RegionEntry, names: Mapping[str, str], context: NodeContext
) -> NodeProto:
    """Return the EPContext node for a region's call, with a unique name, by which providers find it."""
    attributes = {
        "main_context": 1,
        "partition_name": entry.name,
        "onnx_model_filename": entry.model,
        "notes": f"region {entry.name}, compiled by byoc's codegen {entry.codegen}",
        **{key: value for key, value in context.attributes.items() if value != ""},
    }
    node = build_node(
        CONTEXT_OPERATOR,
        [names[name] for name in context.inputs],
        [names[name] for name in context.outputs],
        call.name or entry.name,
        CONTEXT_DOMAIN,
        **attributes,
    )
    node.metadata_props.extend(call.metadata_props)
    return node


def _make_context(
    folder: Path, entry: RegionEntry, regions: Sequence[RegionEntry], codegens: Mapping[str, Codegen]
) -> NodeContext:
    """Return a region's context: that of its codegen's provider, else what byoc's own is told of it."""
    own = next(each for each in regions if each.name == (entry.same_as or entry.name))
    codegen = codegens[entry.target]
    if isinstance(codegen, ContextSource):
        return _read_context(folder, entry, own, codegen)
    try:
        description = describe_region(folder, own, has_model_driver(codegen))
    except InputError as error:
        raise InputError(f"--emit epcontext: {error}") from None
    inputs, outputs = (tuple(each.name for each in side) for side in (entry.inputs, entry.outputs))
    attributes = {"source": OWN_SOURCE, "embed_mode": 1, "ep_cache_context": description.hex()}
    return NodeContext(attributes, inputs, outputs, in_bodies=True)


def _read_context(
    folder: Path, entry: RegionEntry, own: RegionEntry, codegen: ContextSource
) -> NodeContext:
    """Return a region's context as its codegen describes it; `own` has the artifact."""
    files = {name: (folder / path).read_bytes() for name, path in own.artifact_files.items()}
    who = f"--emit epcontext: codegen {entry.codegen}: {own.name}"
    try:
        context = read_context(codegen, Artifact(files, own.artifact_metadata))
    except ByocError as error:
        raise InputError(f"{who}: {get_error_text(error)}") from error
    except BaseException as error:  # a plug-in can fail in any way
        if must_propagate(error):
            raise
        raise InputError(f"{who}: context failed with {describe_failure(error)}") from error
    if context.file not in files:
        raise InputError(f"codegen {entry.codegen}: the artifact of {own.name} has no '{context.file}'")
    theirs = [value.name for value in (*own.inputs, *own.outputs)]
    ours = [value.name for value in (*entry.inputs, *entry.outputs)]
    names = dict(zip(theirs, ours, strict=True))
    unknown = {*context.inputs, *context.outputs} - names.keys()
    if unknown:
        raise InputError(f"codegen {entry.codegen}: {own.name} has no tensor '{min(unknown)}'")
    inputs, outputs = (tuple(names[name] for name in side) for side in (context.inputs, context.outputs))
    return NodeContext(_list_attributes(context, own.artifact_files[context.file]), inputs, outputs)


def _list_attributes(context: Context, path: str) -> Mapping[str, Any]:
    return {
        "embed_mode": 0,
        "ep_cache_context": path,
        "source": context.source,
        "partition_name": context.partition,
        "ep_sdk_version": context.sdk_version,
        "hardware_architecture": context.hardware,
        "notes": context.notes,
        **context.more,
    }


def _remove_regions(model: ModelProto, domains: set[str]) -> None:
    """Remove what only the regions needed from a model, and import the domain of the contexts."""
    functions = [each for each in model.functions if each.domain not in domains]
    del model.functions[:]
    model.functions.extend(functions)
    imports = [each for each in model.opset_import if each.domain not in {*domains, CONTEXT_DOMAIN}]
    old = [each for each in model.opset_import if each.domain == CONTEXT_DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend([*imports, *(old or [helper.make_opsetid(CONTEXT_DOMAIN, 1)])])
    graph = EditableGraph.of_index(GraphIndex(model, {}))
    graph.write_stored(model.graph, graph.list_unread_stored())
