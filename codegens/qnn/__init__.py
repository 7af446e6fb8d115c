"""The codegen for Qualcomm's Hexagon NPU, through ONNX Runtime's QNN provider and its compiler.

A region becomes a context, the compiled graph that the NPU loads, and `context.onnx`, a model of one
com.microsoft EPContext node that refers to it; onnxruntime with the provider runs that model. Without an
NPU, as on x86, the provider's library emulates it. The assignment of each node is checked, and a region
with a node on the CPU is refused.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import onnx
from google.protobuf.message import EncodeError
from onnx import ModelProto, NodeProto, helper
from onnx.inliner import inline_local_functions

from byoc.codegen import (
    YES,
    Artifact,
    CompileError,
    Context,
    Executor,
    Fit,
    MissingRuntimeError,
    Region,
    SingleNode,
    Verdict,
    check_each_node,
    describe_missing,
    find_library,
    format_options,
    read_stored_options,
    refuse,
    session_runner,
    shorten_text,
)

from . import qnn_model
from .qnn_model import PROVIDER, ProviderModel, adapt_model, node_assignment, open_session

# Compiling a model in another process, and reading the result.


@dataclass(frozen=True)
class QNNOptions:
    """Options of the codegen `qnn`.

    `htp_arch` is the version of the Hexagon tensor processor, `soc_model` Qualcomm's number of the chip
    (0: any). `optimization` is the qnn_model's `htp_graph_finalization_optimization_mode`. `timeout` is
    the limit for compiling a region, in seconds.
    """

    htp_arch: Literal["68", "69", "73", "75", "79", "81"] = field(
        default="73", metadata={"help": "version of the Hexagon tensor processor to compile for"}
    )
    soc_model: int = field(default=0, metadata={"help": "Qualcomm's number of the chip; 0 is any"})
    optimization: Literal["0", "1", "2", "3"] = field(
        default="0", metadata={"help": "how hard the compiler tries: 3 longest; 0 leaves it to it"}
    )
    timeout: float = field(default=600.0, metadata={"help": "seconds that compiling a region may take"})

    def __post_init__(self) -> None:
        """Raise ValueError for a negative chip number, and for a timeout that is not positive."""
        if self.soc_model < 0:
            raise ValueError(f"soc_model is {self.soc_model}, but must be at least 0")
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g} s, but must be more than 0")

    @property
    def settings(self) -> dict[str, str]:
        """The qnn_model's settings for compiling."""
        return {
            "htp_arch": self.htp_arch,
            "soc_model": str(self.soc_model),
            "htp_graph_finalization_optimization_mode": self.optimization,
            "offload_graph_io_quantization": "0",  # the region's own are the NPU's, too
        }


_MAX_CHARACTERS = 300  # of QNN's message in a sentence
_FAILED = re.compile(
    r"Validation FAILED for \d+ nodes in OrtNodeUnit \([^)]*\) :\s*\n"
    r"(?P<nodes>(?:\s*Operator type: [^\n]*\n)+)\s*REASON : (?P<reason>[^\n]*)"
)
_NAME = re.compile(r"Node name: (\S*) Node index:")
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")


@dataclass(frozen=True, eq=False)
class CompileAnswer:
    """The result of compiling: the model of the context if there is one, and the assignment of nodes.

    `left` has the positions of nodes of the original that the qnn_model leaves to others, each with the
    reason or an empty string. `strays` has the operators of such nodes that onnxruntime inserted.
    `error` is onnxruntime's reason if there is no context; `left` is then from the log, and both may be
    empty.
    """

    standard: ProviderModel
    context: onnx.ModelProto | None
    left: Mapping[int, str]
    strays: Sequence[str]
    error: str

    def require_context(self) -> NodeProto:
        """Return the node of the context. Raises CompileError with the reason if there is none."""
        if self.left:
            given = [position for position, why in self.left.items() if why]
            positions = given or list(self.left)
            names = self.standard.display_names(positions)
            op = self.standard.original.graph.node[positions[0]].op_type
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            why = f": {self.left[positions[0]]}" if given else ", and does not say why"
            text = f"QNN leaves {op} '{names[0]}'{more} to the CPU{why}"
            raise CompileError(shorten_text(text, _MAX_CHARACTERS), names)
        if self.strays:
            raise CompileError(f"QNN leaves {', '.join(self.strays)} of onnxruntime's own to the CPU")
        if self.error or self.context is None:
            raise CompileError(shorten_text(f"QNN does not compile it: {self.error}", _MAX_CHARACTERS))
        nodes = list(self.context.graph.node)
        if [node.op_type for node in nodes] != ["EPContext"]:
            made = ", ".join(sorted({node.op_type for node in nodes})) or "nothing"
            raise CompileError(f"QNN made {len(nodes)} nodes of it ({made}) instead of one context")
        return nodes[0]


def describe_package() -> Fit:
    """Return whether onnxruntime-qnn is installed, without loading it."""
    here = find_library("onnxruntime_qnn", "onnxruntime-qnn")
    if here is None:
        return Fit.without(describe_missing("onnxruntime-qnn", "qnn"))
    driver = f"onnxruntime-qnn {here}".strip()
    return Fit(driver, unknown="which QNN it is; a context of another is compiled again")


def require_package() -> Any:
    """Return the package onnxruntime_qnn. Raises MissingRuntimeError if it cannot be loaded."""
    try:
        qnn_model.provider_devices()
        import onnxruntime_qnn  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingRuntimeError(describe_missing("onnxruntime-qnn", "qnn")) from None
    except Exception as error:  # as in qnn_model
        raise MissingRuntimeError(
            f"onnxruntime-qnn cannot be used here: {shorten_error(error)}"
        ) from None
    return onnxruntime_qnn


def compile_context(model: ProviderModel, options: QNNOptions) -> CompileAnswer:
    """Compile a model with the qnn_model. Raises CompileError if its process fails or hangs."""
    with tempfile.TemporaryDirectory(prefix="byoc-") as name:
        folder = Path(name)
        try:
            (folder / qnn_model.MODEL).write_bytes(model.proto.SerializeToString())
        except (ValueError, EncodeError):
            raise CompileError("it holds more than 2 GB, which a model without files cannot") from None
        (folder / qnn_model.SETTINGS).write_text(json.dumps(options.settings), encoding="utf-8")
        log = _run_provider(folder, options.timeout)
        answer = json.loads((folder / qnn_model.ANSWER).read_text(encoding="utf-8"))
        path = folder / qnn_model.CONTEXT
        context = onnx.load(path) if path.exists() and not answer["error"] else None
    reasons = _refusal_reasons(log)
    others = [(name, op) for who, name, op in answer["nodes"] or () if who != qnn_model.PROVIDER]
    names = [name for name, _ in others]
    if answer["error"]:  # what onnxruntime took apart to offer it again in pieces is in the log alone
        taken = {name for who, name, _ in answer["nodes"] or () if who == qnn_model.PROVIDER}
        names += [name for name in reasons if name not in taken]
    left = _refused_positions(model, names, reasons)
    strays = sorted({op for name, op in others if model.origin_of(name) is None})
    error = _CODE.sub("", answer["error"]) or ("" if context else "it took no node")
    return CompileAnswer(model, context, left, strays, " ".join(error.split()))


def shorten_error(error: Exception) -> str:
    """Return the message of an error of onnxruntime in one line, without its codes."""
    return shorten_text(" ".join(_CODE.sub("", str(error)).split()), _MAX_CHARACTERS)


def _run_provider(folder: Path, timeout: float) -> str:
    """Run the qnn_model on a folder and return its log."""
    log = folder / "log.txt"
    with log.open("wb") as file:
        command = [sys.executable, "-P", str(Path(qnn_model.__file__)), str(folder)]
        try:
            ran = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            why = f"QNN took longer than {timeout:g} s and was stopped"
            raise CompileError(why, lasting=False) from None
    if not (folder / qnn_model.ANSWER).exists():
        why = f"QNN's compiler crashes: its process ended with {ran.returncode}"
        raise CompileError(why, lasting=False)
    return log.read_text(encoding="utf-8", errors="replace")


def _refusal_reasons(log: str) -> dict[str, str]:
    """Return the reasons for refused nodes from the log of the qnn_model, by name of the node."""
    found: dict[str, str] = {}
    for match in _FAILED.finditer(log):
        for name in _NAME.findall(match["nodes"]):
            found[name] = match["reason"].strip().rstrip(".")
    return found


def _refused_positions(
    model: ProviderModel, names: Sequence[str], reasons: Mapping[str, str]
) -> dict[int, str]:
    """Return the positions of the original's nodes among `names`, each with its reason if known."""
    left: dict[int, str] = {}
    for name in names:
        position = model.origin_of(name)
        if position is not None:
            left[position] = left.get(position) or reasons.get(name.partition("_")[0], "")
    return dict(sorted(left.items()))


# Check the nodes of a model with the provider.

_SILENT = "QNN leaves it to the CPU, and does not say why"


def check_nodes(model: ModelProto, options: QNNOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether the provider supports it.

    The whole model is tried first, since a quantized operator includes its neighbours. If it does not
    compile, each node is tried alone. Raises MissingRuntimeError.
    """
    require_package()
    whole = _try_compile(model, options)
    if isinstance(whole, CompileAnswer) and (whole.left or not whole.error):
        left = whole.left
        count = len(model.graph.node)
        return [refuse(left[place] or _SILENT) if place in left else YES for place in range(count)]
    return check_each_node(model, lambda single: _check_node(single, options))


def _check_node(single: SingleNode, options: QNNOptions) -> Verdict:
    answer = _try_compile(single.model, options)
    if isinstance(answer, CompileError):
        return refuse(str(answer))
    try:
        answer.require_context()
    except CompileError as error:
        reasons = [why for why in answer.left.values() if why]
        return refuse(reasons[0] if reasons else str(error))
    return YES


def _try_compile(model: onnx.ModelProto, options: QNNOptions) -> CompileAnswer | CompileError:
    inlined = inline_local_functions(model) if model.functions else model
    try:
        return compile_context(adapt_model(model, inlined), options)
    except CompileError as error:
        return error


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
