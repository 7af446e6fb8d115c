"""Build and run networks with rknn-toolkit2, in an interpreter that has it (`byoc.codegen.PipeProcess`).

Requests are

- `{"method": "build", "model": PATH, "settings": {...}, "export": PATH}`
- `{"method": "run", "network": NUMBER}`, with arrays
- `{"method": "trace", "network": NUMBER, "tensors": [...]}`, with arrays: a run that shows integers, too
- `{"method": "release", "network": NUMBER}`

An answer is `{"error": TEXT, "log": TEXT, "network": NUMBER, "shown": [...]}`. `log` is what the toolkit
printed meanwhile, its table of layers among it. `shown` names the tensors whose integers follow the
outputs.
"""

import ctypes
import itertools
import os
import sys
import tempfile
from typing import Any, Dict, List, Sequence, Tuple  # noqa: UP035 - for early versions of Python, too

import numpy as np

log = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as the process lives
# The toolkit and its libraries print on both descriptors whatever they are told.
os.dup2(log.fileno(), 1)
os.dup2(log.fileno(), 2)
networks: Dict[int, Any] = {}  # noqa: UP006 - as above
numbers = itertools.count(1)
NEAR = 0.01  # units that a real value may lie beside the integer that it stands for


def answer(
    request: Dict[str, Any],  # noqa: UP006 - as above
    arrays: Sequence[Any],
) -> Tuple[Dict[str, Any], List[Any]]:  # noqa: UP006 - as above
    """Do what a request says, and return the answer with the outputs of a run."""
    os.ftruncate(log.fileno(), 0)
    os.lseek(log.fileno(), 0, os.SEEK_SET)
    error, made, number = "", [], 0
    shown: List[str] = []  # noqa: UP006 - as above
    try:
        if request["method"] == "build":
            network = build(request["model"], request["settings"], request["export"])
            number = next(numbers)
            networks[number] = network
        elif request["method"] == "run":
            made = run(networks[request["network"]], arrays)
        elif request["method"] == "trace":
            made, shown = trace(networks[request["network"]], arrays, request["tensors"])
        else:
            networks.pop(request["network"]).release()
    except Exception as failure:
        error = "%s: %s" % (type(failure).__name__, failure)  # noqa: UP031 - for early Pythons
    return {"error": error, "log": read_log(), "network": number, "shown": shown}, made


def read_log() -> str:
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
    return [np.asarray(array) for array in made]


def trace(
    network: Any,
    arrays: Sequence[Any],
    tensors: Sequence[Dict[str, Any]],  # noqa: UP006 - as above
) -> Tuple[List[Any], List[str]]:  # noqa: UP006 - as above
    """Return the outputs of a run with the integers of some tensors, and the names of those shown.

    The toolkit's own `accuracy_analysis` refuses networks that were quantized before they reached it
    (2.5.0: "The QAT model need set 'target'"), unless a board computes them. Its simulator computes
    layer by layer, and is looked at between them. Raises RuntimeError where it cannot be.
    """
    simulator: Any = getattr(getattr(network, "rknn_base", None), "simulator", None)
    compute = getattr(simulator, "_infer_by_sess", None)
    if compute is None:
        raise RuntimeError("this release of rknn-toolkit2 does not show what its simulator computes")
    wanted = {name for each in tensors for name in each["computed"]}
    found: Dict[str, Any] = {}  # noqa: UP006 - as above

    def look(session: Any, values: Dict[str, Any], *rest: Any, **options: Any) -> None:  # noqa: UP006
        compute(session, values, *rest, **options)
        found.update((name, np.array(values[name])) for name in wanted.intersection(values))

    simulator._infer_by_sess = look
    try:
        made = run(network, arrays)
    finally:
        simulator._infer_by_sess = compute
    shown = []
    for each in tensors:
        real = next((found[name] for name in each["computed"] if name in found), None)
        integers = None if real is None else quantize(real, each)
        if integers is not None:
            made.append(integers)
            shown.append(each["name"])
    return made, shown


def quantize(real: Any, tensor: Dict[str, Any]) -> Any:  # noqa: UP006 - as above
    """Return the integers that real values stand for; None where they are those of other scales."""
    limits = np.iinfo(tensor["dtype"])
    steps = real.astype(np.float64) / tensor["scale"] + tensor["zero_point"]
    whole = np.rint(steps)
    if list(real.shape) != tensor["shape"] or np.any(np.abs(steps - whole) > NEAR):
        return None
    inside = np.all((whole >= limits.min) & (whole <= limits.max))
    return whole.astype(tensor["dtype"]) if inside else None
