"""Quantized networks on the dla: equal to exact arithmetic, and within one unit of onnxruntime."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from byoc.codegens.dla.compiler import layers as limits
from byoc.codegens.dla.machine import disassemble
from dla_alone import Gaps, Values, gaps, layers_alone
from dla_regions import NETWORK, WEIGHTS, floats, model

import byoc
from byoc.bundle import open_bundle
from byoc.codegen import Artifact, Region
from byoc.verification import record_reference_runs


def quantized(
    source: Any, folder: Path, dtype: str = "int8"
) -> Iterator[tuple[Region, Artifact, Values]]:
    """Yield the regions of a quantized model that make integers, and what reaches them."""
    rules = folder / "integers.yaml"
    rules.write_text("extends: dla\nquantization: {convert: host}\n")  # no floats in their regions
    byoc.partition(
        source,
        rules,
        output=folder / "b",
        strategy="all-supported",
        precision=byoc.Precision(quantize=dtype, data="random"),
        strict=True,
        verify=False,
    )
    bundle = open_bundle(folder / "b")
    reached = record_reference_runs(bundle)
    for _, region, artifact in bundle.regions():
        inputs, outputs = reached[region.name].values[0]
        if any(array.dtype.kind in "iu" for array in outputs.values()):
            yield region, artifact, inputs


def all_layers(folder: Path, dtype: str = "int8") -> Gaps:
    """Return how far apart the results of the layers of NETWORK are, each alone."""
    found = Gaps()
    for region, _, inputs in quantized(model(NETWORK, WEIGHTS), folder, dtype):
        for _, layer, given in layers_alone(region, inputs):
            found += gaps(layer, given)
    return found


@pytest.mark.parametrize(
    "name", ["one of each kind of layer", pytest.param("zoo:squeezenet", marks=pytest.mark.thorough)]
)
def test_a_quantized_network_is_within_one_unit_in_each_region(name: str, tmp_path: Path) -> None:
    source = name if name.startswith("zoo:") else model(NETWORK, WEIGHTS)
    found = list(quantized(source, tmp_path))

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


def test_each_layer_of_16_bits_alone_is_within_one_unit(tmp_path: Path) -> None:
    """A factor is off by 2**-31 of itself, which is 2**-16 of a unit, so exact ties may be missed."""
    off = all_layers(tmp_path, "int16")

    assert off.machine.elements > 12 * 20 * 20 * 3
    assert off.machine.most <= 1
    assert off.machine_exact.most <= 1
    assert off.machine_exact.share < 1e-4


def test_a_residual_that_is_added_to_a_coarse_sum_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_WIDE", 4)

    off = all_layers(tmp_path)

    assert off.machine_exact.most == 1
    assert off.machine_exact.different > 0


@pytest.mark.parametrize("activation", ["Relu", "HardSwish"])
@pytest.mark.parametrize("summand", ["a = Add(c, z)", "k = GlobalAveragePool(x) a = Add(c, k)"])
def test_a_sum_that_is_no_residual_is_quantized_by_itself(
    activation: str, summand: str, tmp_path: Path
) -> None:
    """Rules formed a unit of it that the compiler refused, so that it went back to the host."""
    text = (
        "g (float[1,6,7,5] x) => (float[1,6,7,5] y)"
        f" {{ c = Conv(x, w, b) {summand} y = {activation}(a) }}"
    )
    stored = {"w": floats(6, 6, 1, 1), "b": floats(6, seed=2), "z": floats(1, 6, 7, 5, seed=3)}
    proto = model(text, stored, opset=20)
    given = byoc.calibrate(proto, [{"x": floats(1, 6, 7, 5, seed=4)}])
    result = byoc.partition(
        proto,
        "dla",
        output=tmp_path / "b",
        strategy="all-supported",
        precision=byoc.Precision("int8", calibration=given),
    )
    assert not [note.text for note in result.report.notes if "codegen" in note.text]
    host = {node.op_type for node in result.model.graph.node if not node.domain}
    assert host <= {"QuantizeLinear", "DequantizeLinear", "Transpose"}
