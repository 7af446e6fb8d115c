"""Running a pass on a copy of a model: in this process, or in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import ModelProto

from byoc.errors import PluginFailedError, describe_error, must_propagate
from byoc.passes._pass_plugins import LoadedPass
from byoc.support import describe_exit

MODEL_FILE, RESULT_FILE = "model.onnx", "result.onnx"
REQUEST_FILE, FAILURE_FILE = "request.json", "failure.txt"
_MODULE = "byoc.passes._pass_process"
_MOST_CHARACTERS = 2000


class PassFailedError(PluginFailedError):
    """A pass raised an exception, or its process died; the message does not name the pass."""


@dataclass(frozen=True)
class PassProcess:
    """The request to run passes in processes of their own, for at most `seconds` each, if given."""

    seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def apply_pass(asked: LoadedPass, model: ModelProto, process: PassProcess | None = None) -> ModelProto:
    """Run a pass on a model, which it may edit; return the rewritten one, weights in memory.

    Raises PassFailedError when it raises, returns no model, or its process dies or takes too long.
    """
    if process is not None:
        return _run_in_process(asked, model, process)
    try:
        made = asked.implementation.run(model)
    except (Exception, SystemExit) as error:  # it can fail in any way
        if must_propagate(error) and not isinstance(error, Exception):
            raise
        raise PassFailedError(f"failed with {describe_error(error)}") from error
    if not isinstance(made, ModelProto):
        raise PassFailedError(f"returned a {type(made).__name__}, and not a model")
    return made


def _run_in_process(asked: LoadedPass, model: ModelProto, process: PassProcess) -> ModelProto:
    with TemporaryDirectory(prefix="byoc-pass-") as name:
        folder = Path(name)
        onnx.save(model, folder / MODEL_FILE, save_as_external_data=True, location="model.bin")
        request = {"name": asked.name, "options": asked.options}
        (folder / REQUEST_FILE).write_text(json.dumps(request), encoding="utf-8")
        code = _wait_for_process(folder, process)
        failure = folder / FAILURE_FILE
        if failure.is_file():
            raise PassFailedError(failure.read_text(encoding="utf-8")[:_MOST_CHARACTERS])
        if code:
            raise PassFailedError(f"failed: its process {describe_exit(code)}")
        try:
            return onnx.load(folder / RESULT_FILE)
        except Exception as error:  # whatever it left there
            raise PassFailedError(f"left no model: {describe_error(error)}") from None


def _wait_for_process(folder: Path, process: PassProcess) -> int:
    """Run the process to its end, and end all that it started; return its exit code.

    It ends when this one does: also when this one is killed, since the kernel then closes a pipe.
    """
    path = os.pathsep.join(dict.fromkeys(entry for entry in sys.path if entry))
    watched, life = os.pipe()
    try:
        child = subprocess.Popen(
            # -P: modules in the working directory are not imported, as with the `byoc` command.
            [sys.executable, "-P", "-m", _MODULE, str(folder), str(watched)],
            env={**os.environ, **process.environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,  # standard output is for byoc's results
            start_new_session=True,
            pass_fds=(watched,),
        )
    except BaseException:
        os.close(life)
        raise
    finally:
        os.close(watched)
    try:
        return child.wait(process.seconds)
    except subprocess.TimeoutExpired:
        raise PassFailedError(f"took longer than {process.seconds:g} s and was stopped") from None
    finally:
        with suppress(OSError):  # the group is gone with all that it started
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        os.close(life)
