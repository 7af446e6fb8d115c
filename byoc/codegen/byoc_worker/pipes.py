"""Answer requests on standard input by a function of a file: a vendor's library in its own interpreter.

Run as a program, `pipes.py FILE`; it needs nothing of byoc but this file, and numpy. FILE defines
`answer(request, arrays)`, which returns the fields of an answer and arrays. A request is a line of JSON
with a key `arrays`, `[[DTYPE, SHAPE], ...]`, and then the bytes of these arrays. An answer has the same
form; if `answer` raises, its key `error` says what.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from runpy import run_path
from typing import IO, Any, Mapping, Sequence

import numpy as np


def main() -> None:
    """Answer requests until standard input ends, or whoever started this process does."""
    threading.Thread(target=_leave_after, args=(os.getppid(),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where libraries print
    requests = sys.stdin.buffer
    answer = run_path(sys.argv[1])["answer"]
    for line in iter(requests.readline, b""):
        request = json.loads(line)
        arrays = [read_array(requests, *kind) for kind in request["arrays"]]
        try:
            fields, made = answer(request, arrays)
        except Exception as failure:
            fields, made = {"error": f"{type(failure).__name__}: {failure}"}, []
        write_arrays(answers, fields, made)


def _leave_after(parent: int) -> None:
    """End this process, and what it started, soon after its parent.

    In the middle of an answer it would not see the end of a pipe, and compile for nobody.
    """
    while os.getppid() == parent:
        time.sleep(1)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def write_arrays(stream: Any, fields: Mapping[str, Any], arrays: Sequence[Any]) -> None:
    """Write fields and arrays, which need not be contiguous. Raises OSError without a reader."""
    kinds = [[array.dtype.name, array.shape] for array in arrays]
    stream.write(json.dumps({**fields, "arrays": kinds}).encode() + b"\n")
    for array in arrays:
        stream.write(array.tobytes())
    stream.flush()


def read_array(stream: IO[bytes], dtype: str, shape: Sequence[int]) -> Any:
    """Return an array of a stream's next bytes."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(stream.read(count * kind.itemsize), kind).reshape(shape)


if __name__ == "__main__":
    main()
