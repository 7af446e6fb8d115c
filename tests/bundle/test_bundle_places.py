"""Where weights go, and whether there is a place to write to: functions asked by themselves."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import TensorProto, numpy_helper

from byoc.bundle import OriginalFiles, WeightFile, check_destination, move_weights
from byoc.errors import InputError

MANY = np.arange(4000, dtype=np.float32)


def test_large_constants_go_into_the_weight_file_and_others_stay(tmp_path: Path) -> None:
    model = parse("g (float[4000] x) => (float[4000] y) { a = Mul(x, c) b = Mul(a, s) y = Mul(b, f) }")
    tensors = {"c": MANY, "s": np.array([2], np.float32)}
    constants = [
        onnx.helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, "inner"))
        for name, value in tensors.items()
    ]
    # Another attribute, before the value by name, is not what a node holds.
    constants[0].attribute.insert(
        0, onnx.helper.make_attribute("doc", numpy_helper.from_array(MANY + 1))
    )
    constants.append(onnx.helper.make_node("Constant", [], ["f"], value_float=3.0))
    for node in reversed(constants):
        model.graph.node.insert(0, node)
    with WeightFile(tmp_path) as weights:
        moved = move_weights(model, None, weights)
    (large,) = moved.graph.initializer
    assert (large.name, large.data_location) == ("c", TensorProto.EXTERNAL)
    assert [node.output[0] for node in moved.graph.node] == ["s", "f", "a", "b", "y"]
    onnx.save(moved, tmp_path / "moved.onnx")
    (read,) = onnx.load(tmp_path / "moved.onnx").graph.initializer
    assert numpy_helper.to_array(read).tolist() == MANY.tolist()


def test_of_a_tensor_in_no_file_there_is_no_place(tmp_path: Path) -> None:
    files = OriginalFiles(tmp_path, tmp_path / "b", "link")
    assert files.find(None) is None


def test_a_folder_that_takes_no_file_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_destination(tmp_path / "b")
    assert not [*tmp_path.iterdir()]

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(InputError, match=r"b: cannot be written: Read-only file system$"):
        check_destination(tmp_path / "b")
