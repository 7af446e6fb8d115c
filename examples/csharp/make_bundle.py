"""Write what the application needs: a bundle, the provider, the driver of its codegen, a sample.

python examples/csharp/make_bundle.py MODEL FOLDER

MODEL is a file, or a model of the zoo, with one input and one output of 32-bit floats.
"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

import byoc
from byoc.codegen import find_codegen
from byoc.codegen.drivers import build_driver
from byoc.onnxrt import build_provider


def main() -> None:
    """Write the folder that the command line names."""
    model, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    made = byoc.partition(
        model, rules="dla", output=folder / "m.byoc", strategy="all-supported", emit="epcontext"
    )
    if not made.report.regions:
        sys.exit(f"{model}: dla takes no region of it")
    build_provider(folder / "libbyoc_provider.so")
    build_driver(find_codegen("dla").driver(), folder / "libbyoc_driver_dla.so")
    # The bundle's model.onnx is the same computation, and runs in ONNX Runtime alone.
    session = onnxruntime.InferenceSession(folder / "m.byoc" / "model.onnx")
    (given,) = session.get_inputs()
    x = np.random.default_rng(0).standard_normal(given.shape).astype(np.float32)
    (y,) = session.run(None, {given.name: x})
    x.tofile(folder / "input.bin")
    y.tofile(folder / "expected.bin")


if __name__ == "__main__":
    main()
