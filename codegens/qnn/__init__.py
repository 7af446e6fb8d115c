"""The codegen for Qualcomm's Hexagon NPU, through ONNX Runtime's QNN provider and its compiler.

A region becomes a context, the compiled graph that the NPU loads, and `context.onnx`, a model of one
com.microsoft EPContext node that refers to it; onnxruntime with the provider runs that model. Without an
NPU, as on x86, the provider's library emulates it. The assignment of each node is checked, and a region
with a node on the CPU is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
from onnx import NodeProto, helper

from byoc.codegen import (
    YES,
    Artifact,
    CompileError,
    Context,
    Executor,
    Fit,
    Region,
    Verdict,
    format_options,
    read_stored_options,
    refuse,
    session_runner,
)

from .context_compiler import (
    QNNOptions,
    check_nodes,
    compile_context,
    describe_package,
    require_package,
    shorten_error,
)
from .qnn_model import PROVIDER, adapt_model, node_assignment, open_session

__all__ = ["QNN"]


_CONTEXT = "context.bin"
_MODEL = "context.onnx"
_TAKEN = ("main_context", "ep_cache_context", "embed_mode", "source", "ep_sdk_version", "partition_name")


class QNN:
    """Codegen for the Hexagon tensor processor, which runs regions on it or on its emulator."""

    name = "qnn"
    api = 4
    Options = QNNOptions
    recompiles = True
    native = True  # compiled code for the NPU, and a model that may name files
    libraries = ("onnxruntime-qnn", "onnxruntime")

    def compile(self, region: Region, options: QNNOptions) -> Artifact:
        """Return the context, and the model of one node that runs it.

        Raises CompileError if QNN refuses the region, with the nodes that it leaves to the CPU, and
        MissingRuntimeError without onnxruntime-qnn.
        """
        package = require_package()
        made = compile_context(adapt_model(region.model, region.load(inline=True)), options)
        node = made.require_context()
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        content = attributes["ep_cache_context"]
        assert made.context is not None
        _set_attributes(made.context.graph.node[0], embed_mode=0, ep_cache_context=_CONTEXT)
        files = {_CONTEXT: content, _MODEL: made.context.SerializeToString(deterministic=True)}
        sdk = package.build_and_package_info.qnn_version
        return Artifact(files, {**format_options(options), "qnn": sdk})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        """Return a function that runs the context, compiled again if it is for another QNN.

        Raises CompileError if the provider refuses it, or as `compile` does.
        """
        if not self.compatible(region, artifact):
            artifact = self.compile(region, read_stored_options(QNNOptions, artifact.metadata))
        model = onnx.load_from_string(artifact.files[_MODEL])
        _set_attributes(model.graph.node[0], embed_mode=1, ep_cache_context=artifact.files[_CONTEXT])
        require_package()
        try:
            session = open_session(model.SerializeToString(), {}, {})
        except Exception as error:  # onnxruntime's own exception types share no base but this
            raise CompileError(f"QNN does not load its context: {shorten_error(error)}") from None
        others = {who for who, _, _ in node_assignment(session)} - {PROVIDER}
        if others:
            raise CompileError(f"QNN leaves its context to {', '.join(sorted(others))}")
        return _make_executor(session)

    def find_fit(self, files: Sequence[str], metadata: Mapping[str, str]) -> Fit:
        """Return whether onnxruntime-qnn is installed; of which QNN it is, its library alone knows."""
        made = metadata.get("qnn", "")
        machine = f"Hexagon v{metadata['htp_arch']}" if "htp_arch" in metadata else ""
        return replace(describe_package(), accepts=f"QNN {made}" if made else "", machine=machine)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        """Return whether the context was made by the installed QNN. Raises MissingRuntimeError."""
        made = artifact.metadata.get("qnn", "nothing")
        here = require_package().build_and_package_info.qnn_version
        return (
            YES if made == here else refuse(f"the context was made for QNN {made}, but this is {here}")
        )

    def check(self, model: onnx.ModelProto, options: QNNOptions) -> Sequence[Verdict]:
        """Return for each node whether the provider supports it, or the provider's reason."""
        return check_nodes(model, options)

    def context(self, artifact: Artifact) -> Context:
        """Return the description of the context for another model that contains it."""
        node: NodeProto = onnx.load_from_string(artifact.files[_MODEL]).graph.node[0]
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        more = {name: value for name, value in attributes.items() if name not in _TAKEN}
        return Context(
            source=_decode_text(attributes["source"]),
            file=_CONTEXT,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            partition=_decode_text(attributes.get("partition_name", b"")),
            sdk_version=_decode_text(attributes.get("ep_sdk_version", b"")),
            hardware=f"Hexagon v{artifact.metadata['htp_arch']}",
            more=more,
        )


def _decode_text(value: bytes) -> str:
    return value.decode()


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
