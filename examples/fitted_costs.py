"""A cost model fitted to a profile of this machine, and placements that count with it.

    python examples/fitted_costs.py FOLDER

Operators of three small networks are measured one by one on this machine, for a few seconds, and lines
are fitted to the seconds: a part for each launch, for each operation, and for each byte. The fourth
network was not measured; its prediction is what the fit is for.
"""

import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, numpy_helper
from onnx.parser import parse_model

import byoc
from byoc.onnxrt import open_session, run_session

NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, C, S, S] image) => (float[1, K, 1, 1] scores) {
  c1 = Conv<pads = [1, 1, 1, 1]>(image, w1)
  r1 = Relu(c1)
  c2 = Conv<pads = [1, 1, 1, 1]>(r1, w2)
  a2 = Add(c2, r1)
  r2 = Relu(a2)
  scores = GlobalAveragePool(r2)
}"""


def make_network(channels: int, size: int) -> ModelProto:
    """Return a network of two convolutions on images of some channels and a size."""
    sides = {"C": channels, "K": 2 * channels, "S": size}
    text = NETWORK
    for name, extent in sides.items():
        text = text.replace(f" {name},", f" {extent},").replace(f" {name}]", f" {extent}]")
    model = parse_model(text)
    random = np.random.default_rng(0)
    for name, inputs in (("w1", channels), ("w2", 2 * channels)):
        weights = random.standard_normal((2 * channels, inputs, 3, 3)).astype(np.float32) / 16
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    return model


def main() -> None:
    """Measure three networks, fit, and predict a fourth."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/fitted_costs.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    costs = folder / "this-host.yaml"

    seen = [make_network(8, 32), make_network(16, 48), make_network(32, 24)]
    profile = byoc.profile(seen, output=costs, fit=True, threads=1, seconds=1.0, repeats=20)
    print(f"measured: {profile.operators} units of work, fitted to {costs.name}")

    unseen = make_network(16, 64)
    for name in ("host", costs):
        report = byoc.partition(unseen, "dla", host_cost_model=name, what_if=False).report
        alone = report.predicted.host_only * 1e6
        shown = Path(name).stem
        print(f"{shown}: host alone {alone:.0f} us, {report.nodes.offloaded} nodes on dla")

    # The model runs here, too, so that what was predicted can be looked at.
    session = open_session(unseen)
    image = np.zeros((1, 16, 64, 64), np.float32)
    print(f"scores: {run_session(session, {'image': image})['scores'].shape}")


if __name__ == "__main__":
    main()
