"""Samples: from folders of every kind, made up, and given; refused in a sentence that names the file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.calibrating import inputs
from helpers.support import prepared
from onnx import TensorProto
from PIL import Image

from byoc.errors import InputError
from byoc.model import Model
from byoc.quantization import calibrate
from byoc.samples import NO_PREPROCESSING, Preprocessing, find_samples, sample_inputs

TWO = prepared("g (float[2] a, int64[N] b) => (float[2] y) { c = Cast <to = 1> (b) y = Add(a, c) }")
ONE = prepared("g (float[N, 2] x) => (float[N, 2] y) { y = Neg(x) }")


def read(
    folder: Path, model: Model, images: Preprocessing = NO_PREPROCESSING, most: int | None = None
) -> dict[str, dict[str, Any]]:
    data = find_samples(folder, model, images, most)
    found = {sample.name: dict(sample.inputs) for sample in data.read_from(0)}
    assert len(found) == data.total
    return {name.removeprefix(f"{folder}/"): sample for name, sample in found.items()}


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    for i in (2, 0, 1):
        np.save(tmp_path / f"s{i}.npy", np.full((1, 2), i, np.float32))
    (tmp_path / "README.txt").write_text("not a sample")
    found = read(tmp_path, ONE)
    assert [(name, sample["x"].tolist()) for name, sample in found.items()] == [
        (f"s{i}.npy", [[i, i]]) for i in (0, 1, 2)
    ]
    assert list(read(tmp_path, ONE, most=2)) == ["s0.npy", "s1.npy"]


def test_one_dimension_more_is_a_stack(tmp_path: Path) -> None:
    stack = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    np.save(tmp_path / "all.npy", stack)
    found = read(tmp_path, ONE)
    assert list(found) == ["all.npy[0]", "all.npy[1]", "all.npy[2]"]
    assert np.array_equal([sample["x"] for sample in found.values()], stack)
    assert [sample.name for sample in find_samples(tmp_path, ONE, NO_PREPROCESSING, 2).read_from(1)] == [
        f"{tmp_path}/all.npy[1]"
    ]


def test_archives(tmp_path: Path) -> None:
    a, b = np.array([1, 2], np.float32), np.array([5, 6, 7])
    np.savez(tmp_path / "s.npz", a=a, b=b)
    found = read(tmp_path, TWO)["s.npz"]
    assert (found["a"].tolist(), found["b"].tolist()) == ([1, 2], [5, 6, 7])


def test_folders_of_inputs(tmp_path: Path) -> None:
    for name, kind in (("a", np.float32), ("b", np.int64)):
        (tmp_path / name).mkdir()
        for i in range(2):
            np.save(tmp_path / name / f"{i}.npy", np.array([i, ord(name)], kind))
    found = read(tmp_path, TWO)
    assert {n: [s["a"].tolist(), s["b"].tolist()] for n, s in found.items()} == {
        "a/0.npy": [[0, 97], [0, 98]],
        "a/1.npy": [[1, 97], [1, 98]],
    }
    (tmp_path / "b" / "1.npy").unlink()
    with pytest.raises(InputError, match=r"a/1\.npy: there is no such file in '.*/b'$"):
        read(tmp_path, TWO)
    np.save(tmp_path / "b" / "1.npy", np.zeros((4, 1), np.int64))
    with pytest.raises(InputError, match=r"a/1\.npy: .* 'a': one sample, 'b': 4 samples$"):
        read(tmp_path, TWO)


def image(path: Path, size: tuple[int, int] = (5, 4), seed: int = 0) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".JPEG"])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_as_by_hand(tmp_path: Path, suffix: str, color: Any, channels_last: bool) -> None:
    shape = "1, 6, 8, 3" if channels_last else "N, 3, 6, 8"
    model = prepared(f"g (float[{shape}] x) => (float[{shape}] y) {{ y = Neg(x) }}")
    image(tmp_path / f"a{suffix}")
    how = Preprocessing((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), 128.0, color)
    found = read(tmp_path, model, images=how)[f"a{suffix}"]["x"]
    with Image.open(tmp_path / f"a{suffix}") as opened:
        pixels = np.asarray(opened.convert("RGB").resize((8, 6), Image.Resampling.BILINEAR), np.float64)
    if color == "bgr":
        pixels = pixels[..., ::-1]
    expected = (pixels / 128 - [0.1, 0.2, 0.3]) / [0.5, 0.6, 0.7]
    assert found.dtype == np.float32
    assert found.shape == ((1, 6, 8, 3) if channels_last else (1, 3, 6, 8))
    np.testing.assert_allclose(
        found[0], expected if channels_last else expected.transpose(2, 0, 1), 1e-4
    )


def test_images_in_grey_and_as_bytes(tmp_path: Path) -> None:
    image(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as opened:
        grey, colour = np.asarray(opened.convert("L")), np.asarray(opened.convert("RGB"))
    model = prepared("g (float16[1, 1, 4, 5] x) => (float16[1, 1, 4, 5] y) { y = Neg(x) }")
    found = read(tmp_path, model)["a.png"]["x"]
    assert np.array_equal(found, (grey.astype(np.float32) / 255).astype(np.float16)[None, None])
    model = prepared("g (uint8[1, 4, 5, 3] x) => (uint8[1, 4, 5, 3] y) { y = Identity(x) }")
    found = read(tmp_path, model, images=Preprocessing((9.0,)))["a.png"]["x"]
    assert np.array_equal(found, colour[None])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("float[2, 3, 4, 4]", "one image is a batch of 1"),
        ("float[1, 4, 4, 4]", "neither its second nor its last dimension is 1 or 3 channels"),
        ("float[1, 3, H, 4]", r"its height and width must be fixed \(--dim\)"),
        ("float[3, 4, 4]", "expected four dimensions of float32, float16, uint8"),
        ("int64[1, 3, 4, 4]", "expected four dimensions of float32, float16, uint8"),
    ],
)
def test_inputs_that_are_no_images(tmp_path: Path, kind: str, reason: str) -> None:
    image(tmp_path / "a.png")
    model = prepared(f"g ({kind} x) => ({kind} y) {{ y = Identity(x) }}")
    with pytest.raises(InputError, match=f"images cannot be the input 'x', which is .*: {reason}$"):
        read(tmp_path, model)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mean": (0.1, 0.2)}, "2 numbers are the images' mean, and their input is of 3 channels"),
        ({"std": (0.0,)}, "the images' std: must be greater than zero"),
        ({"scale": -1.0}, "the images' scale: must be greater than zero"),
        ({"mean": (float("nan"),)}, "the images' mean: expected finite numbers"),
        ({"color": "hsv"}, "the images' color: expected rgb or bgr, not 'hsv'"),
    ],
)
def test_preprocessing_that_makes_no_sense(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    image(tmp_path / "a.png")
    model = prepared("g (float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y) { y = Neg(x) }")
    with pytest.raises(InputError, match=f"{reason}$"):
        read(tmp_path, model, images=Preprocessing(**options))


def _array(*shape: int, dtype: Any = np.float32) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / "s.npy", np.zeros(shape, dtype))


def _bytes(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: _discard((folder / name).write_bytes(content))


def _stated(shape: str, descr: str = "<f4") -> Callable[[Path], None]:
    """Write a file of no data whose header states a shape."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return _bytes("s.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def _external(folder: Path) -> None:
    (folder / "beside.bin").write_bytes(bytes(8))
    tensor = TensorProto(data_type=TensorProto.FLOAT, dims=[1, 2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="beside.bin")
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())


def _discard(_: object) -> None:
    return None


def _pickled(folder: Path) -> None:
    np.save(folder / "s.npy", np.array([{}], object), allow_pickle=True)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            _array(1, 3),
            r"/s\.npy: the input 'x' is float32\[1, 3\], and the model takes float32\[N, 2\]",
        ),
        (_array(1, 2, dtype=np.float64), r"/s\.npy: the input 'x' is float64\[1, 2\], and the model .*"),
        (_array(2), r"/s\.npy: the input 'x' is float32\[2\], .*"),
        (_bytes("s.npy", b""), r"/s\.npy: is empty"),
        (_bytes("s.npy", b"\x93NUMPY\x01"), r"/s\.npy: cannot be read as \.npy: .*"),
        (_bytes("s.npy", b"hello, numbers"), r"/s\.npy: cannot be read as \.npy: .*"),
        (_pickled, r"/s\.npy: cannot be read as \.npy: .*"),
        (_stated("(99999999999999999999999,)"), r"/s\.npy: cannot be read as \.npy: .*"),
        (_stated("(" * 3000), r"/s\.npy: cannot be read as \.npy: .*"),
        (_stated("(1000000000000,)", "|V0"), r"/s\.npy: \|V0\[1000000000000\] has no bytes"),
        (_stated("(1000000000000, 0, 2)"), r"/s\.npy: float32\[1000000000000, 0, 2\] has no bytes"),
        (_external, r": not a tensor of ONNX: its values are in another file, which is not read"),
        (_bytes("s.npz", b"PK\x03\x04 no archive"), r"/s\.npz: not an \.npz file: .*"),
        (
            _bytes("s.npz", b""),
            r"/s\.npz: not an \.npz file; numpy\.savez\(FILE, NAME=array\) writes one",
        ),
        (
            lambda folder: np.savez(folder / "s.npz", X=1),
            r"/s\.npz: the model has no input 'X' .*mean x.*",
        ),
        (lambda folder: np.savez(folder / "s.npz"), r"/s\.npz: there is no value for the input 'x'"),
        (lambda folder: None, "holds no samples: no .npy, .npz or image files"),
        (_bytes("s.txt", b"1 2 3"), "holds no samples: no .npy, .npz or image files"),
    ],
)
def test_folders_that_do_not_do(
    tmp_path: Path,
    make: Callable[[Path], None],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path)
    with pytest.raises(InputError, match=f"^{tmp_path}.*{reason}$") as caught:
        read(tmp_path, ONE)
    assert "\n" not in str(caught.value)


def test_a_batch_other_than_the_fixed_one(tmp_path: Path) -> None:
    model = prepared("g (float[1, 2] x) => (float[1, 2] y) { y = Neg(x) }")
    np.save(tmp_path / "s.npy", np.zeros((8, 2), np.float32))
    with pytest.raises(
        InputError, match=r"the input 'x' is float32\[8, 2\], and the model takes float32"
    ):
        calibrate(model, tmp_path)


def test_corrupt_images(tmp_path: Path) -> None:
    image(tmp_path / "a.png", (64, 64))
    whole = (tmp_path / "a.png").read_bytes()
    model = prepared("g (float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y) { y = Neg(x) }")
    for content in (b"", b"no image", whole[: len(whole) // 2]):
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(InputError, match=r"/a\.png: cannot be read as an image"):
            read(tmp_path, model)


def test_places_that_are_no_folders_of_one_kind(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: cannot be read: No such file or directory$"):
        calibrate(ONE, tmp_path / "nowhere")
    np.save(tmp_path / "s.npy", np.zeros((1, 2), np.float32))
    with pytest.raises(InputError, match=r"s\.npy: is a file, and samples come from a folder"):
        calibrate(ONE, tmp_path / "s.npy")
    with pytest.raises(InputError, match=r"holds \.npy files, and the model has 2 inputs \(a, b\)"):
        calibrate(TWO, tmp_path)
    image(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"holds images and \.npy files: it must be one of these$"):
        calibrate(ONE, tmp_path)


def test_random_samples_are_not_those_of_the_verification(net: Model) -> None:
    data = find_samples("random", net, NO_PREPROCESSING, 3)
    drawn = [sample.inputs["x"] for sample in data.read_from(0)]
    assert data.random
    assert len(drawn) == 3
    expected = [sample_inputs(net.index, seed)["x"] for seed in (1, 2, 3)]
    assert np.array_equal(drawn, expected)
    assert np.array_equal([sample.inputs["x"] for sample in data.read_from(2)], expected[2:])
    found = calibrate(net, "random", samples=2, method="minmax")
    assert (found.random, found.samples, found.source) == (True, 2, "random")
    assert found.notes == ("calibrated on random data: the ranges say little about real data",)


def test_given_samples_are_checked_and_limited(net: Model) -> None:
    given = inputs(4)
    assert [sample.name for sample in find_samples(given, net, NO_PREPROCESSING, 3).read_from(1)] == [
        "sample 2",
        "sample 3",
    ]
    assert calibrate(net, iter(given), method="minmax") == calibrate(net, given, method="minmax")
    with pytest.raises(InputError, match=r"an iterator can be gone through once, and mse does so twice"):
        calibrate(net, iter(given), method="mse")
    with pytest.raises(InputError, match=r"^sample 2: the model has no input 'z'$"):
        calibrate(net, [*given[:1], {"z": given[0]["x"]}], method="minmax")
    with pytest.raises(InputError, match=r"^samples: there are no samples$"):
        calibrate(net, [])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "^sample 2: the tensor 'x' is not a number"),
        (1e20, "^sample 2: the tensor 'd' is not a number"),
    ],
)
def test_nan_is_told_with_tensor_and_sample(value: float, reason: str) -> None:
    model = prepared("g (float[2] x) => (float[2] d) { e = Exp(x) d = Sub(e, e) }")
    samples = [{"x": np.array([v, 1.0], np.float32)} for v in (0.0, value)]
    with pytest.raises(InputError, match=reason):
        calibrate(model, samples)


def test_infinite_and_empty_tensors_have_no_range() -> None:
    model = prepared(
        """g (float[2] x) => (float[2] l, float[0] n) {
            l = Log(x)
            k = Constant <value = int64[1] {0}> ()
            s = Constant <value = int64[1] {0}> ()
            n = Slice(x, k, s)
        }"""
    )
    samples = [{"x": np.array([v, 1.0], np.float32)} for v in (1.0, 0.0, 2.0)]
    found = calibrate(model, samples)
    assert list(found.tensors) == ["x"]
    assert found.notes == (
        "'l' is infinite in sample 2, and has no range",
        "'n' is empty in all samples, and has no range",
    )
