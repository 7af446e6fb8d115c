"""Ask a provider what it takes of a model, and have it compile the model, in a process of its own."""

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx
import onnx.parser
from onnx import ModelProto, NodeProto
from onnx.inliner import inline_local_functions

from byoc.codegen import (
    MAX_IR,
    YES,
    CompileError,
    MissingRuntimeError,
    Region,
    SingleNode,
    Verdict,
    check_each_node,
    is_qdq_node,
    list_reads,
    node_names,
    refuse,
)

from . import provider_session
from .provider_options import OrtEpOptions, shorten_message
from .provider_session import Answer, PluginProvider

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
