"""The codegen for any plug-in execution provider of ONNX Runtime, which it is given as a library.

The provider is asked which nodes it takes, and a region with a node that it leaves to others is refused.
What it compiles is stored as an EPContext model if it writes one; else the region's ONNX model is all
that loading needs. onnxruntime with the provider runs either.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, helper

from byoc.codegen import (
    NOTE,
    YES,
    Artifact,
    CompileError,
    Context,
    Executor,
    Fit,
    Region,
    Verdict,
    format_options,
    refuse,
    session_runner,
)

from .provider_session import Answer, PluginProvider, find_device, list_left_nodes, open_session
from .region_compiler import (
    OrtEpOptions,
    check_nodes,
    compile_model,
    describe_library,
    find_provider,
    load_standard_model,
    open_provider,
    read_artifact_options,
    require_all,
    shorten_message,
    write_model,
)

__all__ = ["OrtEp"]


_CONTEXT = "context.bin"
_MODEL = "context.onnx"
_COMPATIBILITY = "compatibility"
_COMPATIBILITY_KEY = "ep_compatibility_info."  # before the provider's name, in a model's metadata
_STATED = (
    *("main_context", "ep_cache_context", "embed_mode", "source", "ep_sdk_version", "partition_name"),
    *("hardware_architecture", "onnx_model_filename", "notes"),
)
"""The attributes of an EPContext node that a `Context` has by other names, or that the bundle writes."""


class OrtEp:
    """Codegen that compiles regions with a plug-in provider of ONNX Runtime, and runs them on it."""

    name = "ort_ep"
    api = 4
    Options = OrtEpOptions
    recompiles = True
    native = True  # it loads a library that the artifact names, and a context may be compiled code
    libraries = ("onnxruntime",)

    def compile(self, region: Region, options: OrtEpOptions) -> Artifact:
        """Return the provider's context if it writes one, and the stamp of the provider and its device.

        Raises CompileError if the provider does not take all of the region, with the nodes that it
        leaves to others, and MissingRuntimeError without onnxruntime, the library, or the device.
        """
        provider, stamp = open_provider(options)
        made = compile_model(load_standard_model(region), provider, options)
        metadata = {**format_options(options), "library": _store_library(options, provider), **stamp}
        if made.context is None:
            told = f"what is compiled is not stored, and loading compiles it: {made.reason}"
            return Artifact({}, {**metadata, **({NOTE: told} if made.reason else {})})
        node = made.context.graph.node[0]
        content = _read_attributes(node)["ep_cache_context"]
        _set_attributes(node, embed_mode=0, ep_cache_context=_CONTEXT)
        entries = {each.key: each.value for each in made.context.metadata_props}
        stated = entries.get(f"{_COMPATIBILITY_KEY}{stamp['provider_name']}", "")
        files = {_CONTEXT: content, _MODEL: made.context.SerializeToString(deterministic=True)}
        return Artifact(files, {**metadata, _COMPATIBILITY: stated})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the context, or the region compiled again if that does not fit.

        Raises CompileError if the provider refuses either, and MissingRuntimeError as `compile` does.
        """
        options = read_artifact_options(artifact.metadata)
        provider, _ = open_provider(options)
        if _MODEL in artifact.files and self.compatible(region, artifact):
            session = _open_context(artifact, provider)
        else:
            model = load_standard_model(region)
            with tempfile.TemporaryDirectory(prefix="byoc-") as name:
                session = _open(write_model(model, Path(name) / "region"), provider)
            require_all(model, Answer(left=list_left_nodes(session, provider)))
        return _make_executor(session)

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether onnxruntime and the provider's library are here; neither is loaded.

        Raises CompileError for metadata of another codegen.
        """
        made = metadata.get("provider_version", "")
        return replace(
            describe_library(read_artifact_options(metadata).library),
            accepts=f"{metadata.get('provider_name', '')} {made}".strip() if _MODEL in files else "",
            machine=metadata.get("provider_device", ""),
        )

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the context fits the provider and the device that are here.

        The provider is asked, if it wrote into the context what it is compatible with and judges that;
        else its version and the device must be those that the context was made with. An artifact
        without a context is compatible. Raises MissingRuntimeError as `compile` does.
        """
        if _MODEL not in artifact.files:
            return YES
        provider, stamp = open_provider(read_artifact_options(artifact.metadata))
        stated = artifact.metadata.get(_COMPATIBILITY, "")
        judged = _ask_compatibility(provider, stated) if stated else None
        if judged is not None:
            return judged
        for name, here in stamp.items():
            made = artifact.metadata.get(name, "nothing")
            if made != here:
                what = name.removeprefix("provider_")
                return refuse(f"the context was made for {what} {made} of the provider, this is {here}")
        return YES

    def cache_key(self, options: OrtEpOptions) -> Mapping[str, str]:
        """Return the library's path, size and time of its last change.

        Raises MissingRuntimeError where there is no such library.
        """
        library = Path(find_provider(options).library)
        status = library.stat()
        return {"library_file": f"{library}, {status.st_size} bytes of {status.st_mtime_ns}"}

    def check(self, model: ModelProto, options: OrtEpOptions) -> Sequence[Verdict]:
        """Return for each node whether the provider takes it, or why not."""
        provider, _ = open_provider(options)
        return check_nodes(model, provider, options)

    def context(self, artifact: Artifact) -> Context:
        """Return the description of the context for another model that contains it.

        Raises CompileError for an artifact without a context.
        """
        if _MODEL not in artifact.files:
            raise CompileError(artifact.metadata.get(NOTE, "the option context is false"))
        node: NodeProto = onnx.load_from_string(artifact.files[_MODEL]).graph.node[0]
        attributes = _read_attributes(node)
        return Context(
            source=attributes["source"].decode(),
            file=_CONTEXT,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            partition=attributes.get("partition_name", b"").decode(),
            sdk_version=attributes.get("ep_sdk_version", b"").decode(),
            hardware=attributes.get("hardware_architecture", b"").decode(),
            more={name: value for name, value in attributes.items() if name not in _STATED},
        )


def _store_library(options: OrtEpOptions, provider: PluginProvider) -> str:
    """Return the library as metadata: a package's name as it is, a file by its whole path."""
    return provider.library if Path(options.library).expanduser().is_file() else options.library


def _open_context(artifact: Artifact, provider: PluginProvider) -> Any:
    """Return a session on an artifact's context, which is put into the model for that."""
    model = onnx.load_from_string(artifact.files[_MODEL])
    _set_attributes(model.graph.node[0], embed_mode=1, ep_cache_context=artifact.files[_CONTEXT])
    session = _open(model.SerializeToString(), provider)
    if left := list_left_nodes(session, provider):
        raise CompileError(f"the provider leaves its context to {left[0][0]}")
    return session


def _open(model: bytes | Path, provider: PluginProvider) -> Any:
    """Return a session of the provider on a model. Raises CompileError."""
    try:
        return open_session(model, provider)
    except Exception as error:  # onnxruntime's own exception types share no base but this
        raise CompileError(f"the provider does not load it: {shorten_message(error)}") from None


def _ask_compatibility(provider: PluginProvider, stated: str) -> Verdict | None:
    """Return the provider's verdict on the compatibility that it stated, None if it gives none."""
    from onnxruntime.capi import onnxruntime_pybind11_state as ort  # noqa: PLC0415 - optional

    try:
        found = ort.get_model_compatibility_for_ep_devices([find_device(provider)], stated)
    except Exception as error:  # onnxruntime's own exception types share no base but this
        return refuse(f"the provider does not say whether it fits: {shorten_message(error)}")
    if found == ort.OrtCompiledModelCompatibility.EP_NOT_APPLICABLE:
        return None
    if found == ort.OrtCompiledModelCompatibility.EP_UNSUPPORTED:
        return refuse(f"the provider does not support the context, which is for {stated}")
    return YES


def _read_attributes(node: NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _set_attributes(node: NodeProto, **values: object) -> None:
    """Set attributes of a node."""
    kept = [each for each in node.attribute if each.name not in values]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())


def _make_executor(session: Any) -> Executor:
    """Return an executor of a session, which may read only some inputs of the region."""
    run = session_runner(session)
    read = [value.name for value in session.get_inputs()]
    return lambda inputs: run({name: inputs[name] for name in read})
