"""Verifying: the original on plain onnxruntime against the bundle on its executors."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import onnx

from byoc.bundle.read import Bundle
from byoc.errors import InputError
from byoc.graph.load import Model
from byoc.runtime.onnxrt import open_session, run_session, unoptimized
from byoc.runtime.samples import samples_for
from byoc.runtime.session import load_bundle
from byoc.verify.compare import TOLERANCE, OutputError, Verification, accuracy, compare


class NotVerifiableError(InputError):
    """The original cannot be run here, so there is nothing to compare a bundle with; says why."""


def verify(
    bundle: Bundle,
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    original: Model | None = None,
    computed: str = "",
) -> Verification:
    """Return how far the bundle's outputs are from those of the model it was made from.

    `computed` is what is computed in where that is less than the outputs' dtype, such as float16: the
    tolerance is then that of it. `original` is a model of higher precision that `model` was made from:
    what is left of its accuracy is told, and held to nothing. All run on the same inputs, seeded ones unless given. Whatever runs on
    onnxruntime does so with its optimizations off, since they move results. Raises MissingRuntimeError,
    NotVerifiableError when the model does not run, and InputError when the bundle does not.
    """
    try:
        given = samples_for(model) if inputs is None else inputs
        expected = run_plain(model.proto, model, given)
        precise = {} if original is None else run_plain(original.proto, original, given)
    except InputError as error:
        raise NotVerifiableError(f"{model.source}: {error}") from error
    try:
        with unoptimized():
            session = load_bundle(bundle)
        actual = session(given)
    except InputError as error:
        raise InputError(f"the bundle does not run: {error}") from error
    errors = tuple(_tolerated(error, computed) for error in compare(expected, actual))
    source = "" if original is None else original.source
    return Verification(model.source, errors, source, tuple(accuracy(precise, actual)))


def run_plain(proto: onnx.ModelProto, model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what plain onnxruntime gives for a model, its own or one made of it."""
    with unoptimized():
        session = open_session(proto, model.folder)
    return run_session(session, inputs)


def _tolerated(error: OutputError, computed: str) -> OutputError:
    """Return the error of an output whose tolerance is no less than that of what was computed in."""
    if error.dtype not in TOLERANCE or computed not in TOLERANCE:
        return error
    return replace(error, tolerance=max(error.tolerance, TOLERANCE[computed]))
