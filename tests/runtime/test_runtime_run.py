"""`byoc run`: inputs from files, outputs to files, where the time went, and what is refused."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import CHAIN, cut, files, ramp
from helpers.support import Ran, parse
from test_runtime_trace import check

import byoc as library
from byoc.errors import InputError
from byoc.model import TensorType
from byoc.runtime import Trace
from byoc.samples import read_npy, read_npz, restore_dtype, write_npz

Byoc = Callable[..., Ran]

pytestmark = pytest.mark.usefixtures("numbered_regions")

TWO = """two (float[1, 4] image, int64[N] rows) => (float[1, 4] y, int64[N] j) {
  a = Relu(image)
  b = Sigmoid(a)
  y = Relu(b)
  j = Abs(rows)
}"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two") / "b"
    cut(parse(TWO), path)
    return path


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "x.npz"
    np.savez(path, image=ramp(1, 4), rows=np.array([-3, 4, 0]))
    return path


def test_a_run_from_file_to_file(byoc: Byoc, two: Path, given: Path, tmp_path: Path) -> None:
    ran = byoc("run", two, "--inputs", given, "-o", tmp_path / "y.npz")
    assert (ran.code, ran.err) == (0, "")
    for name in ("host segment 0", "dla_0", "dla_1", "y: float32[1, 4]", "j: int64[3]", "in all"):
        assert name in ran.out
    with np.load(tmp_path / "y.npz", allow_pickle=False) as found:
        assert sorted(found.files) == ["j", "y"]
        assert found["j"].tolist() == [3, 4, 0]
        positive = np.maximum(ramp(1, 4).astype(np.float64), 0)
        np.testing.assert_allclose(found["y"], 1 / (1 + np.exp(-positive)), rtol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npz", "y.npz"]


def test_json_repeats_and_a_trace(byoc: Byoc, two: Path, given: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    ran = byoc(
        *("run", two, "--inputs", given, "--repeat", "3"), *("--trace", trace, "--format", "json")
    )
    assert ran.code == 0
    document = json.loads(ran.out)
    rows = document["segments"]
    assert [(row["segment"], row["on"]) for row in rows][:2] == [
        ("host segment 0", "host"),
        ("dla_0", "dla"),
    ]
    assert [(row["bytes_in"], row["bytes_out"]) for row in rows if row["segment"] == "dla_0"] == [
        (16, 16)
    ]
    assert document["repeats"] == 3
    assert document["notes"] == []
    assert document["seconds"] > 0
    assert document["outputs"] == [
        {"name": "y", "type": "float32[1, 4]"},
        {"name": "j", "type": "int64[3]"},
    ]
    every = check(json.loads(trace.read_text(encoding="utf-8")))
    events = [event for event in every if event["cat"] != "operator"]
    assert sorted(event["name"] for event in events) == sorted(row["segment"] for row in rows)
    told = [[(each["name"], each["nodes"]) for each in row["operators"]] for row in rows]
    seen = {row["segment"]: [] for row in rows}
    for event in every:
        if event["cat"] == "operator":
            seen[event["args"]["stage"]].append((event["name"], event["args"]["nodes"]))
    assert list(seen.values()) == told
    assert all(row["bytes_held"] >= row["bytes_out"] for row in rows)
    shown = byoc("run", two, "--inputs", given, "--trace", trace).out
    assert "inside of dla_0, " in shown
    if sys.platform == "linux":
        assert document["segments"][0]["peak_bytes"] > 1 << 20
        assert "in memory" in shown


def test_a_pipeline(byoc: Byoc, two: Path, given: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    asked = ("run", two, "--inputs", given, "--repeat", "5", "--pipeline", "2")
    ran = byoc(*asked, "--trace", trace, "-o", tmp_path / "y.npz", "--format", "json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert (document["repeats"], document["pipeline"]["in_flight"]) == (5, 2)
    assert document["pipeline"]["runs_per_second"] == pytest.approx(5 / document["seconds"])
    busy = document["pipeline"]["busy"]
    assert list(busy) == ["host", "dla"]
    assert all(0 < share <= 1 for share in busy.values())
    events = json.loads(trace.read_text())["traceEvents"]
    names = [e["name"] for e in events if e["ph"] == "X" and e["cat"] != "operator"]
    assert {name: names.count(name) for name in names} == {
        row["segment"]: 5 for row in document["segments"]
    }
    with np.load(tmp_path / "y.npz") as found:
        assert found["j"].tolist() == [3, 4, 0]
    text = byoc(*asked).out
    assert re.search(
        r"\n[0-9.]+ [mµ]?s for 5 runs, 2 in flight: [0-9.e+]+ a second; busy: host \d+%, dla \d+%\n",
        text,
    )
    assert byoc("run", two, "--inputs", given, "--pipeline", "0").code == 2
    alone = byoc("run", two, "--inputs", given, "--pipeline", "2")
    assert (alone.code, "--repeat is missing" in alone.err) == (2, True)


def test_runs_to_come_take_no_memory(
    byoc: Byoc, two: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Trace] = []

    def stop(*_: object) -> Trace:
        if len(made) == 3:
            raise InputError("enough of it")
        made.append(Trace())
        return made[-1]

    monkeypatch.setattr("byoc.Trace", stop)
    asked = ("run", two, "--inputs", given, "--repeat", "2000000000")
    ran = byoc(*asked)
    assert (ran.code, ran.err) == (1, "byoc: enough of it\n")
    assert all(trace.events for trace in made)  # each of a run that was over before the next one began

    def refuse_lists(_: object, inputs: object, __: int) -> Any:
        raise InputError(f"{type(inputs).__name__} of the inputs")

    made.clear()
    monkeypatch.setattr("byoc.runtime._variant_session.run_in_pipeline", refuse_lists)
    assert byoc(*asked, "--pipeline", "2").err == "byoc: repeat of the inputs\n"


def test_random_inputs_and_one_from_a_file(byoc: Byoc, two: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", np.array([-7, 7, 1, 0]))
    row = ("--input", f"rows={tmp_path / 'r.npy'}")
    for name in ("one.npz", "two.npz"):
        assert byoc("run", two, "--inputs", "random", *row, "-o", tmp_path / name).code == 0
    one, other = read_npz(tmp_path / "one.npz"), read_npz(tmp_path / "two.npz")
    assert one["j"].tolist() == [7, 7, 1, 0]
    assert np.array_equal(one["y"], other["y"])
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def _evil(path: Path) -> None:
    np.savez(path, image=np.array([{}], dtype=object), rows=np.zeros(1, np.int64))


def _garbled(path: Path) -> None:
    np.savez(path, image=ramp(1, 4), rows=np.zeros(900, np.int64))
    content = path.read_bytes()
    path.write_bytes(content[:200] + bytes(64) + content[264:])


def _huge(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive, archive.open("image.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)}
        )


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda path: np.savez(path, image=ramp(1, 4)), "x.npz: missing input 'rows'"),
        (
            lambda path: np.savez(path, imagge=ramp(1, 4), rows=np.zeros(1, np.int64)),
            "x.npz: no input 'imagge' (did you mean image?); the model's inputs: image, rows",
        ),
        (
            lambda path: np.savez(path, image=np.zeros((1, 4)), rows=np.zeros(1, np.int64)),
            "input 'image' is float64[1, 4], the model takes float32[1, 4]",
        ),
        (
            lambda path: np.savez(path, image=ramp(1, 5), rows=np.zeros(1, np.int64)),
            "input 'image' is float32[1, 5], the model takes float32[1, 4]",
        ),
        (_evil, "x.npz: image: it holds pickled objects, which are not read"),
        (_garbled, "x.npz: "),
        (_huge, "x.npz: image: "),
        (lambda path: path.write_bytes(pickle.dumps([1])), "x.npz: not an .npz file"),
        (lambda path: path.write_bytes(b""), "x.npz: not an .npz file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 and no more"), "x.npz: not an .npz file: "),
        (lambda path: path.mkdir(), "x.npz: cannot be read: "),
        (lambda path: None, "x.npz: no such file"),
    ],
)
def test_inputs_that_are_refused(
    write: Callable[[Path], Any], sentence: str, byoc: Byoc, two: Path, tmp_path: Path
) -> None:
    write(tmp_path / "x.npz")
    ran = byoc(
        *("run", two, "--inputs", tmp_path / "x.npz"),
        *("-o", tmp_path / "y.npz", "--trace", tmp_path / "t.json"),
    )
    assert ran.code == 1
    assert ran.out == ""
    assert sentence in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "y.npz").exists()
    assert not (tmp_path / "t.json").exists()


def test_an_array_is_no_archive_and_an_archive_no_array(byoc: Byoc, two: Path, given: Path) -> None:
    single = given.with_name("x.npy")
    np.save(single, ramp(1, 4))
    ran = byoc("run", two, "--inputs", single)
    assert (ran.code, ran.err) == (
        1,
        f"byoc: {single}: one array without a name, not an .npz file (see --input NAME=FILE)\n",
    )
    ran = byoc("run", two, "--input", f"image={given}")
    assert (ran.code, ran.err) == (
        1,
        f"byoc: {given}: arrays by name, not an .npy file (see --inputs FILE)\n",
    )


def test_usage_is_checked(byoc: Byoc, two: Path) -> None:
    ran = byoc("run", two)
    assert ran.code == 2
    assert "Error: --inputs is missing: give a file of inputs (FILE.npz), or random\n" in ran.err
    assert byoc("run", two, "--input", "image").code == 2
    assert byoc("run", two, "--inputs", "random", "--repeat", "0").code == 2


def test_nothing_runs_when_an_output_cannot_be_written(byoc: Byoc, two: Path, tmp_path: Path) -> None:
    ran = byoc("run", two, "--inputs", "random", "-o", tmp_path / "no/y.npz")
    assert ran.code == 1
    assert "cannot be written: there is no folder" in ran.err
    there = tmp_path / "y.npz"
    there.write_text("mine", encoding="utf-8")
    ran = byoc("run", two, "--inputs", "random", "-o", there, "--trace", tmp_path)
    assert (ran.code, there.read_text(encoding="utf-8")) == (1, "mine")


def test_any_name_and_dtype_goes_through_a_file(tmp_path: Path) -> None:
    """Names that are arguments of numpy's own function, foreign dtypes, texts, sequences, nothing."""
    bfloat = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    float8 = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.FLOAT8E4M3FN)
    half = np.array([1.5, -2.0], np.float32)
    arrays: dict[str, Any] = {
        "file": np.array(3.0),
        "gpu_0/data": np.arange(3, dtype=np.int8),
        "b": half.astype(bfloat),
        "f8": half.astype(float8),
        "texts": np.array(["a", "é"], dtype=object),
        "parts": [np.zeros(2), np.ones(1)],
        "nothing": None,
    }
    write_npz(tmp_path / "a.npz", arrays)
    found = read_npz(tmp_path / "a.npz")
    assert sorted(found) == ["b", "f8", "file", "gpu_0/data", "parts[0]", "parts[1]", "texts"]
    assert found["file"].shape == ()
    assert found["texts"].tolist() == ["a", "é"]
    for name, kind in (("b", "bfloat16"), ("f8", "float8e4m3fn")):
        back = restore_dtype(found[name], TensorType(kind, (2,)))
        assert back.dtype == arrays[name].dtype
        assert back.astype(np.float32).tolist() == half.tolist()
    assert found["parts[1]"].tolist() == [1.0]


def test_an_output_of_a_device_is_read_by_numpy_alone(tmp_path: Path) -> None:
    """What a region gives as `y` is float32 in the file, in a process that knows nothing of byoc."""
    model = parse("relu (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
    library.partition(model, "dla", output=tmp_path / "b", strategy="all-supported")
    given = ramp(2, 3)
    np.savez(tmp_path / "x.npz", x=given.astype(">f4"))
    command = [sys.executable, "-m", "byoc", "run", "b", "--inputs", "x.npz", "-o", "y.npz"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    with np.load(tmp_path / "y.npz") as found:
        assert found["y"].dtype is np.dtype(np.float32)
        assert np.array_equal(found["y"], np.maximum(given, 0))


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("code", ["f2", "f4", "i8", "u2", "?", "c8", "U3"])
def test_arrays_of_either_byte_order_are_written_as_what_they_hold(
    code: str, order: str, tmp_path: Path
) -> None:
    values: Any = np.array([0, 1, 7]).astype(code)
    foreign = values.astype(np.dtype(code).newbyteorder(order))
    write_npz(tmp_path / "a.npz", {"a": foreign})
    np.savez(tmp_path / "b.npz", a=foreign)
    np.save(tmp_path / "b.npy", foreign)

    with np.load(tmp_path / "a.npz") as written:
        read = [written["a"], read_npz(tmp_path / "b.npz")["a"], read_npy(tmp_path / "b.npy")]
    for found in read:
        assert found.dtype == values.dtype
        assert found.tolist() == values.tolist()


def test_a_single_array_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4).reshape(2, 2))
    assert read_npy(tmp_path / "a.npy").tolist() == [[0, 1], [2, 3]]


def test_what_is_no_bundle_is_said(byoc: Byoc, tmp_path: Path) -> None:
    ran = byoc("run", tmp_path / "none", "--inputs", "random")
    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1


def test_a_chain_without_a_host_part(byoc: Byoc, tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    ran = byoc("run", tmp_path / "b", "--inputs", "random", "--format", "json")
    assert [row["segment"] for row in json.loads(ran.out)["segments"]] == [
        "dla_0",
        "host segment 0",
        "dla_1",
    ]


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_an_output_that_is_no_regular_file_is_left_alone(
    option: str, byoc: Byoc, two: Path, given: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    ran = byoc("run", two, "--inputs", given, option, tmp_path / "pipe")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"byoc: {tmp_path}/pipe: cannot be written: it is not a regular file\n"
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_a_link_is_written_through(
    option: str, byoc: Byoc, two: Path, given: Path, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("there/file")
    assert byoc("run", two, "--inputs", given, option, tmp_path / "link").code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there/file").stat().st_size > 100
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["file"]
    (tmp_path / "there/file").unlink()
    ran = byoc("run", two, "--inputs", given, option, tmp_path / "link")
    assert ran.err.endswith("link: cannot be written: it is a link to nothing\n")


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_the_bundle_that_is_run_is_not_written_to(
    option: str, byoc: Byoc, two: Path, given: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(two / "model.onnx")
    (tmp_path / "b").symlink_to(two)
    before = files(two)
    for bundle, path in ((two, two / "manifest.json"), (two, two / "y"), (tmp_path / "b", two / "y")):
        ran = byoc("run", bundle, "--inputs", given, option, path)
        told = f"cannot be written: it would change the bundle that is run, {bundle}"
        assert (ran.code, ran.err) == (1, f"byoc: {path}: {told}\n")
    assert byoc("run", two, "--inputs", given, option, tmp_path / "link").code == 1
    assert files(two) == before
    assert byoc("pack", two, "-o", tmp_path / "b.zip").code == 0
    packed = (tmp_path / "b.zip").read_bytes()
    assert byoc("run", tmp_path / "b.zip", "--inputs", given, option, tmp_path / "b.zip").code == 1
    assert (tmp_path / "b.zip").read_bytes() == packed


@pytest.mark.parametrize("shape", ["(True, 4)", f"({2**70},)", "(4, 0, True)"])
def test_shapes_that_numpy_trips_over(shape: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(16)
    (tmp_path / "a.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    with pytest.raises(InputError, match=r"a\.npy: its header is wrong: "):
        read_npy(tmp_path / "a.npy")
    with pytest.raises(InputError, match=r"a\.npz: x: its header is wrong: "):
        read_npz(tmp_path / "a.npz")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux only")
def test_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"o\xff")
    with pytest.raises(InputError, match="is not UTF-8, and onnxruntime opens no other paths"):
        cut(parse(CHAIN), folder, codegen="reference")
    cut(parse(CHAIN), tmp_path / "o", codegen="reference")
    shutil.copytree(tmp_path / "o", folder)
    inputs = {"x": ramp(1, 4)}
    there, here = library.load(folder)(inputs), library.load(tmp_path / "o")(inputs)
    assert there.keys() == here.keys()
    for name, value in here.items():
        np.testing.assert_array_equal(there[name], value)
