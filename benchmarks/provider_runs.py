"""A process that runs a model by onnxruntime's OpenVINO provider, when told to, and says the seconds.

`python provider_runs.py MODEL INPUTS THREADS CLOCK` is started by `real_gain.py` with the Python of an
environment that has `onnxruntime-openvino`, which cannot be installed beside onnxruntime. INPUTS is an
npz file. It prints `ready`, or a sentence that says why it cannot run; then, for each line that it
reads, it runs once and prints the seconds.
"""

import sys
import time

import numpy as np
import onnxruntime

PROVIDER = "OpenVINOExecutionProvider"
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def main(model: str, inputs: str, threads: str, clock: str) -> None:
    """Run the model once for each line of standard input."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = int(threads)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    own = {"device_type": "CPU", "num_of_threads": threads, "precision": "FP32"}
    session = onnxruntime.InferenceSession(model, options, providers=[(PROVIDER, own)])
    if session.get_providers()[0] != PROVIDER:
        print(f"onnxruntime {onnxruntime.__version__} has no {PROVIDER}", flush=True)
        return
    with np.load(inputs) as stored:
        given = {name: stored[name] for name in stored.files}
    names, seconds = [output.name for output in session.get_outputs()], CLOCKS[clock]
    print("ready", flush=True)
    for _ in sys.stdin:
        before = seconds()
        session.run(names, given)
        print(seconds() - before, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
