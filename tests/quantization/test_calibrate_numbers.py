"""The calibrators' numbers: against numpy, against onnxruntime's own, against every choice there is."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.calibrating import ACTIVATIONS, METHODS, inputs, network, truth
from helpers.support import prepared
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationMethod, create_calibrator

from byoc.errors import InputError
from byoc.model import Model
from byoc.quantization import Range, calibrate

SAMPLES = inputs(12)
BINS = 512  # a quarter, since onnxruntime's search takes time that goes with their square


@pytest.fixture(autouse=True)
def fewer_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byoc.quantization._calibrators.BINS", BINS)
    monkeypatch.setattr("byoc.quantization._calibrate.BINS", BINS)


@pytest.fixture(scope="module")
def values() -> dict[str, NDArray[Any]]:
    return truth(network(), ACTIVATIONS, SAMPLES)


def test_these_are_all_calibrators(net: Model) -> None:
    with pytest.raises(InputError, match=f"there are {', '.join(METHODS)}$"):
        calibrate(net, SAMPLES, method="none")


def test_min_max_is_numpys(net: Model, values: dict[str, NDArray[Any]]) -> None:
    found = calibrate(net, SAMPLES, method="minmax")
    assert list(found.tensors) == ACTIVATIONS
    for name, all_of_it in values.items():
        assert found.tensors[name] == Range(float(all_of_it.min()), float(all_of_it.max()))
    assert (found.samples, found.random, found.notes) == (12, False, ())


@pytest.mark.parametrize("percentile", [61.3, 90.7, 99.1])
@pytest.mark.parametrize("symmetric", [False, True])
def test_percentile_is_numpys_to_a_bin(
    net: Model, values: dict[str, NDArray[Any]], percentile: float, symmetric: bool
) -> None:
    found = calibrate(net, SAMPLES, method="percentile", percentile=percentile, symmetric=symmetric)
    for name, everything in values.items():
        entry = found.tensors[name]
        assert isinstance(entry, Range)
        a_bin = 1.01 * 2 * float(np.abs(everything).max()) / BINS
        if symmetric:
            expected = _percentile(np.abs(everything), percentile)
            assert (entry.low, entry.high) == pytest.approx((-expected, expected), abs=a_bin)
        else:
            cut = (100 - percentile) / 2
            ends = _percentile(everything, cut), _percentile(everything, 100 - cut)
            assert (entry.low, entry.high) == pytest.approx(ends, abs=a_bin)


def _percentile(values: NDArray[Any], percentile: float) -> float:
    """Return a percentile that is one of the values, since between two of them it may be anywhere."""
    return float(np.percentile(values, percentile, method="inverted_cdf"))


class _Reader:
    def __init__(self) -> None:
        self.left = iter(SAMPLES)

    def get_next(self) -> Any:
        return next(self.left, None)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("minmax", {}),
        ("minmax", {"symmetric": True}),
        ("entropy", {}),
        ("percentile", {"percentile": 99.0}),
        ("percentile", {"percentile": 75.0}),
        ("percentile", {"percentile": 97.0, "symmetric": True}),
    ],
)
def test_the_same_as_onnxruntimes_own(
    net: Model, tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    onnx.save(network(), tmp_path / "net.onnx")
    kinds = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    theirs = create_calibrator(
        tmp_path / "net.onnx",
        augmented_model_path=str(tmp_path / "augmented.onnx"),
        calibrate_method=kinds[method],
        extra_options={"num_bins": BINS, "symmetric": False, **options},
    )
    theirs.collect_data(_Reader())
    expected = theirs.compute_data()
    found = calibrate(net, SAMPLES, method=method, **options)
    assert set(found.tensors) == set(expected.keys())
    for name, entry in found.tensors.items():
        assert isinstance(entry, Range)
        low, high = (float(np.squeeze(end)) for end in expected[name].range_value)
        if method == "percentile" and options.get("symmetric"):
            # Its bins begin at the least magnitude, and it clips the ends to the values again.
            assert entry.low == -entry.high
            assert entry.high == pytest.approx(max(high, -low), abs=2 * max(high, -low) / BINS)
        else:
            assert (entry.low, entry.high) == pytest.approx((low, high), rel=1e-6)


@pytest.mark.parametrize(
    ("method", "options"), [("entropy", {}), ("mse", {"bits": 4}), ("percentile", {"percentile": 90.0})]
)
def test_all_but_min_max_clip(net: Model, method: str, options: dict[str, Any]) -> None:
    found = calibrate(net, SAMPLES, method=method, **options).tensors
    whole = calibrate(net, SAMPLES, method="minmax").tensors
    clipped = []
    for name in ACTIVATIONS:
        entry, all_of_it = found[name], whole[name]
        assert isinstance(entry, Range)
        assert isinstance(all_of_it, Range)
        assert min(all_of_it.low, 0) <= entry.low < entry.high <= all_of_it.high
        clipped += [name] if entry.high < all_of_it.high else []
    assert {"c", "r", "m"} & set(clipped)


@pytest.mark.parametrize("method", METHODS)
def test_constant_and_zero_tensors(method: str) -> None:
    model = prepared(
        """g (float[4] x) => (float[4] y, float[4] z) {
            two = Constant <value = float {2.5}> ()
            n = Sub(x, x)
            y = Add(n, two)
            z = Relu(x)
        }"""
    )
    samples = [{"x": np.array([-1, -2, -3, -1e-44], np.float32)}] * 3
    found = calibrate(model, samples, method=method)
    assert found.tensors["n"] == Range(0.0, 0.0)
    assert found.tensors["y"] == Range(2.5, 2.5)
    assert found.tensors["z"] == Range(0.0, 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_values_too_small_or_large_for_bins_keep_their_extremes(method: str) -> None:
    model = prepared("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    for most in (1e-40, 3.4e38):
        low, high = np.float32(-most), np.float32(most / 2)
        found = calibrate(model, [{"x": np.array([low, high])}], method=method)
        assert found.tensors["y"] == Range(-float(high), -float(low))


def test_symmetric_ranges(net: Model) -> None:
    for method in METHODS:
        found = calibrate(net, SAMPLES[:3], method=method, symmetric=True)
        for entry in found.tensors.values():
            assert isinstance(entry, Range)
            assert entry.low == -entry.high < 0


@pytest.mark.parametrize("method", METHODS)
def test_float16(method: str) -> None:
    model = prepared(
        "g (float16[8] x) => (float16[8] y) { a = Add(x, x) y = Sub(a, x) }",
    )
    values = np.arange(-4, 4).astype(np.float16)
    found = calibrate(model, [{"x": values}], method=method, tensors=["x", "a"])
    if method == "minmax":
        assert found.tensors == {"x": Range(-4.0, 3.0), "a": Range(-8.0, 6.0)}
    for entry in found.tensors.values():
        assert isinstance(entry, Range)
        assert entry.low < entry.high


@pytest.mark.parametrize("limit", [1, 1000, 2000])
def test_groups_of_tensors_give_the_same(
    net: Model, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = calibrate(net, SAMPLES, method="mse")
    steps: list[str] = []
    monkeypatch.setattr("byoc.quantization._calibrate._MAX_BYTES", limit)
    assert calibrate(net, SAMPLES, method="mse", progress=steps.append) == whole
    titles = {step.partition(":")[0] for step in steps if step.startswith("histograms")}
    # x is of 768 bytes, c, r, s and m are of 1024 each, p and f of 16, y is of 20.
    assert titles == {
        f"histograms {i} of {n}" for n in [{1: 8, 1000: 6, 2000: 4}[limit]] for i in range(1, n + 1)
    }


def test_the_order_of_samples_is_nothing(net: Model) -> None:
    for method in METHODS:
        assert calibrate(net, SAMPLES, method=method) == calibrate(net, SAMPLES[::-1], method=method)


def test_tensors_in_bodies_are_left_out_and_named() -> None:
    model = prepared(
        """g (float[2] x, bool k) => (float[2] y, float[2] n) {
            y = If (k) <
                then_branch = t () => (float[2] a) { a = Neg(x) },
                else_branch = e () => (float[2] b) { b = Abs(x) }
            >
            n = Identity(x)
        }"""
    )
    sample = {"x": np.array([1, -2], np.float32), "k": np.array(True)}
    assert list(calibrate(model, [sample], method="minmax").tensors) == ["x", "y", "n"]
    for name, reason in (
        ("a", "it is inside the body of a node"),
        ("nn", r"the model has no such tensor"),
        ("k", "it is of bool, not of float32 or float16"),
    ):
        with pytest.raises(InputError, match=f"'{name}' cannot be calibrated: {reason}"):
            calibrate(model, [sample], tensors=[name])


MASKS = (-65504.0, -1e9, float(np.finfo(np.float32).min), -np.inf)


def attention(opset: int, axis: int = -1, last: str = "p") -> Model:
    """Return scores `x` to which a mask is added, and what their Softmax mixes."""
    return prepared(
        f"""
        agraph (float[1, 2, 4, 4] q, float[4, 4] k, float[1, 1, 1, 4] mask, float[1, 2, 4, 3] v)
            => (float[1, 2, 4, 3] y, float[1, 2, 4, 4] {last}) {{
            x = MatMul(q, k)
            s = Add(x, mask)
            p = Softmax <axis = {axis}> (s)
            y = MatMul(p, v)
            z = Neg(p)
        }}
        """,
        opset=opset,
    )


def masked_samples(mask: float) -> list[dict[str, NDArray[np.float32]]]:
    generator = np.random.default_rng(3)
    samples = []
    for keys in (4, 3, 2):
        scores = generator.uniform(-40, 6, (1, 2, 4, 4)).astype(np.float32)
        scores[..., 0] = generator.uniform(-2, 6, (1, 2, 4))
        hidden = (
            np.where(np.arange(4) < keys, 0, np.float32(mask)).astype(np.float32).reshape(1, 1, 1, 4)
        )
        ones = np.ones((1, 2, 4, 3), np.float32)
        samples.append({"q": scores, "k": np.eye(4, dtype=np.float32), "mask": hidden, "v": ones})
    return samples


@pytest.mark.parametrize("opset", [12, 13, 17, 18])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_do_not_make_the_range_of_scores(mask: float, opset: int) -> None:
    samples = masked_samples(mask)
    model = attention(opset, 3 if opset < 13 else -1, "z")
    for method in ("minmax", "mse"):
        found = calibrate(model, samples, method=method)
        scores, hidden = found.tensors["s"], found.tensors["mask"]
        assert isinstance(scores, Range)
        assert isinstance(hidden, Range)
        sums = [each["q"] + each["mask"] for each in samples]
        least = min(float(each.max(axis=-1).min()) for each in sums)
        assert found.notes == ()
        if method == "minmax":
            assert scores.low == pytest.approx(max(least - 10, min(float(s.min()) for s in sums)))
            assert scores.high == pytest.approx(max(float(each.max()) for each in sums))
            assert -100 < hidden.low < scores.low - scores.high


def test_scores_of_an_output_and_over_several_axes_keep_their_range() -> None:
    samples = masked_samples(-1e9)
    for model in (attention(17, last="p"), attention(12, axis=1, last="z")):
        low = calibrate(model, samples).tensors["s"]
        assert isinstance(low, Range)
        assert low.low < -1e8


def test_a_row_without_a_key_does_not_count() -> None:
    samples = masked_samples(-np.inf)
    samples[1]["mask"][:] = -1e9
    found = calibrate(attention(17, last="z"), samples).tensors["s"]
    assert isinstance(found, Range)
    assert found.low > -100
