"""byoc as a library, from a model to verified outputs.

    python examples/library.py FOLDER

makes the folder, writes a model and its bundle to it, runs the bundle, and compares it with the model.
"""

import sys
from pathlib import Path

import numpy as np
from onnx import numpy_helper, save
from onnx.parser import parse_model

import byoc

NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 16, 64, 64] image) => (float[1, 32, 1, 1] scores) {
  c1 = Conv<pads = [1, 1, 1, 1]>(image, w1)
  r1 = Relu(c1)
  c2 = Conv<pads = [1, 1, 1, 1]>(r1, w2)
  a2 = Add(c2, r1)
  r2 = Relu(a2)
  e2 = Sin(r2)
  scores = GlobalAveragePool(e2)
}"""


def main() -> None:
    """Make a model, partition it, look at the report, run the bundle, verify it."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/library.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)

    model = parse_model(NETWORK)
    for name, shape in (("w1", (32, 16, 3, 3)), ("w2", (32, 32, 3, 3))):
        weights = random.standard_normal(shape).astype(np.float32) / 16
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    save(model, folder / "net.onnx")

    # Partition: what runs where, and what does that save? With an output the regions are compiled, too.
    result = byoc.partition(folder / "net.onnx", rules="dla", output=folder / "net.byoc")
    predicted = result.report.predicted
    print(f"regions: {[region.name for region in result.report.regions]}")
    print(f"predicted: {predicted.seconds * 1e6:.0f} us, host alone {predicted.host_only * 1e6:.0f} us")
    print("nodes:", ", ".join(node.op_type for node in result.model.graph.node))

    # Run: the host's nodes on onnxruntime, regions on the simulator of the dla.
    session = byoc.load(folder / "net.byoc")
    image = random.standard_normal((1, 16, 64, 64)).astype(np.float32)
    outputs = session({"image": image})
    print(f"scores: {outputs['scores'].shape}, largest is number {outputs['scores'].argmax()}")

    # Verify: every output against the original's, on these inputs.
    verification = byoc.verify(folder / "net.byoc", folder / "net.onnx", inputs={"image": image})
    error = verification.worst.relative
    print(f"verified: {verification.passed}, largest error {error:.0e} of the output's range")


if __name__ == "__main__":
    main()
