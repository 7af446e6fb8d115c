"""`calibration.yaml`: what is written is what is read, and every mistake is told with its place."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.support import prepared
from hypothesis import given
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.quantization import (
    ChannelRange,
    GivenQuantization,
    Range,
    Ranges,
    read_ranges,
    write_ranges,
)

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False, width=32)
# A text of YAML may hold no control characters unescaped, and no lone surrogates.
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def quantizations(draw: st.DrawFn) -> GivenQuantization:
    bits, unsigned = draw(st.sampled_from([4, 8, 16])), draw(st.booleans())
    dtype = f"{'u' if unsigned else ''}int{bits}"
    points = (
        st.integers(0, 2**bits - 1) if unsigned else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    if draw(st.booleans()):
        return GivenQuantization((draw(POSITIVE),), (draw(points),), dtype)
    pairs = draw(st.lists(st.tuples(POSITIVE, points), min_size=1, max_size=4))
    scales, zeros = zip(*pairs, strict=True)
    return GivenQuantization(scales, zeros, dtype, draw(st.integers(-4, 4)))


RANGES = st.builds(lambda a, b: Range(min(a, b), max(a, b)), FINITE, FINITE)


@given(
    st.dictionaries(NAMES, RANGES | quantizations(), min_size=1, max_size=4),
    NAMES,
    st.booleans(),
    st.lists(NAMES, max_size=2),
)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, Range | GivenQuantization],
    source: str,
    random: bool,
    notes: list[str],
) -> None:
    ranges = Ranges(
        "mse", 3, source, tensors, random, "net", {"bits": 8, "symmetric": True, "x": 0.1}, tuple(notes)
    )
    path = tmp_path_factory.getbasetemp() / "c.yaml"
    write_ranges(path, ranges)
    assert read_ranges(path) == ranges


@pytest.mark.parametrize(
    "name", ["1e5", "1.5", "12", "on", "null", "~", "a: b", "- x", "<<", "=", "y", "#"]
)
def test_names_that_look_like_something_else(tmp_path: Path, name: str) -> None:
    ranges = Ranges("minmax", 1, name, {name: Range(0.0, 1.0)}, model=name, notes=(name,))
    write_ranges(tmp_path / "c.yaml", ranges)
    assert read_ranges(tmp_path / "c.yaml") == ranges


def test_the_form_of_the_file(tmp_path: Path) -> None:
    tensors = {
        "conv1_out": Range(-1.25, 3.5, (-2.0, 9.0), 0.001),
        "y": GivenQuantization((0.02,), (3,), "int8"),
        "w": GivenQuantization((0.1, 1e-30), (0, 0), "int8", 0),
        "image": Range(-1.0, 2.0),
    }
    channels = {"image": ChannelRange(np.array([-1.0, 0.0]), np.array([0.5, 2.0]))}
    usual = {"conv1_out": Range(-0.5, 1.0)}
    found = Ranges("entropy", 200, "photos", tensors, True, "net", {"symmetric": False})
    write_ranges(tmp_path / "c.yaml", replace(found, channels=channels, usual=usual))
    text = (tmp_path / "c.yaml").read_text()
    assert "".join(line for line in text.splitlines(keepends=True) if line[0] != "#") == (
        "format: 2\n"
        "method: entropy\n"
        "options:\n"
        "  symmetric: false\n"
        "samples: 200\n"
        "data: photos\n"
        "random: true\n"
        "model:\n"
        "  name: net\n"
        "tensors:\n"
        "  conv1_out:\n"
        "    low: -1.25\n"
        "    high: 3.5\n"
        "    data: [-2.0, 9.0]\n"
        "    clipped: 0.001\n"
        "    usual: [-0.5, 1.0]\n"
        "  y: {scale: 0.02, zero_point: 3, dtype: int8}\n"
        "  w:\n"
        "    scale: [0.1, 1.0e-30]\n"
        "    zero_point: [0, 0]\n"
        "    dtype: int8\n"
        "    axis: 0\n"
        "  image:\n"
        "    low: -1.0\n"
        "    high: 2.0\n"
        "    channels:\n"
        "      low: [-1.0, 0.0]\n"
        "      high: [0.5, 2.0]\n"
    )


def test_a_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "tensors: {a: {low: -1, high: 1e-3}, w: {scale: [0.5, 1], dtype: int8, axis: -1},"
        " y: {scale: 2, dtype: uint4}}"
    )
    assert read_ranges(path).tensors == {
        "a": Range(-1.0, 1e-3),
        "w": GivenQuantization((0.5, 1.0), (0, 0), "int8", -1),
        "y": GivenQuantization((2.0,), (0,), "uint4"),
    }


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{low: 2, high: 1}", ": 'low' is 2, above 'high', which is 1"),
        ("{low: 2}", ": expected 'low' and 'high', or 'scale' and 'dtype'"),
        ("{}", ": expected 'low' and 'high', or 'scale' and 'dtype'"),
        ("{low: .nan, high: 1}", ": 'low' and 'high' must be finite in float32"),
        ("{low: -1.0e+39, high: 1}", ": 'low' and 'high' must be finite in float32"),
        ("{low: 0, high: .inf}", ": 'low' and 'high' must be finite in float32"),
        ("{low: true, high: 1}", ".low: expected a number"),
        ("{low: '1', high: 1}", ".low: expected a number"),
        ("{hihg: 2}", ".hihg: no such key (did you mean high?)"),
        ("{low: 0, high: 1, axis: 0}", ": 'scale' must be given where there is 'axis'"),
        (
            "{low: 0, high: 1, scale: 1, dtype: int8}",
            ": either 'low' and 'high' or 'scale' may be given",
        ),
        ("{scale: 1}", ": 'dtype' must be given: one of int4, uint4, int8, uint8, int16, uint16"),
        (
            "{scale: 1, dtype: int9}",
            ".dtype: expected 'int4', 'uint4', 'int8', 'uint8', 'int16' or 'uint16'",
        ),
        ("{scale: 0, dtype: int8}", ": each 'scale' must be finite and greater than zero in float32"),
        (
            "{scale: 1.0e-60, dtype: int8}",
            ": each 'scale' must be finite and greater than zero in float32",
        ),
        (
            "{scale: 1.0e+39, dtype: int8}",
            ": each 'scale' must be finite and greater than zero in float32",
        ),
        (
            "{scale: [1, -1], dtype: int8, axis: 0}",
            ": each 'scale' must be finite and greater than zero in float32",
        ),
        ("{scale: [], dtype: int8, axis: 0}", ": 'scale' must not be empty"),
        ("{scale: [1, 2], dtype: int8}", ": 'axis' must be given where there are 2 scales"),
        ("{scale: 1, dtype: int8, axis: 1}", ": 'scale' must be a list where there is an 'axis'"),
        ("{scale: [1, true], dtype: int8, axis: 1}", ".scale: expected a number, or a list of such"),
        (
            "{scale: 1, zero_point: 128, dtype: int8}",
            ": zero point 128 is outside the range of int8, -128 to 127",
        ),
        (
            "{scale: 1, zero_point: -1, dtype: uint16}",
            ": zero point -1 is outside the range of uint16, 0 to 65535",
        ),
        ("{scale: 1, zero_point: 1.5, dtype: int8}", ".zero_point: expected a whole number, or a list"),
        ("{scale: [1, 2], zero_point: [1, 2, 3], dtype: int8, axis: 0}", ": 3 zero points for 2 scales"),
        (
            "{low: 0, high: 1, channels: {low: [0], high: [1, 2]}}",
            ".channels: 1 values of 'low' and 2 of 'high'",
        ),
        (
            "{low: 0, high: 1, channels: {low: [0, 3], high: [1, 2]}}",
            ".channels: of channel 1 'low' is 3, above 'high', which is 2",
        ),
        (
            "{low: 0, high: 1, channels: {low: [.nan], high: [1]}}",
            ".channels: 'low' and 'high' must be finite in float32",
        ),
        (
            "{low: 0, high: 1, channels: {low: [-1.0e+308], high: [1.0e+308]}}",
            ".channels: 'low' and 'high' must be finite in float32",
        ),
        ("{low: 0, high: 1, channels: {low: [], high: []}}", ".channels.low: must not be empty"),
        (
            "{channels: {low: [0], high: [1]}}",
            ": expected 'low' and 'high', or 'scale' and 'dtype'",
        ),
        (
            "{scale: 1, dtype: int8, channels: {low: [0], high: [1]}}",
            ": either 'channels' or 'scale' may be given, not both",
        ),
        ("{scale: 1, dtype: int8, usual: [0, 1]}", ": either 'usual' or 'scale' may be given, not both"),
        (
            "{low: 0, high: 1, usual: [1, 0]}",
            ": the two values of 'usual' must be finite in float32, and ascend",
        ),
        (
            "{scale: 1, dtype: int8, clipped: 0.1}",
            ": either 'clipped' or 'scale' may be given, not both",
        ),
        ("{low: 0, high: 1, clipped: 1.5}", ".clipped: must be at most 1"),
        (
            "{low: 0, high: 1, data: [1, 0]}",
            ": the two values of 'data' must be finite in float32, and ascend",
        ),
        ("{low: 0, high: 1, usual: [1]}", ".usual: must have at least 2 items"),
        ("{low: 0, high: 1, usual: [0, 1, 2]}", ".usual: must have at most 2 items"),
    ],
)
def test_mistakes_are_told_where_they_are(tmp_path: Path, entry: str, problem: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"tensors: {{t: {entry}}}")
    with pytest.raises(InputError) as caught:
        read_ranges(path)
    assert str(caught.value).startswith(f"{path}: tensors.t{problem}")


def test_files_of_other_versions(tmp_path: Path) -> None:
    """Those without a format are of any version that is read; the first one had no channels."""
    path = tmp_path / "c.yaml"
    for head in ("", "format: 1\n", "format: 2\n"):
        path.write_text(f"{head}tensors: {{a: {{low: 0, high: 1}}}}")
        assert read_ranges(path).tensors == {"a": Range(0.0, 1.0)}
    path.write_text("format: 3\ntensors: {a: {low: 0, high: 1}}")
    with pytest.raises(InputError, match=r": format: expected 1 or 2"):
        read_ranges(path)


def test_another_number_of_channels_than_the_tensor_has(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("tensors: {y: {low: 0, high: 1, channels: {low: [0, 0], high: [1, 1]}}}")
    found = read_ranges(path)
    assert found.channels["y"].high.tolist() == [1.0, 1.0]
    fitting = prepared("g (float[1, 2, 4] x) => (float[1, 2, 4] y) { y = Neg(x) }")
    found.check_names(fitting, path)
    other = prepared("g (float[1, 3, 4] x) => (float[1, 3, 4] y) { y = Neg(x) }")
    with pytest.raises(InputError) as caught:
        found.check_names(other, path)
    assert str(caught.value) == f"{path}: tensors.y.channels: 2 ranges, and the tensor has 3 channels"


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "sampels: 3\nsamples: -1\ntensors: {a: {low: 1}, b: {scale: 1}, 3: {low: 0, high: 1}}"
    )
    with pytest.raises(InputError) as caught:
        read_ranges(path)
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{path}: ").partition(":")[0] for line in lines] == [
        "samples",
        "tensors.a",
        "tensors.b",
        "tensors[3]",
        "sampels",
    ]
    path.write_text("tensors: {}")
    with pytest.raises(InputError, match=r": tensors: must not be empty$"):
        read_ranges(path)


def test_tensors_that_the_model_lacks() -> None:
    model = prepared(
        """g (float[2] data, bool k) => (float[2] y) <float[2] weight = {1.0, 2.0}> {
            sum_1 = Add(data, weight)
            y = If (k) <
                then_branch = t () => (float[2] inner) { inner = Neg(sum_1) },
                else_branch = e () => (float[2] other) { other = Abs(sum_1) }
            >
        }"""
    )
    whole = Range(0.0, 1.0)
    known = ("data", "weight", "sum_1", "y", "inner", "other")
    Ranges("", 0, "", dict.fromkeys(known, whole)).check_names(model, Path("c.yaml"))
    others = dict.fromkeys(("sum_2", "y", "weights", *map(str, range(60))), whole)
    with pytest.raises(InputError) as caught:
        Ranges("", 0, "", others).check_names(model, Path("c.yaml"))
    lines = str(caught.value).splitlines()
    assert lines[:3] == [
        "c.yaml: tensors.sum_2: the model has no such tensor (did you mean sum_1?)",
        "c.yaml: tensors.weights: the model has no such tensor (did you mean weight?)",
        "c.yaml: tensors.0: the model has no such tensor",
    ]
    assert lines[-1] == "c.yaml: and 12 more"
