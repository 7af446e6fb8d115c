"""A bundle that was changed by someone who knows how: hashes fit, and it is refused all the same."""

import ast
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import UNLIKE, cut, files, original, ramp
from helpers.support import examples, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from byoc.bundle import MANIFEST_FILE, describe_file
from byoc.errors import InputError
from byoc.runtime import load

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bundle(tmp_path: Path, cut_once: Callable[..., Path]) -> Path:
    return cut_once(UNLIKE, tmp_path / "b")


def sealed(bundle: Path) -> None:
    """Give every file of a bundle the hash that it has now, as someone who tampers would."""
    listed = sorted(files(bundle).keys() - {MANIFEST_FILE, "signature.json"})
    entries = {name: describe_file(bundle / name).model_dump() for name in listed}
    content = json.loads((bundle / MANIFEST_FILE).read_text("utf-8"))
    (bundle / MANIFEST_FILE).write_text(json.dumps(content | {"files": entries}), "utf-8")


def _external(tensor: onnx.TensorProto, location: str | None) -> onnx.TensorProto:
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    if location is not None:
        tensor.external_data.add(key="location", value=location)
    return tensor


def _initializer(model: onnx.ModelProto, location: str | None) -> None:
    tensor = onnx.numpy_helper.from_array(ramp(2), "stolen")
    model.graph.initializer.append(_external(tensor, location))


def _constant(model: onnx.ModelProto, location: str | None) -> None:
    tensor = _external(onnx.numpy_helper.from_array(ramp(2), "stolen"), location)
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["stolen"], value=tensor))


def _in_a_function(model: onnx.ModelProto, location: str | None) -> None:
    tensor = _external(onnx.numpy_helper.from_array(ramp(2), "stolen"), location)
    node = onnx.helper.make_node("Constant", [], ["stolen"], value=tensor)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("any", "thief", [], ["stolen"], [node], opsets))


@pytest.mark.parametrize("put", [_initializer, _constant, _in_a_function])
@pytest.mark.parametrize("model", ["model.onnx", "dla_1.onnx"])
@pytest.mark.parametrize(
    "location", ["../../etc/passwd", "/etc/passwd", "link.bin", "weights.bin/../../x", "", None]
)
def test_external_data_that_leads_out(
    location: str | None,
    model: str,
    put: Callable[[onnx.ModelProto, str | None], None],
    bundle: Path,
) -> None:
    proto = onnx.load(bundle / model, load_external_data=False)
    put(proto, location)
    (bundle / model).write_bytes(proto.SerializeToString())
    sealed(bundle)
    (bundle / "link.bin").symlink_to("/etc/passwd")
    with pytest.raises(InputError) as caught:
        load(bundle)
    assert str(caught.value) == f"{bundle}: the file '{location or ''}' has no hash in manifest.json"


def test_bytes_that_are_no_model(bundle: Path) -> None:
    (bundle / "dla_1.onnx").write_bytes(b"\xff" * 40)
    sealed(bundle)
    with pytest.raises(InputError) as caught:
        load(bundle)
    assert str(caught.value) == f"{bundle}: 'dla_1.onnx' is not an ONNX model"


def test_a_name_that_is_no_text(bundle: Path) -> None:
    data = (bundle / "model.onnx").read_bytes()
    (bundle / "model.onnx").write_bytes(data.replace(b"Sigmoid", b"Sigmoi\xff"))
    sealed(bundle)
    with pytest.raises(InputError) as caught:
        load(bundle)
    what = "'model.onnx': not valid ONNX: NodeProto.op_type is not UTF-8 text"
    assert str(caught.value) == f"{bundle}: {what}"


def test_a_tensor_that_nothing_makes(bundle: Path) -> None:
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    model.graph.node[0].output[0] = "other"
    (bundle / "model.onnx").write_bytes(model.SerializeToString())
    sealed(bundle)
    with pytest.raises(InputError) as caught:
        load(bundle)
    assert str(caught.value).startswith(f"{bundle}: 'model.onnx': not valid ONNX: Nodes in a graph")


def test_an_attribute_of_another_type(tmp_path: Path) -> None:
    model = parse("""
        steps (float[2, 4] x, float[3, 2, 4] s) => (float[2, 4] y, float[3, 2, 4] z) {
          y, z = Scan <
            num_scan_inputs = 1,
            body = b (float[2, 4] p, float[2, 4] q) => (float[2, 4] r, float[2, 4] t) {
              r = Add(p, q)
              t = Relu(r)
            }
          > (x, s)
        }""")
    cut(model, tmp_path / "b")
    written = onnx.load(tmp_path / "b/model.onnx", load_external_data=False)
    (number,) = (a for a in written.graph.node[0].attribute if a.name == "num_scan_inputs")
    number.CopyFrom(onnx.helper.make_attribute("num_scan_inputs", "x"))
    (tmp_path / "b/model.onnx").write_bytes(written.SerializeToString())
    sealed(tmp_path / "b")
    with pytest.raises(InputError, match=r"not valid ONNX: .*num_scan_inputs"):
        load(tmp_path / "b")


def _changes(value: Any, draw: st.DrawFn) -> Any:
    """Return JSON with one value somewhere in it exchanged for another, dropped, or doubled."""
    if isinstance(value, (dict, list)) and value and draw(st.integers(0, 5)):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw(st.sampled_from(keys))
        changed = copy.copy(value)
        what = draw(st.sampled_from(["in", "in", "in", "drop", "double"]))
        if what == "in":
            changed[key] = _changes(value[key], draw)
        elif what == "drop":
            del changed[key]
        elif isinstance(changed, list):
            changed.append(value[key])
        else:
            changed[str(key) + "2"] = value[key]
        return changed
    return draw(
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from([2**31, 2**63, -(2**63), 10**400])
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5)
        | st.sampled_from(["x", "a", "dla_0", "dla_1", "NHWC", "NCHWc", "float16", "model.onnx", "dla"])
        | st.lists(st.integers() | st.text(max_size=2), max_size=3)
        | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)
    )


@st.composite
def changed_manifests(draw: st.DrawFn, content: Any) -> Any:
    return _changes(content, draw)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, cut_once: Callable[..., Path]) -> Path:
    return cut_once(UNLIKE, tmp_path_factory.mktemp("kept") / "b")


@pytest.fixture(scope="module")
def expected() -> NDArray[np.float32]:
    """What UNLIKE makes of the numbers that bundles are given here."""
    return original(parse(UNLIKE), {"x": ramp(1, 4)})["y"]


# A manifest may say of its maker's machine what it likes: that is a warning, and changes no number.
@pytest.mark.filterwarnings("ignore:.* multiplies small integers otherwise:RuntimeWarning")
@settings(deadline=None, max_examples=examples(150))
@given(data=st.data())
def test_whatever_is_changed_in_a_manifest(
    data: st.DataObject, kept: Path, expected: NDArray[np.float32]
) -> None:
    """It is refused in a sentence, or what it says about the computation is as before."""
    before = (kept / MANIFEST_FILE).read_bytes()
    content = data.draw(changed_manifests(json.loads(before)))
    (kept / MANIFEST_FILE).write_bytes(json.dumps(content).encode())
    try:
        given_ = load(kept)({"x": ramp(1, 4)})
        np.testing.assert_array_equal(given_["y"], expected)
    except InputError as error:
        assert len(str(error).splitlines()) == 1, str(error)
        assert len(str(error)) < 2000, str(error)
    finally:
        (kept / MANIFEST_FILE).write_bytes(before)


@pytest.mark.parametrize("room", ["bundle", "runtime", "verification", "model", "boundary"])
def test_nothing_is_unpickled(room: str) -> None:
    """In what reads bundles no module that executes what it reads, no numpy file with objects."""
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "torch", "multiprocessing"}
    sources = list((ROOT / "byoc" / room).rglob("*.py"))
    assert sources
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not banned & {name.partition(".")[0] for name in names}, path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, path
