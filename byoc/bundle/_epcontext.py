"""The partitioned model with com.microsoft EPContext nodes for its regions, for ONNX Runtime.

Attributes and their meaning are those of ONNX Runtime's "EP Context Cache Feature Design"
(onnxruntime.ai/docs/execution-providers/EP-Context-Design.html): `ep_cache_context` is, with
`embed_mode` 0, the path of the file with the context, relative to the model's folder and inside it. A
provider takes the nodes with its own `source`, and loads contexts instead of compiling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, helper

from byoc.bundle._manifest import RegionEntry, entry_to_contract
from byoc.codegen import Artifact, Codegen, Context, ContextSource, read_context
from byoc.errors import ByocError, InputError, get_error_text, must_propagate
from byoc.model import GraphIndex, copy_without, write_type
from byoc.support import describe_failure

CONTEXT_MODEL_FILE = "model_ctx.onnx"
CONTEXT_DOMAIN = "com.microsoft"
CONTEXT_OPERATOR = "EPContext"


def require_contexts(codegens: Mapping[str, Codegen]) -> None:
    """Raise InputError for the first target whose codegen has no contexts for a provider."""
    for target, codegen in codegens.items():
        if not isinstance(codegen, ContextSource):
            raise InputError(
                f"--emit epcontext: no provider of ONNX Runtime loads what codegen {codegen.name} makes "
                f"for {target}"
            )


def write_context_model(
    folder: Path, model: str, regions: Sequence[RegionEntry], codegens: Mapping[str, Codegen]
) -> None:
    """Write `model_ctx.onnx` into the folder of a complete bundle.

    `model` is the file of the partitioned model there; `codegens` maps targets to codegens. Raises
    InputError when a region has no context, or is in the body of an If, Loop or Scan.
    """
    require_contexts(codegens)
    contexts = {entry.name: _read_context(folder, entry, regions, codegens) for entry in regions}
    proto = build_context_model(onnx.load(folder / model, load_external_data=False), regions, contexts)
    (folder / CONTEXT_MODEL_FILE).write_bytes(proto.SerializeToString(deterministic=True))


def build_context_model(
    proto: ModelProto, regions: Sequence[RegionEntry], contexts: Mapping[str, tuple[Context, str]]
) -> ModelProto:
    """Replace each region's call in a partitioned model by an EPContext node.

    `contexts` maps each region to its context, with the region's names of tensors, and to the path of
    the context's file from the model's folder. Functions and weights that only regions need are removed.
    Raises InputError as `write_context_model`.
    """
    entries = {(f"byoc.{entry.target}", entry.name): entry for entry in regions}
    functions = {(each.domain, each.name): each for each in proto.functions}
    result = copy_without(proto, "node", "value_info")
    types = {info.name: info for info in proto.graph.value_info}
    for node in proto.graph.node:
        entry = entries.pop((node.domain, node.op_type), None)
        if entry is None:
            result.graph.node.append(node)
            continue
        function = functions[node.domain, node.op_type]
        names = dict(zip((*function.input, *function.output), (*node.input, *node.output), strict=True))
        result.graph.node.append(_context_node(node, entry, names, *contexts[entry.name]))
        for value in map(entry_to_contract, entry.outputs):
            name = names[value.name]
            types[name] = helper.make_value_info(name, write_type(value.type))
    for entry in entries.values():
        what = f"region {entry.name} stands in the body of an If, Loop or Scan"
        raise InputError(f"--emit epcontext: {what}, where none is written")
    _remove_unused(result, {f"byoc.{entry.target}" for entry in regions})
    made = {name for node in result.graph.node for name in node.output}
    made -= {value.name for value in result.graph.output}
    result.graph.value_info.extend(types[name] for name in sorted(made & types.keys()))
    return result


def _context_node(
    call: NodeProto, entry: RegionEntry, names: Mapping[str, str], context: Context, path: str
) -> NodeProto:
    """Return the EPContext node for a region's call, with a unique name, by which providers find it."""
    attributes = {
        "main_context": 1,
        "embed_mode": 0,
        "ep_cache_context": path,
        "source": context.source,
        "partition_name": context.partition or entry.name,
        "ep_sdk_version": context.sdk_version,
        "hardware_architecture": context.hardware,
        "onnx_model_filename": entry.model,
        "notes": context.notes or f"region {entry.name}, compiled by byoc's codegen {entry.codegen}",
        **context.more,
    }
    node = helper.make_node(
        CONTEXT_OPERATOR,
        [names[name] for name in context.inputs],
        [names[name] for name in context.outputs],
        name=call.name or entry.name,
        domain=CONTEXT_DOMAIN,
        **{key: value for key, value in attributes.items() if value != ""},
    )
    node.metadata_props.extend(call.metadata_props)
    return node


def _read_context(
    folder: Path, entry: RegionEntry, regions: Sequence[RegionEntry], codegens: Mapping[str, Codegen]
) -> tuple[Context, str]:
    """Return a region's context, with the region's names of tensors, and the path of its file."""
    own = next(each for each in regions if each.name == (entry.same_as or entry.name))
    codegen = codegens[entry.target]
    assert isinstance(codegen, ContextSource)
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
    return replace(context, inputs=inputs, outputs=outputs), own.artifact_files[context.file]


def _remove_unused(model: ModelProto, domains: set[str]) -> None:
    """Remove what only the regions needed from a model, and import the domain of the contexts."""
    functions = [each for each in model.functions if each.domain not in domains]
    del model.functions[:]
    model.functions.extend(functions)
    imports = [each for each in model.opset_import if each.domain not in {*domains, CONTEXT_DOMAIN}]
    old = [each for each in model.opset_import if each.domain == CONTEXT_DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend([*imports, *(old or [helper.make_opsetid(CONTEXT_DOMAIN, 1)])])
    index = GraphIndex(model, {})
    kept = [tensor for tensor in model.graph.initializer if index.is_used(tensor.name)]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
