"""OpenVINO's own answer for small models: does its CPU plug-in take one, and are the numbers right.

It compiles with the properties that the codegen `openvino` gives. What the codegen would store of a
model is imported, too, and has to be right as well.
"""

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from helpers import asking
from helpers.asking import Answer, Data, Question
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


def openvino_version() -> str:
    """Return the version that is installed, or nothing."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return ""


def serve(pipe: Connection) -> None:
    """Answer questions that come through a pipe until it is closed."""
    import openvino  # noqa: PLC0415 - only here, in a process of its own

    core = openvino.Core()
    asking.answer_all(pipe, lambda question: _answer(openvino, core, question))


ask = partial(asking.ask, serve=serve)
"""Return OpenVINO's answers to questions, in their order."""


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
