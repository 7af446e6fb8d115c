"""Build and run networks with rknn-toolkit2, for a process that asks over pipes.

Run as a program, by an interpreter that has rknn-toolkit2; it needs nothing of byoc. A request on
standard input is a line of JSON:

- `{"method": "build", "model": PATH, "settings": {...}, "export": PATH}`
- `{"method": "run", "network": NUMBER, "arrays": [[DTYPE, SHAPE], ...]}`, and the arrays' bytes
- `{"method": "release", "network": NUMBER}`

An answer is such a line, `{"error": TEXT, "log": TEXT, "network": NUMBER, "arrays": [...]}`, and the
bytes of the results. `log` is what the toolkit printed meanwhile, its table of layers among it.
"""

import ctypes
import itertools
import json
import os
import sys
import tempfile
from typing import Any, BinaryIO, Dict, List, Sequence  # noqa: UP035 - for early versions of Python, too

import numpy as np


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    requests = sys.stdin.buffer
    networks: Dict[int, Any] = {}  # noqa: UP006 - as above
    numbers = itertools.count(1)
    with tempfile.TemporaryFile() as log:
        # The toolkit and its libraries print on both descriptors whatever they are told.
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        while True:
            line = requests.readline()
            if not line:
                return
            request = json.loads(line)
            os.ftruncate(log.fileno(), 0)
            os.lseek(log.fileno(), 0, os.SEEK_SET)
            error, made, number = "", [], 0
            arrays = [read_array(requests, *kind) for kind in request.get("arrays", ())]
            try:
                if request["method"] == "build":
                    network = build(request["model"], request["settings"], request["export"])
                    number = next(numbers)
                    networks[number] = network
                elif request["method"] == "run":
                    made = run(networks[request["network"]], arrays)
                else:
                    networks.pop(request["network"]).release()
            except Exception as failure:
                error = "%s: %s" % (type(failure).__name__, failure)  # noqa: UP031 - for early Pythons
            kinds = [[array.dtype.name, array.shape] for array in made]
            answer = {"error": error, "log": read_log(log), "network": number, "arrays": kinds}
            answers.write(json.dumps(answer).encode() + b"\n")
            for array in made:
                answers.write(array.tobytes())
            answers.flush()


def read_array(stream: BinaryIO, dtype: str, shape: Sequence[int]) -> Any:
    """Return an array of a stream's next bytes."""
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(stream.read(count * kind.itemsize), kind).reshape(shape)


def read_log(log: Any) -> str:
    """Return the text printed since the file was emptied."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)  # the toolkit's libraries print by C's
    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), size, 0).decode("utf-8", "replace")


def build(model: str, settings: Dict[str, Any], export: str) -> Any:  # noqa: UP006 - as above
    """Build the network of an ONNX file for the simulator, and write its .rknn file.

    Raises RuntimeError with the step that the toolkit failed at; the reason is in what it printed.
    """
    from rknn.api import RKNN  # type: ignore[import-not-found] # noqa: PLC0415 - only where it runs

    network = RKNN(verbose=True)
    try:
        for step, result in (
            ("config", lambda: network.config(**settings)),
            ("load_onnx", lambda: network.load_onnx(model)),
            ("build", lambda: network.build(do_quantization=False)),
            ("export_rknn", lambda: network.export_rknn(export)),
            ("init_runtime", network.init_runtime),  # without a target: the simulator
        ):
            code = result()
            if code not in (0, None):
                raise RuntimeError("%s failed with %s" % (step, code))  # noqa: UP031 - as above
    except BaseException:
        network.release()
        raise
    return network


def run(network: Any, arrays: Sequence[Any]) -> List[Any]:  # noqa: UP006 - as above
    """Return the outputs of a network, in the order of its model."""
    # The layout is looked at for images alone; without it the simulator takes these to be NHWC.
    made = network.inference(list(arrays), data_format=["nchw"] * len(arrays))
    if made is None:
        raise RuntimeError("inference gave nothing")
    return [np.ascontiguousarray(array) for array in made]


if __name__ == "__main__":
    main()
