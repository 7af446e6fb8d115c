"""OpenVINO's own answer for small models: does its CPU plug-in take one, and are the numbers right.

It compiles with the properties that the codegen `openvino` gives. What the codegen would store of a
model is imported, too, and has to be right as well. It is asked in processes of its own, since a model
may make it crash or hang; each process imports OpenVINO once, and is replaced when it is lost.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

sys.path[:0] = [str(Path(__file__).parents[1] / "onnx_suite")]

from byoc.codegens.openvino.openvino_blob import EmbeddedWeights, export_blob  # noqa: E402
from byoc.codegens.openvino.openvino_device import (  # noqa: E402
    compile_region_model,
    correct_values,
    find_corrections,
    import_blob,
    state_defaults,
)
from byoc.codegens.openvino.openvino_options import OpenVINOOptions  # noqa: E402
from differing import differs  # noqa: E402 - needs the path

from byoc.codegen import read_region  # noqa: E402

_OPTIONS = OpenVINOOptions(threads=1)
_NARROW = ("bf16", "f8e4m3", "f8e5m2", "f8e8m0", "f4e2m1", "i4", "u4")
_PATIENCE = 60.0  # seconds for a model; a large convolution takes one or two


@dataclass(frozen=True)
class Data:
    """Inputs and expected outputs by name, and how far off outputs may be."""

    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]
    rtol: float
    atol: float


@dataclass(frozen=True)
class Question:
    """A model as bytes, and what it must compute."""

    model: bytes
    data: Sequence[Data]


@dataclass(frozen=True)
class Answer:
    """What became of a model in OpenVINO; `why` is the end of what it said, or what was off.

    `imported` says of a model that is computed right whether it is so, too, when what was compiled is
    exported and imported. Where it is not, the codegen must not store it, else the numbers are wrong.
    """

    kind: Literal["takes", "refuses", "wrong numbers", "crash"]
    why: str = ""
    imported: Literal["", "right", "wrong"] = field(default="", compare=False)

    def __bool__(self) -> bool:
        """Return whether it compiles the model and computes it right."""
        return self.kind == "takes"


def openvino_version() -> str:
    """Return the version that is installed, or nothing."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return ""


def ask(questions: Sequence[Question], workers: int = 2, patience: float = _PATIENCE) -> list[Answer]:
    """Return OpenVINO's answer to each question, in their order."""
    idle: SimpleQueue[_Worker] = SimpleQueue()
    started = [_Worker() for _ in range(workers)]
    for worker in started:
        idle.put(worker)

    def answer(question: Question) -> Answer:
        worker = idle.get()
        try:
            return worker.ask(question, patience)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(workers) as threads:
            return list(threads.map(answer, questions))
    finally:
        for worker in started:
            worker.stop()


class _Worker:
    """A process that answers, started when it is first asked and again after it was lost."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def ask(self, question: Question, patience: float) -> Answer:
        if self._process is None:
            context = get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()  # else its end would not be seen
        try:
            self._pipe.send(question)
            if self._pipe.poll(patience):
                found: Answer = self._pipe.recv()
                return found
            why = f"no answer in {patience:g} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"the process ended with {self._process.exitcode}"
        self.stop()
        return Answer("crash", why)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def serve(pipe: Connection) -> None:
    """Answer questions that come through a pipe until it is closed."""
    import openvino  # noqa: PLC0415 - only here, in a process of its own

    core = openvino.Core()
    while True:
        try:
            question = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(openvino, core, question))


def _answer(openvino: Any, core: Any, question: Question) -> Answer:
    try:
        proto = onnx.load_model_from_string(question.model)
        written = proto.SerializeToString() if state_defaults(proto) else question.model
        model = core.read_model(written)
        correct_values(model, find_corrections(proto))
        compiled = core.compile_model(model, "CPU", _OPTIONS.properties)
    except Exception as error:  # whatever it says is the answer
        return Answer("refuses", _sentence(error))
    try:
        for data in question.data:
            for wrong in _wrong(openvino, compiled, data):
                return Answer("wrong numbers", wrong)
    except Exception as error:
        return Answer("refuses", f"when run: {_sentence(error)}")
    if len(question.model) > _OPTIONS.blob_limit:
        return Answer("takes")  # what is so large is not stored
    wrong = _wrong_when_imported(openvino, compiled, question)
    if wrong and _is_stored(question):
        return Answer("wrong numbers", f"imported: {wrong}", "wrong")
    return Answer("takes", imported="wrong" if wrong else "right")


def _wrong_when_imported(openvino: Any, compiled: Any, question: Question) -> str:
    """Return what is off when the compiled model is exported and imported, nothing if all is right."""
    try:
        imported = import_blob(compiled.export_model().getvalue(), _OPTIONS)
        if imported is None:
            return "it is refused"
        for data in question.data:
            for wrong in _wrong(openvino, imported, data):
                return wrong
    except Exception as error:
        return _sentence(error)
    return ""


def _is_stored(question: Question) -> bool:
    """Return whether the codegen stores what it compiles of a model, as a region."""
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "region.onnx"
        path.write_bytes(question.model)
        try:
            region = read_region(path, "region", "any")
            compiled = compile_region_model(region, _OPTIONS)
            return export_blob(region, *compiled, _OPTIONS, EmbeddedWeights(""))[0] is not None
        except Exception:  # sequences, texts: this reaches no accelerator
            return False


def _wrong(openvino: Any, compiled: Any, data: Data) -> Iterator[str]:
    request = compiled.create_infer_request()
    for position, port in enumerate(compiled.inputs):
        # Where an operator passes on what it is given, the input is called as the output is.
        name = next((name for name in data.inputs if name in port.names), list(data.inputs)[position])
        request.set_tensor(port, _tensor(openvino, data.inputs[name], port.element_type))
    request.infer()
    for name, value in data.expected.items():
        port = next((port for port in compiled.outputs if name in port.names), None)
        if port is None:
            yield f"there is no output '{name}'"
            continue
        actual = _array(request.get_tensor(port), value)
        wrong = differs(value, actual, data.rtol, data.atol)
        if wrong:
            yield f"'{name}' {wrong}"


def _tensor(openvino: Any, value: NDArray[Any], kind: Any) -> Any:
    """Return an array as a tensor; types that numpy itself does not have go as their bytes."""
    if value.dtype.kind in "OSU":
        return openvino.Tensor(value.astype(str))
    if value.dtype.isbuiltin == 1:
        return openvino.Tensor(np.array(value, order="C"))
    plain = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
    if kind.bitwidth == 4:
        low = np.resize(plain.reshape(-1) & 15, value.size + value.size % 2)
        plain = low[0::2] | low[1::2] << 4
    return openvino.Tensor(plain, list(value.shape), kind)


def _array(tensor: Any, expected: Any) -> Any:
    """Return a tensor as an array, of the expected type where numpy itself does not have that."""
    kind = tensor.element_type.get_type_name()
    if kind == "string":
        return tensor.str_data
    if kind not in _NARROW or not isinstance(expected, np.ndarray):
        return np.array(tensor.data)
    if kind not in ("i4", "u4", "f4e2m1"):
        return np.array(tensor.data).view(expected.dtype)
    packed = np.array(tensor.data).view(np.uint8).reshape(-1)
    nibbles = np.stack((packed & 15, packed >> 4), -1).reshape(-1)[: tensor.size].reshape(tensor.shape)
    if kind == "f4e2m1":
        return nibbles.view(expected.dtype)
    return (nibbles.astype(np.int8) - 16 * (kind == "i4" and 1) * (nibbles > 7)).astype(expected.dtype)


def _sentence(error: Exception) -> str:
    """Return the last lines of OpenVINO's message, where it says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Exception from", "at "))]
    return " ".join(said)[-300:] or type(error).__name__
