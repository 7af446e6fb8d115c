"""byoc's plug-in provider of ONNX Runtime (`provider/`), built and registered.

It runs the regions of `model_ctx.onnx` by drivers in C, in any application. Here Python does what an
application does: register the library, and name drivers as options of a session.
"""

import atexit
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from byoc.errors import InputError, MissingRuntimeError
from byoc.onnxrt._exact_products import computes_in_integers
from byoc.onnxrt._onnxruntime import create_session, import_onnxruntime, make_session_options
from byoc.support import build_shared_library

PROVIDER_NAME = "byoc"
"""The name under which the library is registered, which is the provider's."""

_FLAGS = ("-std=c11", "-fvisibility=hidden")
_OLDEST = (1, 23)  # onnxruntime with the interface of plug-ins that the provider uses
_DISABLED = "optimization.disable_specified_optimizers"
_PROPAGATION = "QDQPropagationTransformer"
PROPAGATION_SETTING = (_DISABLED, _PROPAGATION)
"""The setting by which a session does without an optimizer that moves QuantizeLinear to before a
Transpose or Reshape, to what made its input. The new tensor between them has no type, and EPContext
nodes infer none: onnxruntime refuses the model."""


def get_provider_folder() -> Path:
    """Return the folder with the provider's sources."""
    return Path(__file__).with_name("provider")


def build_provider(library: Path, compiler: str | None = None, flags: Sequence[str] = ()) -> Path:
    """Build the provider as the shared library `library`, and return that path.

    `compiler` is a command, by default that in the environment variable BYOC_CC, or `cc`; `flags` follow
    byoc's own. Raises MissingRuntimeError without a compiler, and InputError with the compiler's
    messages where it fails.
    """
    folder = get_provider_folder()
    include = folder.parents[1] / "codegen" / "drivers" / "include"  # of byoc_driver.h
    files = sorted(folder.glob("*.c"))
    own = (*_FLAGS, *flags, f"-I{include}")
    return build_shared_library("provider", files, library, own, ("dl", "pthread"), compiler)


def register_provider(
    session_options: Any,
    drivers: Mapping[str, str | Path],
    library: str | Path | None = None,
    *,
    model: str | Path | None = None,
) -> None:
    """Let a session run byoc's regions: register the provider, and add it to `SessionOptions`.

    The session does without onnxruntime's QDQPropagationTransformer, and for a `model` with quantized
    activations on the host without all optimizations, which would move its results. `drivers` maps
    codegens to the libraries of their drivers. `library` is that of the provider, by default the
    installed package onnx-byoc-provider's, else one that is built; onnxruntime keeps the first one of a
    process. Raises MissingRuntimeError without an onnxruntime of 1.23 or later, or without a C compiler
    where one is needed; InputError for a library that cannot be registered.
    """
    ort = import_onnxruntime()
    _require_plugins(ort)
    if model is not None and computes_in_integers(onnx.load(model, load_external_data=False)):
        session_options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if not _find_devices(ort):
        path = Path(library) if library is not None else _find_library()
        try:
            ort.register_execution_provider_library(PROVIDER_NAME, str(path.absolute()))
        except Exception as error:  # onnxruntime's own exception types share no base but this
            raise InputError(f"{path}: onnxruntime cannot register it: {error}") from None
    devices = _find_devices(ort)
    if not devices:
        raise InputError("onnxruntime finds no processor here for the provider of byoc")
    options = {f"driver.{name}": str(Path(path).absolute()) for name, path in drivers.items()}
    session_options.add_provider_for_devices(devices[:1], options)
    try:
        disabled = session_options.get_session_config_entry(_DISABLED).split(";")
    except RuntimeError:  # the setting was not made
        disabled = []
    names = dict.fromkeys([*disabled, _PROPAGATION])
    session_options.add_session_config_entry(_DISABLED, ";".join(names))


def open_provider_session(model: Path, drivers: Mapping[str, Path]) -> Any:
    """Return an onnxruntime session for a `model_ctx.onnx` that runs its regions by drivers.

    It has the settings of the context, as `open_session`. Raises as `register_provider`, and InputError
    when onnxruntime or a driver refuses the model.
    """
    ort = import_onnxruntime()
    structure = onnx.load(model, load_external_data=False)
    options = make_session_options(ort, structure)
    register_provider(options, drivers)
    return create_session(ort, model, options, None)


def _require_plugins(ort: Any) -> None:
    numbers = [int(part) for part in ort.__version__.split(".")[:2] if part.isdecimal()]
    if tuple(numbers) < _OLDEST:
        raise MissingRuntimeError(
            f"onnxruntime {ort.__version__} is too old for the provider of byoc, which takes 1.23 "
            "or later"
        )


def _find_devices(ort: Any) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER_NAME]


@cache
def _find_library() -> Path:
    """Return the provider that is installed, else one that is built for this process."""
    try:
        from onnx_byoc_provider import get_library_path  # noqa: PLC0415 - optional
    except ImportError:
        folder = TemporaryDirectory(prefix="byoc-")
        atexit.register(folder.cleanup)
        return build_provider(Path(folder.name) / "libonnx_byoc_provider.so")
    return Path(get_library_path())
