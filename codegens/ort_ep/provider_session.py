"""Sessions of ONNX Runtime with a plug-in provider; as a script, the process that tries models.

The script imports nothing of byoc, which would take longer than compiling a small model. A provider's
compiler may crash, so `python provider_session.py FOLDER FIRST` tries the models in the folders FIRST,
FIRST + 1, ... of FOLDER: it reads `model.onnx`, writes `context.onnx` if the provider writes a context,
and then `answer.json`, an `Answer`. `settings.json` in FOLDER has the provider (`PluginProvider`) and
whether contexts are wanted, `probe.onnx` is a model that any provider that works can be asked about.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

MODEL = "model.onnx"
CONTEXT = "context.onnx"
SETTINGS = "settings.json"
ANSWER = "answer.json"
PROBE = "probe.onnx"

_OLDEST = (1, 24, 3)  # version of onnxruntime whose devices say which library they are of
_FATAL_ONLY = 4
_LIBRARY_KEY = "library_path"  # onnxruntime's own entry in the metadata of a device


class ProviderError(Exception):
    """A provider cannot be used on this machine, for the reason in the message."""


@dataclass(frozen=True)
class PluginProvider:
    """A plug-in provider: `library` is the path of its shared library.

    `name` is the provider's, and empty if the library has only one. The library is registered as
    `registration` where there is no name; many providers call themselves what they are registered as.
    `device` is a type of devices, `cpu`, `gpu` or `npu`, or empty for the first device. `settings` are
    the provider's own options.
    """

    library: str
    registration: str
    name: str
    device: str
    settings: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """The provider's answer on a model.

    `error` is why there is no session. Of one without an error, `left` has the provider, the name and
    the operator of each node that onnxruntime assigned to another provider. `context_error` is why there
    is no context where one was wanted. With `broken` not even a session of another model can be made.
    """

    error: str = ""
    context_error: str = ""
    broken: str = ""
    left: tuple[tuple[str, str, str], ...] = ()


def find_device(provider: PluginProvider) -> Any:
    """Register a provider's library and return the device to use.

    Raises ImportError without onnxruntime, and ProviderError with a sentence if onnxruntime is too old,
    the library cannot be registered, has no such provider, or lists no such device on this machine.
    """
    devices = _find_devices(provider)
    wanted = [device for device in devices if provider.device in ("", _type_name(device))]
    if not wanted:
        kinds = ", ".join(sorted({_type_name(device) for device in devices}))
        raise ProviderError(
            f"{provider.library}: its provider has no device of type {provider.device} here, "
            f"only of: {kinds}"
        )
    return wanted[0]


def _find_devices(provider: PluginProvider) -> list[Any]:
    """Return the devices of a provider, at least one."""
    import onnxruntime  # noqa: PLC0415 - optional

    numbers = (int(part) for part in onnxruntime.__version__.split(".")[:3] if part.isdecimal())
    if tuple(numbers) < _OLDEST:
        raise ProviderError(
            f"onnxruntime {onnxruntime.__version__} is too old for codegen ort_ep, which takes "
            f"{'.'.join(map(str, _OLDEST))} or later (pip install -U onnxruntime)"
        )

    def list_devices() -> list[Any]:
        everything = onnxruntime.get_ep_devices()
        return [each for each in everything if each.ep_metadata.get(_LIBRARY_KEY) == provider.library]

    def list_named() -> list[Any]:
        return [each for each in list_devices() if provider.name in ("", each.ep_name)]

    if not list_named():  # else it is registered already
        _register(provider.name or provider.registration, provider.library)
    if list_named():
        return list_named()
    others = sorted({device.ep_name for device in list_devices()})
    if others:
        raise ProviderError(
            f"{provider.library} has no provider {provider.name}, but {', '.join(others)}"
        )
    seen = {f"{_type_name(device)} ({device.device.vendor})" for device in onnxruntime.get_ep_devices()}
    raise ProviderError(
        f"{provider.library}: its provider lists no device on this machine, "
        f"of which onnxruntime sees: {', '.join(sorted(seen))}"
    )


@cache
def _register(registration: str, library: str) -> None:
    """Register a library, once in a process: onnxruntime refuses a second time."""
    import onnxruntime  # noqa: PLC0415 - optional

    try:
        onnxruntime.register_execution_provider_library(registration, library)
    except Exception as error:  # onnxruntime's own exception types share no base but this
        raise ProviderError(f"{library}: onnxruntime cannot register it: {error}") from None


def _type_name(device: Any) -> str:
    return str(device.device.type.name).lower()


def open_session(
    model: bytes | Path, provider: PluginProvider, entries: Mapping[str, str] | None = None
) -> Any:
    """Return a session of a provider on a model, with further entries of its configuration.

    onnxruntime does not optimize the model, so that nodes keep their names and the provider sees what
    byoc has placed. Raises as `find_device` does, and any exception of onnxruntime; it does not fall
    back to the CPU if the provider fails.
    """
    import onnxruntime  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in {"session.record_ep_graph_assignment_info": "1", **(entries or {})}.items():
        options.add_session_config_entry(key, value)
    options.add_provider_for_devices([find_device(provider)], dict(provider.settings))
    given = os.fspath(model) if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(given, options, enable_fallback=0)


def list_left_nodes(session: Any, provider: PluginProvider) -> tuple[tuple[str, str, str], ...]:
    """Return the nodes on other providers: the other's name, the node's, and its operator."""
    own = find_device(provider).ep_name
    return tuple(
        (part.ep_name, node.name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if part.ep_name != own
    )


def try_model(folder: Path, provider: PluginProvider, with_context: bool, probe: Path) -> Answer:
    """Try the model in a folder. If it fails, the model `probe` tells whether any would work."""
    context_error = ""
    if with_context:
        entries = {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "1",
            "ep.context_file_path": str(folder / CONTEXT),
        }
        try:
            session = open_session(folder / MODEL, provider, entries)
            return Answer(left=list_left_nodes(session, provider))
        except Exception as error:  # onnxruntime's own exception types share no base but this
            context_error = str(error)
            (folder / CONTEXT).unlink(missing_ok=True)
    try:
        session = open_session(folder / MODEL, provider)
        return Answer(context_error=context_error, left=list_left_nodes(session, provider))
    except Exception as error:  # as above
        failed = str(error)
    try:
        open_session(probe, provider)
    except Exception as error:  # as above
        return Answer(failed, context_error, broken=str(error))
    return Answer(failed, context_error)


def main(folder: Path, first: int) -> None:
    """Try the models in a folder, from number `first`."""
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    provider = PluginProvider(**settings["provider"])
    number = first
    while (own := folder / str(number)).exists():
        answer = try_model(own, provider, settings["with_context"], folder / PROBE)
        (own / ANSWER).write_text(json.dumps(asdict(answer)), encoding="utf-8")
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skip the unloading of libraries, which may crash
