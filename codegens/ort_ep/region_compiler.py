"""Options of `ort_ep`, the provider that they name, what it takes, and how it compiles, in a process."""

import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx.parser
from onnx import ModelProto, NodeProto
from onnx.inliner import inline_local_functions

from byoc.codegen import (
    INSTALL_HINT,
    MAX_IR,
    YES,
    CompileError,
    Fit,
    InputError,
    MissingRuntimeError,
    Region,
    SingleNode,
    Verdict,
    check_each_node,
    describe_runtime,
    find_library,
    install_command,
    is_qdq_node,
    list_reads,
    node_names,
    read_options,
    refuse,
    shorten_text,
)

from . import provider_session
from .provider_session import Answer, PluginProvider, ProviderError, find_device

LIBRARY_VARIABLE = "BYOC_ORT_EP"

_NO_LIBRARY = (
    "codegen ort_ep needs a provider's library: --codegen-option library=NAME, of an installed package "
    f"such as onnxruntime_ep_openvino or of a shared library's file, or ${LIBRARY_VARIABLE}"
)
_MAX_CHARACTERS = 300  # of a message of onnxruntime or a provider in a sentence
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_PLACE = re.compile(
    r"(?:Check '[^']*' failed at )?\S+\.(?:cc|cpp|h):\d+:?(?: [\w:<>*&, ~]+\([^)]*\)(?: const)?)?\s"
)
"""A file and line of a library's source, and the signature of the function there."""


@dataclass(frozen=True)
class OrtEpOptions:
    """Options of the codegen `ort_ep`.

    `library` is a shared library with a provider, or an installed package that has one. `provider` is
    the provider's name, `device` a type of its devices, and `settings` are its own options. With
    `context` what it compiles is stored where it writes that. `timeout` is the limit for one call of
    the provider's compiler, in seconds.
    """

    library: str = field(
        default_factory=lambda: os.environ.get(LIBRARY_VARIABLE, ""),
        metadata={
            "help": "the provider's shared library, or an installed package with one; "
            f"by default ${LIBRARY_VARIABLE}",
            "executes": True,
        },
    )
    provider: str = field(
        default="", metadata={"help": "the provider's name, where the library has several"}
    )
    device: Literal["cpu", "gpu", "npu"] | None = field(
        default=None,
        metadata={"help": "a type of devices; by default the first that the provider lists"},
    )
    settings: str = field(
        default="",
        metadata={
            "help": "the provider's own options, as NAME=VALUE NAME=VALUE ..., quoted as in a shell",
            "executes": True,  # some name libraries, such as QNN's backend_path
        },
    )
    context: bool = field(
        default=True, metadata={"help": "store what the provider compiles, where it writes that"}
    )
    timeout: float = field(
        default=600.0, metadata={"help": "seconds that a call of the provider's compiler may take"}
    )

    def __post_init__(self) -> None:
        """Raise ValueError for settings that are not NAME=VALUE, and for a timeout of 0 or less."""
        parse_settings(self.settings)
        if not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g} s, but must be more than 0")


def parse_settings(text: str) -> dict[str, str]:
    """Return a provider's own options by name. Raises ValueError where one is not NAME=VALUE."""
    try:
        entries = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"settings cannot be read: {error}") from None
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise ValueError(f"settings has '{shorten_text(entry, 60)}', which is not NAME=VALUE")
        if name in found:
            raise ValueError(f"settings has {name} twice")
        found[name] = value
    return found


def find_provider(options: OrtEpOptions) -> PluginProvider:
    """Return the provider of the options.

    Raises MissingRuntimeError where there is no such library.
    """
    library, registration = _find_library(options.library)
    return PluginProvider(
        str(library),
        registration,
        options.provider,
        options.device or "",
        parse_settings(options.settings),
    )


def describe_library(name: str) -> Fit:
    """Return whether onnxruntime and a provider's library are here, without loading either."""
    if not describe_runtime():
        return Fit.without(INSTALL_HINT)
    if not name:
        return Fit.without(_NO_LIBRARY)
    unknown = "whether the provider has such a device here"
    if Path(name).expanduser().is_file():
        return Fit(f"the provider in {Path(name).name}", unknown=unknown)
    version = find_library(name, name, name.replace("_", "-")) if _is_package(name) else None
    if version is None:
        return Fit.without(f"the provider's library {name} is not there")
    return Fit(f"{name} {version}".strip(), unknown=unknown)


def _is_package(name: str) -> bool:
    return re.fullmatch(r"\w+(\.\w+)*", name) is not None


def _find_library(name: str) -> tuple[Path, str]:
    """Return a library's file, and the name to register it by."""
    if not name:
        raise MissingRuntimeError(_NO_LIBRARY)
    path = Path(name).expanduser()
    if path.is_file():
        return path.absolute(), path.name.partition(".")[0].removeprefix("lib")
    if not _is_package(name):
        raise MissingRuntimeError(f"the provider's library {name} is not there")
    try:
        package = importlib.import_module(name)
    except ImportError:
        raise MissingRuntimeError(
            f"the provider's library {name} is not there: neither a file nor an installed package"
        ) from None
    try:  # two functions that packages of providers have by convention
        return Path(package.get_library_path()).absolute(), str(package.get_ep_name())
    except Exception as error:  # whatever a package may raise, or lack
        raise MissingRuntimeError(
            f"the package {name} names no provider's library: {shorten_message(error)}"
        ) from None


def open_provider(options: OrtEpOptions) -> tuple[PluginProvider, dict[str, str]]:
    """Return the provider of the options, registered in this process, and the stamp of its device.

    Raises MissingRuntimeError where there is no such library, provider or device, with the reason.
    """
    provider = find_provider(options)
    try:
        device = find_device(provider)
    except ImportError:
        raise MissingRuntimeError(
            f"onnxruntime is not installed ({install_command('ort-ep')})"
        ) from None
    except ProviderError as error:
        raise MissingRuntimeError(shorten_message(error)) from None
    return provider, _describe_device(device)


def _describe_device(device: Any) -> dict[str, str]:
    """Return the provider's name and version, and its device: compiled code may depend on them."""
    hardware = device.device
    kind = f"{hardware.type.name} {hardware.vendor} {hardware.vendor_id:04x}:{hardware.device_id:04x}"
    return {
        "provider_name": str(device.ep_name),
        "provider_version": str(device.ep_metadata.get("version", "unknown")),
        "provider_device": kind,
    }


def read_artifact_options(metadata: Mapping[str, str]) -> OrtEpOptions:
    """Return the options that an artifact was compiled with; its library may be another one here.

    An artifact needs the library that it was made by in any case, and only bundles of makers whom the
    user trusts are loaded (`native`). The environment variable goes before what such a bundle says.
    Raises CompileError where the metadata is not this codegen's.
    """
    names = list(OrtEpOptions.__dataclass_fields__)
    try:
        given = {name: metadata[name] for name in names}
        here = os.environ.get(LIBRARY_VARIABLE)
        return read_options(OrtEpOptions, {**given, **({"library": here} if here else {})})
    except (KeyError, InputError) as error:
        raise CompileError(f"its metadata is not of codegen ort_ep: {error}") from None


def shorten_message(error: Exception | str) -> str:
    """Return a message of onnxruntime or of a provider in one line, without its place in a source."""
    text = " ".join(_PLACE.sub("", _CODE.sub("", str(error))).split())
    return shorten_text(text, _MAX_CHARACTERS)


_PREFIX = "byoc"
_NUMBER = re.compile(rf"{_PREFIX}(\d+)(_.*)?")  # onnxruntime adds a suffix to what it rewrites
_SIZE_IN_FILE = 1024  # bytes of a constant from which on it lies in a file beside the model
_WEIGHTS = "weights.bin"
_PROBE = "g (float[1] x) => (float[1] y) { y = Identity(x) }"


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A compiled model: `context` is a model of one EPContext node, None where there is none.

    `reason` is a clause that says why there is none, and empty where none was wanted.
    """

    context: ModelProto | None
    reason: str


def load_standard_model(region: Region) -> ModelProto:
    """Return a region's model in standard operators, its constants in memory.

    What nodes compute of constants is computed, so that no provider has to take these nodes; but not in
    quantized models, since then integers of weights would be floats.
    """
    quantized = any(map(is_qdq_node, _list_all_nodes(region.model)))
    return region.load(inline=True, fold=not quantized)


def _list_all_nodes(model: ModelProto) -> Iterator[NodeProto]:
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def compile_model(model: ModelProto, provider: PluginProvider, options: OrtEpOptions) -> CompiledModel:
    """Compile a model of standard operators whole.

    Raises CompileError with the nodes that the provider leaves to others, or that it refuses alone
    where it fails; MissingRuntimeError where the provider does not work at all.
    """
    with tempfile.TemporaryDirectory(prefix="byoc-") as name:
        folder = Path(name)
        write_model(model, folder / "0")
        (answer,) = _try_models(folder, 1, provider, options, options.context)
        _require_session(model, answer, provider, options)
        require_all(model, answer)
        path = folder / "0" / provider_session.CONTEXT
        context = onnx.load(path) if path.exists() else None
    if not options.context:
        return CompiledModel(None, "")
    if context is None:
        why = shorten_message(answer.context_error)
        return CompiledModel(None, f"the provider writes no context{f' ({why})' if why else ''}")
    nodes = [node.op_type for node in context.graph.node]
    if nodes != ["EPContext"]:
        return CompiledModel(None, f"the provider makes {len(nodes)} nodes of it instead of one context")
    return CompiledModel(context, "")


def _require_session(
    model: ModelProto, answer: Answer, provider: PluginProvider, options: OrtEpOptions
) -> None:
    """Raise CompileError where a model fails, with the nodes that fail alone."""
    if answer.error:
        verdicts = _check_alone(model, provider, options)
        refused = [node for node, yes in zip(model.graph.node, verdicts, strict=True) if not yes]
        why = f"the provider does not compile it: {shorten_message(answer.error)}"
        raise CompileError(why, node_names(refused))


def require_all(model: ModelProto, answer: Answer) -> None:
    """Raise CompileError unless the provider takes all nodes of a model, which it was asked about."""
    left = _find_left(model, answer)
    if left:
        names = node_names(model.graph.node[position] for position in left)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CompileError(f"{_describe_left(model, left[0])}, '{names[0]}'{more}", names)
    strays = _list_strays(answer)
    if strays:
        why = f"the provider leaves {', '.join(strays)}, which onnxruntime put in, to other providers"
        raise CompileError(why)


def _describe_left(model: ModelProto, position: int) -> str:
    return f"the provider leaves {model.graph.node[position].op_type} to onnxruntime"


def _find_left(model: ModelProto, answer: Answer) -> list[int]:
    """Return the positions of a model's nodes that are left to other providers.

    Those that compute with constants alone do not count: onnxruntime computes them anywhere.
    """
    matches = (_NUMBER.fullmatch(name) for _, name, _ in answer.left)
    left = {int(match[1]) for match in matches if match is not None}
    return sorted(left - _find_constant_nodes(model)) if left else []


def _list_strays(answer: Answer) -> list[str]:
    """Return the operators of nodes left to other providers that onnxruntime itself put in."""
    return sorted({op for _, name, op in answer.left if not _NUMBER.fullmatch(name)})


def _find_constant_nodes(model: ModelProto) -> set[int]:
    """Return the positions of nodes that compute with constants alone."""
    known = {tensor.name for tensor in model.graph.initializer}
    found = set()
    for position, node in enumerate(model.graph.node):
        reads = set(list_reads(node))
        if reads <= known and (reads or node.op_type == "Constant"):
            found.add(position)
            known.update(node.output)
    return found


def check_nodes(model: ModelProto, provider: PluginProvider, options: OrtEpOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether the provider takes it.

    The whole model is tried first, since a quantized operator includes its neighbours. If no session of
    it can be made, each node is tried alone. Raises CompileError where the provider takes too long, and
    MissingRuntimeError where it does not work at all.
    """
    standard = inline_local_functions(model) if model.functions else model
    with tempfile.TemporaryDirectory(prefix="byoc-") as name:
        write_model(standard, Path(name) / "0")
        (answer,) = _try_models(Path(name), 1, provider, options, False)
    if answer.error:
        return _check_alone(model, provider, options)
    origins = _find_origins(model, standard)
    verdicts = [YES] * len(model.graph.node)
    for position in reversed(_find_left(standard, answer)):
        verdicts[origins[position]] = refuse(_describe_left(standard, position))
    return verdicts


def _find_origins(model: ModelProto, standard: ModelProto) -> list[int]:
    """Return for each node of the inlined model the position of its origin.

    Both are in the same order, and outputs of composites keep their names.
    """
    makers = {name: at for at, node in enumerate(model.graph.node) for name in node.output if name}
    origins: list[int] = []
    for position, node in enumerate(standard.graph.node):
        at = next((makers[name] for name in node.output if name in makers), None)
        if at is not None:  # those before it without an origin are of the same composite
            origins += [at] * (position + 1 - len(origins))
    last = len(model.graph.node) - 1
    return origins + [last] * (len(standard.graph.node) - len(origins))


def _check_alone(model: ModelProto, provider: PluginProvider, options: OrtEpOptions) -> list[Verdict]:
    """Return for each node of a model's graph whether the provider takes it alone."""
    singles: list[ModelProto] = []
    with tempfile.TemporaryDirectory(prefix="byoc-") as name:

        def save(single: SingleNode) -> int:
            singles.append(single.standard_model())
            write_model(singles[-1], Path(name) / str(len(singles) - 1))
            return len(singles) - 1

        order = check_each_node(model, save)
        answers = _try_models(Path(name), len(singles), provider, options, False)
    verdicts = [_judge(*each) for each in zip(singles, answers, strict=True)]
    return [verdicts[number] for number in order]


def _judge(model: ModelProto, answer: Answer) -> Verdict:
    """Return whether a provider takes a model of one node."""
    if len(_find_constant_nodes(model)) == len(model.graph.node):
        return YES
    if answer.error:
        return refuse(f"the provider does not compile it: {shorten_message(answer.error)}")
    left = _find_left(model, answer)
    return refuse(_describe_left(model, left[0])) if left else YES


def write_model(model: ModelProto, folder: Path) -> Path:
    """Write a model for the provider into a new folder, its large constants beside it; return its path.

    Its nodes have numbers for names, by which answers are read.
    """
    folder.mkdir()
    named = ModelProto()
    named.CopyFrom(model)
    named.ir_version = min(model.ir_version, MAX_IR)
    for number, node in enumerate(named.graph.node):
        node.name = f"{_PREFIX}{number}"
    path = folder / provider_session.MODEL
    onnx.save(named, path, save_as_external_data=True, location=_WEIGHTS, size_threshold=_SIZE_IN_FILE)
    return path


def _try_models(
    folder: Path, count: int, provider: PluginProvider, options: OrtEpOptions, with_context: bool
) -> list[Answer]:
    """Return the answers on the models in the folders 0, 1, ...; what crashes it is an error."""
    settings = {"provider": asdict(provider), "with_context": with_context}
    (folder / provider_session.SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    (folder / provider_session.PROBE).write_bytes(_make_probe())
    answers: list[Answer] = []
    while len(answers) < count:
        code = _run_provider(folder, len(answers), options.timeout)
        while len(answers) < count and (found := _read_answer(folder / str(len(answers)))) is not None:
            answers.append(found)
        if len(answers) < count:
            ended = signal.Signals(-code).name if code < 0 else f"code {code}"
            answers.append(Answer(error=f"its process ended with {ended}"))
    for answer in answers:
        if answer.broken:
            raise MissingRuntimeError(
                f"the provider of {provider.library} does not work: {shorten_message(answer.broken)}"
            )
    return answers


def _make_probe() -> bytes:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{_PROBE}')
    return model.SerializeToString()


def _run_provider(folder: Path, first: int, timeout: float) -> int:
    """Run the script on a folder from a number on, and return its exit code."""
    # -P: a module in the working directory may be a stranger's.
    command = [sys.executable, "-P", str(Path(provider_session.__file__)), str(folder), str(first)]
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"the provider took longer than {timeout:g} s and was stopped"
        raise CompileError(why, lasting=False) from None
    return ran.returncode


def _read_answer(folder: Path) -> Answer | None:
    path = folder / provider_session.ANSWER
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return Answer(**{**found, "left": tuple(map(tuple, found["left"]))})
