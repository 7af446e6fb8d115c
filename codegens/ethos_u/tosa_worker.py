"""Run TOSA graphs on Arm's reference model, for a process that asks over pipes.

Run as a program, by an interpreter that has tosa-tools and numpy; it needs nothing of byoc. A request on
standard input is a line of JSON, `{"graph": BYTES, "arrays": [[DTYPE, SHAPE], ...]}`, followed by that
many bytes of a graph (0: the graph of the last request) and by the arrays' bytes. An answer is a line
of the same form, `{"error": TEXT, "arrays": [...]}`, and the bytes of the results.
"""

import json
import os
import sys
from typing import Any, BinaryIO, List, Sequence  # noqa: UP035 - for early versions of Python, too

import numpy as np


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the model prints a warning for each graph
    requests = sys.stdin.buffer
    graph = b""
    while True:
        line = requests.readline()
        if not line:
            return
        request = json.loads(line)
        if request["graph"]:
            graph = requests.read(request["graph"])
        arrays = [read_array(requests, dtype, shape) for dtype, shape in request["arrays"]]
        error, made = "", []
        try:
            made = run_graph(graph, arrays)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        kinds = [[array.dtype.name, array.shape] for array in made]
        answers.write(json.dumps({"error": error, "arrays": kinds}).encode() + b"\n")
        for array in made:
            answers.write(array.tobytes())
        answers.flush()


def read_array(stream: BinaryIO, dtype: str, shape: Sequence[int]) -> Any:
    """Return an array of a stream's next bytes."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(stream.read(count * kind.itemsize), kind).reshape(shape)


def run_graph(graph: bytes, arrays: Sequence[Any]) -> List[Any]:  # noqa: UP006 - as above
    """Return the results of a graph. Raises RuntimeError where the model says that they are none."""
    import tosa_reference_model  # noqa: PLC0415 - only where it runs

    made, status = tosa_reference_model.run(graph, [np.array(array) for array in arrays])
    if status != tosa_reference_model.GraphStatus.TOSA_VALID:
        raise RuntimeError(f"the TOSA reference model says {status.name}")
    return [np.ascontiguousarray(array) for array in made]


if __name__ == "__main__":
    main()
