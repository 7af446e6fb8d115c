"""TVM's own answer for small models: does it compile one, and are the numbers right.

It compiles as the worker of the codegen `tvm` does, and runs what it made without linking it.
"""

import contextlib
import os
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import onnx
from helpers import asking
from helpers.asking import Answer, Data, Question

sys.path[:0] = [str(Path(__file__).parents[1] / "onnx_suite")]

from differing import differs  # noqa: E402 - needs the path

_LEVEL = 3
_MOST = 300  # characters of a message


def tvm_version() -> str:
    """Return the version that is installed, or nothing."""
    try:
        return version("apache-tvm")
    except PackageNotFoundError:
        return ""


def serve(pipe: Connection) -> None:
    """Answer questions that come through a pipe until it is closed."""
    os.environ["TVM_NUM_THREADS"] = "1"
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stderr(nothing):
        asking.answer_all(pipe, _answer)


ask = partial(asking.ask, serve=serve)
"""Yield TVM's answers to questions, in their order."""


def _answer(question: Question) -> Answer:
    from byoc.codegens.tvm import find_processor  # noqa: PLC0415
    from byoc.codegens.tvm.compile_worker import FUNCTION, compile_model, relax, tvm  # noqa: PLC0415

    try:
        made = compile_model(onnx.load_model_from_string(question.model), find_processor(), _LEVEL)
        function = relax.VirtualMachine(made, tvm.cpu())[FUNCTION]
    except Exception as error:  # whatever it says is the answer
        return Answer("refuses", _shorten(error))
    try:
        for data in question.data:
            wrong = _find_wrong(function, data)
            if wrong:
                return Answer("wrong numbers", wrong)
    except Exception as error:
        return Answer("wrong numbers", f"when run: {_shorten(error)}")
    return Answer("takes")


def _find_wrong(function: Any, data: Data) -> str:
    """Return what is off of what a function makes of some data, nothing where all is right."""
    from byoc.codegens.tvm import run_function  # noqa: PLC0415

    made = run_function(function, list(data.inputs.values()))
    for (name, value), given in zip(data.expected.items(), made, strict=True):
        wrong = differs(value, given, data.rtol, data.atol)
        if wrong:
            return f"'{name}' {wrong}"
    return ""


def _shorten(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip()[-_MOST:]
