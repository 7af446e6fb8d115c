"""Access to ONNX Runtime's QNN provider; as a script, the process that compiles a model.

The script imports nothing of byoc, which would take longer than compiling a small model. It reads
`model.onnx` and `settings.json`, the provider's settings, in a folder. It writes `context.onnx`, if
there is a context, and `answer.json`, with an error and the assignment of nodes. A context is
reproducible only if it is the first of its process.
"""

import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

PROVIDER = "QNN"
MODEL = "model.onnx"
CONTEXT = "context.onnx"
SETTINGS = "settings.json"
ANSWER = "answer.json"

_VERBOSE, _FATAL_ONLY = 0, 4


@cache
def provider_devices() -> list[Any]:
    """Register the provider, and return its devices with an NPU first.

    Raises ImportError if onnxruntime or onnxruntime-qnn is not installed, and any exception of
    onnxruntime if it cannot load the provider.
    """
    import onnxruntime  # noqa: PLC0415 - optional
    import onnxruntime_qnn  # noqa: PLC0415 - optional

    def there() -> list[Any]:
        return [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]

    if not there():  # else it is registered already
        onnxruntime.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    return sorted(there(), key=lambda device: "NPU" not in str(device.device.type))


def open_session(
    model: bytes, settings: Mapping[str, str], entries: Mapping[str, str], verbose: bool = False
) -> Any:
    """Return a session of the provider on a model, with entries of its configuration.

    With `verbose` it logs to standard error, with the reasons for refused nodes. Raises as `devices`
    does, and any exception of onnxruntime; it does not fall back to the CPU if the provider fails.
    """
    import onnxruntime  # noqa: PLC0415 - optional
    import onnxruntime_qnn  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _VERBOSE if verbose else _FATAL_ONLY
    for key, value in {"session.record_ep_graph_assignment_info": "1", **entries}.items():
        options.add_session_config_entry(key, value)
    backend = {"backend_path": onnxruntime_qnn.get_qnn_htp_path()}
    options.add_provider_for_devices(provider_devices()[:1], {**backend, **settings})
    return onnxruntime.InferenceSession(model, options, enable_fallback=0)


def node_assignment(session: Any) -> list[tuple[str, str, str]]:
    """Return the provider, the name and the operator of every node after optimization."""
    return [
        (part.ep_name, node.name, node.op_type)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
    ]


def main(folder: Path) -> None:
    """Compile the model in a folder."""
    model = (folder / MODEL).read_bytes()
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    entries = {
        "ep.context_enable": "1",
        "ep.context_embed_mode": "1",
        "ep.context_file_path": str(folder / CONTEXT),
    }
    error, nodes = "", None
    try:
        nodes = node_assignment(open_session(model, settings, entries, verbose=True))
    except Exception as raised:  # onnxruntime's own exception types share no base but this
        error = str(raised)
    if error:  # there is no context of several parts, but the assignment can be read
        try:
            nodes = node_assignment(open_session(model, settings, {}))
        except Exception:  # the first error says more
            nodes = None
    (folder / ANSWER).write_text(json.dumps({"error": error, "nodes": nodes}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # skip the unloading of libraries, which may crash
