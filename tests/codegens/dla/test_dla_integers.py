"""Quantized networks on the dla: equal to exact arithmetic, and within one unit of onnxruntime."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from byoc.codegens.dla.compiler import layer_limits as limits
from byoc.codegens.dla.machine import disassemble
from dla_alone import Gaps, Values, gaps, layers_alone
from dla_regions import floats, model

import byoc
from byoc.bundle import open_bundle
from byoc.codegen import Artifact, Region
from byoc.verification import record_reference_runs
from byoc.verification._region_verification import bundle_samples

# Something of each kind of layer, a residual among them.
NETWORK = """
g (float[1,6,20,20] x) => (float[1,10] y) {
  a = Conv<pads=[1,1,1,1]>(x, first, bias) b = Relu(a)
  c = Conv<group=12, pads=[1,1,1,1]>(b, deep) d = Clip(c, zero, six)
  e = Conv(d, point, bias) s = Add(e, b) f = Relu(s)
  p = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(f)
  q = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(f)
  k = Concat<axis=1>(p, q) t = Sigmoid(k) m = Mul(k, t)
  v = GlobalAveragePool(m) w = Flatten(v) y = Gemm(w, last, ten)
}
"""
CONSTANTS = {
    "first": floats(12, 6, 3, 3),
    "bias": floats(12),
    "deep": floats(12, 1, 3, 3, seed=1),
    "point": floats(12, 12, 1, 1, seed=2),
    "last": floats(24, 10, seed=3),
    "ten": floats(10, seed=4),
    "zero": floats(1)[0] * 0,
    "six": floats(1)[0] * 0 + 6,
}
INT8 = byoc.Precision(quantize="int8", data="random")


def quantized(source: Any, folder: Path) -> Iterator[tuple[Region, Artifact, Values]]:
    """Yield the regions of a model in int8 that make integers, and what reaches them."""
    byoc.partition(
        source,
        "dla",
        output=folder / "b",
        strategy="all-supported",
        precision=INT8,
        strict=True,
        verify=False,
    )
    bundle = open_bundle(folder / "b")
    reached = record_reference_runs(bundle, bundle_samples(bundle))
    for _, region, artifact in bundle.regions():
        inputs, outputs = reached[region.name].values[0]
        if any(array.dtype.kind in "iu" for array in outputs.values()):
            yield region, artifact, inputs


def all_layers(folder: Path) -> Gaps:
    """Return how far apart the results of the layers of NETWORK are, each alone."""
    found = Gaps()
    for region, _, inputs in quantized(model(NETWORK, CONSTANTS), folder):
        for _, layer, given in layers_alone(region, inputs):
            found += gaps(layer, given)
    return found


def test_a_quantized_network_is_within_one_unit_in_each_region(tmp_path: Path) -> None:
    found = list(quantized("zoo:squeezenet", tmp_path))

    assert found
    for region, artifact, inputs in found:
        off = gaps(region, inputs)
        assert off.machine.elements > 0
        assert off.machine.most <= 1
        assert off.machine_exact.different == 0
        arena = disassemble(artifact.files["program.bin"]).arena
        assert arena == int(artifact.metadata["arena_bound"])


def test_each_layer_alone_is_within_one_unit_and_exact(tmp_path: Path) -> None:
    off = all_layers(tmp_path)

    assert off.machine.elements > 12 * 20 * 20 * 3
    assert off.machine.most <= 1
    assert off.machine.share < 1e-3
    assert off.exact.most <= 1
    assert off.machine_exact.different == 0


def test_a_residual_that_is_added_to_a_coarse_sum_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_WIDE", 4)

    off = all_layers(tmp_path)

    assert off.machine_exact.most == 1
    assert off.machine_exact.different > 0
