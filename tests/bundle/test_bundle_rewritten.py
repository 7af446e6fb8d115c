"""A region that a pass rewrote: where its weights are, and what makes it another region."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import TensorProto, numpy_helper

from byoc.bundle import WeightFile, write_rewritten
from byoc.codegen import Region, read_region
from byoc.errors import InputError

LARGE = 4000
TEXT = f"g (float[{LARGE}] x) => (float[{LARGE}] y) {{ a = Mul(x, w) b = Add(a, v) y = Add(b, s) }}"
Edit = Callable[[onnx.ModelProto], None]


def make_values() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    values = {name: random.random(LARGE, np.float32) for name in "wv"}
    return {**values, "s": np.array([3], np.float32)}


@pytest.fixture
def region(tmp_path: Path) -> Region:
    """Return a region whose large weights are in a file."""
    model = parse(TEXT)
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in make_values().items())
    path = tmp_path / "r.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    return read_region(path, "r", "dla")


def rewrite(region: Region, edit: Edit) -> Region:
    """Write the edited region, with weights in memory, beside the region's own file."""
    model = parse(TEXT)
    model.CopyFrom(onnx.load(region.path))
    edit(model)
    folder = region.path.parent
    return write_rewritten(region, model, folder / "made.onnx", None, WeightFile(folder))


def read_values(region: Region) -> dict[str, np.ndarray]:
    return {each.name: numpy_helper.to_array(each) for each in onnx.load(region.path).graph.initializer}


def set_value(name: str, value: np.ndarray) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        (tensor,) = (each for each in model.graph.initializer if each.name == name)
        tensor.CopyFrom(numpy_helper.from_array(value, name))

    return edit


def locate(region: Region) -> dict[str, tuple[str, int]]:
    """Return the file and the offset of each weight that is in one."""
    found = {}
    for tensor in onnx.load(region.path, load_external_data=False).graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            entries = {each.key: each.value for each in tensor.external_data}
            found[tensor.name] = entries["location"], int(entries.get("offset", 0))
    return found


def test_weights_that_are_as_before_stay_where_they_are(region: Region) -> None:
    size = (region.path.parent / "weights.bin").stat().st_size
    made = rewrite(region, lambda model: None)
    assert locate(made) == locate(region)
    assert (region.path.parent / "weights.bin").stat().st_size == size
    assert [each.name for each in made.inputs] == [each.name for each in region.inputs]
    assert {each.name: each.tensor for each in made.constants} == {
        each.name: each.tensor for each in region.constants
    }


@pytest.mark.parametrize("index", [0, 17, LARGE - 1])
def test_a_weight_of_which_one_element_differs_is_new(region: Region, index: int) -> None:
    changed = make_values()["v"]
    changed[index] += 1
    made = rewrite(region, set_value("v", changed))
    values = read_values(made)
    assert values["v"].tolist() == changed.tolist()
    assert values["w"].tolist() == make_values()["w"].tolist()
    assert locate(made)["w"] == locate(region)["w"]
    assert locate(made)["v"] != locate(region)["v"]
    assert locate(made).keys() == {"v", "w"}
    assert read_values(region)["v"].tolist() == make_values()["v"].tolist()


def test_a_small_weight_stays_in_the_model_with_its_new_value(region: Region) -> None:
    made = rewrite(region, set_value("s", np.array([5], np.float32)))
    assert read_values(made)["s"].tolist() == [5]
    assert locate(made) == locate(region)
    made = rewrite(region, set_value("s", np.array(5, np.float32)))  # of another rank
    assert read_values(made)["s"].shape == ()


def test_a_weight_that_nothing_reads_is_left_out(region: Region) -> None:
    def drop(model: onnx.ModelProto) -> None:
        model.graph.node[1].input[1] = "w"

    made = rewrite(region, drop)
    assert read_values(made).keys() == {"w", "s"}


def test_another_region_is_refused(region: Region) -> None:
    def rename(model: onnx.ModelProto) -> None:
        model.graph.node[0].input[0] = model.graph.input[0].name = "z"

    def widen(model: onnx.ModelProto) -> None:
        model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
        model.graph.node[2].op_type = "ReduceSum"
        del model.graph.node[2].input[1]

    def break_it(model: onnx.ModelProto) -> None:
        model.graph.node[1].input[0] = "nowhere"

    for edit, text in ((rename, "input"), (widen, "output"), (break_it, "what it makes is ")):
        with pytest.raises(InputError, match=text):
            rewrite(region, edit)


def test_texts_are_compared_too(tmp_path: Path) -> None:
    model = parse("g (int64[2] i) => (string[2] y) { y = Gather(t, i) }")
    model.graph.initializer.append(onnx.helper.make_tensor("t", TensorProto.STRING, [2], ["a", "b"]))
    onnx.save(model, tmp_path / "r.onnx")
    region = read_region(tmp_path / "r.onnx", "r", "dla")
    for texts in ([b"a", b"b"], [b"a", b"c"]):
        model.graph.initializer[0].string_data[:] = texts
        made = write_rewritten(region, model, tmp_path / "made.onnx", None, WeightFile(tmp_path))
        assert list(onnx.load(made.path).graph.initializer[0].string_data) == texts
