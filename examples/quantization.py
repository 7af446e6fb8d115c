"""Regions in int8, step by step: ranges of data, the accuracy that is left, a budget for it.

python examples/quantization.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import byoc

NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 8, 24, 24] image) => (float[1, 10, 1, 1] scores) {
  c1 = Conv<pads = [1, 1, 1, 1]>(image, w1)
  r1 = Relu(c1)
  c2 = Conv<pads = [1, 1, 1, 1]>(r1, w2)
  a2 = Add(c2, r1)
  r2 = Relu(a2)
  c3 = Conv(r2, w3)
  scores = GlobalAveragePool(c3)
}"""
SHAPES = {"w1": (32, 8, 3, 3), "w2": (32, 32, 3, 3), "w3": (10, 32, 1, 1)}


def make_network() -> ModelProto:
    """Return a small network with seeded weights."""
    model = parse_model(NETWORK)
    random = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        weights = random.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
        model.graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32), name))
    return model


def show(title: str, result: byoc.Result) -> None:
    """Print what became of a model in lower precision."""
    precision = result.report.precision
    verification = result.report.verification
    if precision is None or verification is None or verification.accuracy is None:
        print(f"{title}: {result.report.nodes.offloaded} nodes on dla, in floating point")
        return
    noise = min(output.signal_to_noise or 0.0 for output in verification.accuracy.outputs)
    left = len(precision.in_float)
    print(f"{title}: {precision.units} units in {precision.dtype}, {left} left in float, {noise:.0f} dB")


def main() -> None:
    """Write samples, measure ranges, and partition in float, in int8, and in int8 within a budget."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/quantization.py FOLDER")
    folder = Path(sys.argv[1])
    samples = folder / "samples"
    samples.mkdir(parents=True, exist_ok=True)
    model = make_network()
    random = np.random.default_rng(1)
    for number in range(8):
        image = random.standard_normal((1, 8, 24, 24)).astype(np.float32)
        np.savez(samples / f"{number}.npz", image=image)

    # What do the tensors' values lie in? The file can be read, edited and kept.
    ranges = byoc.calibrate(model, samples, folder / "ranges.yaml")
    print(f"ranges: {len(ranges.tensors)} tensors on {ranges.samples} samples")

    plain = byoc.partition(model, "dla", strategy="all-supported", output=folder / "float.byoc")
    show("float32", plain)
    int8 = byoc.Precision("int8", calibration=folder / "ranges.yaml")
    show("int8", partition(model, int8, folder / "int8.byoc"))

    # A budget: as few units as possible stay in floating point, so that 45 dB are left on the samples.
    least = byoc.Budget("dB", 45)
    budget = byoc.Precision(
        "int8",
        calibration=folder / "ranges.yaml",
        data=samples,
        budget=least,
    )
    show("int8, 45 dB", partition(model, budget, folder / "budget.byoc"))


def partition(model: ModelProto, precision: byoc.Precision, output: Path) -> byoc.Result:
    """Partition with all that the accelerator takes on it."""
    return byoc.partition(model, "dla", strategy="all-supported", precision=precision, output=output)


if __name__ == "__main__":
    main()
