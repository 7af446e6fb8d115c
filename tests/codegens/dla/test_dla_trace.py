"""What the dla's simulator shows of the tensors inside of regions, and of the cycles of its layers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dla_regions import NETWORK, WEIGHTS, floats, model, region

import byoc
from byoc.bundle import Bundle, RegionCompiler, open_bundle
from byoc.codegen import (
    Region,
    compute_tensors,
    estimate_region,
    find_codegen,
    parse_codegen_options,
    profile_region,
    trace_region,
)
from byoc.onnxrt import without_optimizations
from byoc.verification import DEFAULT_THRESHOLDS, BundleLayers, record_reference_runs

ATTENTION = """
g (float[2,3,4,5] q, float[2,3,4,5] k, float[2,3,4,5] v) => (float[2,4,3,5] y) {
  t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) p = Softmax(s) m = MatMul(p, v)
  y = Transpose<perm=[0,2,1,3]>(m)
}
"""
VIEWS = """
g (float[1,6,4,4] x) => (float[6,16] y, float[1,6,4,4] z) {
  a = Relu(x) b = Reshape(a, flat) y = Sigmoid(b) z = Identity(a)
}
"""


def trace_on_dla(made: Region, inputs: dict[str, Any], **options: str) -> dict[str, Any]:
    """Return the tensors that the simulator shows of a region."""
    found: Any = find_codegen("dla")
    artifact = found.compile(made, parse_codegen_options(found, options))
    return dict(trace_region(found, made, artifact, inputs))


def check_trace(made: Region, inputs: dict[str, Any], **options: str) -> set[str]:
    """Assert that what is shown is what onnxruntime computes; return the names."""
    shown = trace_on_dla(made, inputs, **options)
    with without_optimizations():
        wanted = compute_tensors(made, inputs)
    assert shown.keys() <= wanted.keys()
    for name, array in shown.items():
        expected = wanted[name]
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape), name
        if expected.dtype.kind == "f":
            most = 1e-4 * max(np.abs(expected).max(initial=0), 1)
            np.testing.assert_allclose(array, expected, rtol=0, atol=most, err_msg=name)
        else:
            assert np.abs(array.astype(int) - expected.astype(int)).max(initial=0) <= 1, name
    return set(shown)


def test_every_layer_of_a_network_is_shown_as_onnx_has_it(tmp_path: Path) -> None:
    made = region(model(NETWORK, WEIGHTS), tmp_path)
    shown = check_trace(made, {"x": floats(1, 6, 20, 20)})
    # What is fused into a convolution is nowhere in memory: a and e before their clamps and sums.
    assert shown == {*"bdfpqkmvwy"}


def test_rows_that_were_overwritten_are_left_out_of_a_trace(tmp_path: Path) -> None:
    made = region(model(NETWORK, WEIGHTS), tmp_path)
    given = {"x": floats(1, 6, 20, 20)}
    shown = check_trace(made, given, stripes="true", scratchpad="16384")
    assert "y" in shown
    assert shown < check_trace(made, given, scratchpad="16384")


@pytest.mark.parametrize("text", [ATTENTION, VIEWS])
def test_matrices_and_views_are_shown_in_the_order_of_onnx(text: str, tmp_path: Path) -> None:
    proto = model(text, {"flat": np.array([6, 16])} if "flat" in text else {})
    made = region(proto, tmp_path)
    given = {each.name: floats(*each.type.shape or (), seed=n) for n, each in enumerate(made.inputs)}
    assert {each.name for each in made.outputs} <= check_trace(made, given)


def write_quantized_bundle(folder: Path, dtype: str) -> Bundle:
    byoc.partition(
        model(NETWORK, WEIGHTS),
        "dla",
        output=folder / "b",
        strategy="all-supported",
        precision=byoc.Precision(quantize=dtype, data="random"),
        verify=False,
    )
    return open_bundle(folder / "b")


def _refuse_to_compile(*_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize("hidden", ["exact", "rounded"])
def test_layers_that_a_trace_leaves_out_are_compared_as_parts_of_others(
    hidden: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view rounds nothing; where what is left out is off, the region is compiled again after all."""
    bundle = write_quantized_bundle(tmp_path, "int8")
    monkeypatch.setattr(RegionCompiler, "compile", _refuse_to_compile)
    reached = record_reference_runs(bundle)
    for _, made, artifact in bundle.regions():
        found: Any = find_codegen("dla")
        run, trace = found.load(made, artifact), type(found).trace
        runs = [(inputs, run(inputs)) for inputs, _ in reached[made.name].values]
        whole = BundleLayers(bundle, DEFAULT_THRESHOLDS).check(made, runs)
        assert whole is not None
        assert not whole.left_out
        inner = [each.tensor for each in whole.errors if each.tensor not in runs[0][1]]

        def show(*asked: Any, trace: Any = trace, inner: Any = inner) -> dict[str, Any]:
            shown = dict(trace(*asked))
            lost = shown.pop(inner[0])
            if hidden == "rounded":  # what reads it is then off
                shown[inner[1]] = np.clip(shown[inner[1]].astype(int) + 3, -128, 127).astype(lost.dtype)
            return shown

        monkeypatch.setattr(type(found), "trace", show)
        if hidden == "rounded":
            with pytest.raises(AssertionError):
                BundleLayers(bundle, DEFAULT_THRESHOLDS).check(made, runs)
            return
        layers = BundleLayers(bundle, DEFAULT_THRESHOLDS).check(made, runs)
        assert layers is not None
        assert layers.left_out == (inner[0],)
        assert len(layers.errors) == len(whole.errors) - 1
        assert "1 more as parts of others" in str(layers)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_layers_of_integers_are_compared_by_the_trace_and_nothing_is_compiled_again(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program is run whose results are a unit off, so that layers are asked for."""
    bundle = write_quantized_bundle(tmp_path, dtype)
    monkeypatch.setattr(RegionCompiler, "compile", _refuse_to_compile)
    reached = record_reference_runs(bundle)
    checked = 0
    for _, made, artifact in bundle.regions():
        found: Any = find_codegen("dla")
        run = found.load(made, artifact)
        runs = [(inputs, run(inputs)) for inputs, _ in reached[made.name].values]
        layers = BundleLayers(bundle, DEFAULT_THRESHOLDS).check(made, runs)
        if layers is not None:
            assert layers.traced
            assert layers.same
            assert not layers.problem, str(layers)
            checked += len(layers.errors)
    assert checked > 3


def test_cycles_by_layer_add_up_to_the_estimate(tmp_path: Path) -> None:
    made = region(model(NETWORK, WEIGHTS), tmp_path)
    found: Any = find_codegen("dla")
    options = parse_codegen_options(found, {})
    artifact = found.compile(made, options)
    times = profile_region(found, made, artifact, {"x": floats(1, 6, 20, 20)})
    whole: Any = estimate_region(found, made, options, artifact)
    cycles = [each.time.count for each in times if not isinstance(each.time, float)]
    assert len(cycles) == len(times)
    launch = whole.count - sum(cycles)
    assert 0 < launch < whole.count
    nodes = [name for each in times for name in each.nodes]
    assert sorted(nodes) == sorted(node.name for node in made.nodes if node.op_type != "Flatten")
    assert len({each.time.hertz for each in times if not isinstance(each.time, float)}) == 1
