"""Constants in the layout that a codegen asks for."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import ramp
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st
from rebuilding import make_region

from byoc.codegen import Region
from byoc.model import pack_operand, parse_layout

IMAGE = ramp(2, 20, 3, 5)
LAYOUTS = ["NHWC", "NCHW", "NCHW16c", "NCHW4c", "CHWN"]


def make(folder: Path, **stored: Any) -> Region:
    model = parse(
        """g (float[2, 20, 3, 5] x) => (float[2, 20, 3, 5] y) {
          a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Add(a, e) y = Mul(b, f) }"""
    )
    for name, value in {"w": ramp(20, 20, 3, 3), **stored}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return make_region(model, folder)


def test_operands_of_images_come_in_their_layout(tmp_path: Path) -> None:
    stored = {"e": ramp(20, 1, 1), "f": ramp(1, 20, 3, 5)}
    region = make(tmp_path, **stored)
    assert region.constant("e", layout="NHWC").shape == (1, 1, 1, 20)
    np.testing.assert_array_equal(region.constant("e", layout="NHWC").ravel(), stored["e"].ravel())
    np.testing.assert_array_equal(region.constant("f", layout="NHWC"), stored["f"].transpose(0, 2, 3, 1))
    for name, value in stored.items():
        np.testing.assert_array_equal(region.constant(name), value)
        np.testing.assert_array_equal(region.constant(name, layout=""), value)
    weight = region.constant("w", layout="OHWI")
    np.testing.assert_array_equal(weight, ramp(20, 20, 3, 3).transpose(0, 2, 3, 1))


def test_a_rank_above_4_has_no_layout(tmp_path: Path) -> None:
    region = make(tmp_path, e=ramp(1, 1, 1, 1, 1), f=ramp(1))
    with pytest.raises(ValueError, match="an operand of rank 5 has no layout NHWC"):
        region.constant("e", layout="NHWC")
    assert region.constant("f", layout="NCHW16c").shape == (1, 1, 1, 1, 1)


@given(st.sampled_from(LAYOUTS), st.integers(0, 4), st.data())
def test_a_sum_in_a_layout_is_the_sum(layout: str, rank: int, data: st.DataObject) -> None:
    """Operands broadcast in the layout as they do in ONNX's."""
    extents = [data.draw(st.sampled_from([1, extent])) for extent in IMAGE.shape[4 - rank :]]
    operand = ramp(*extents) if extents else np.float32(0.5).reshape(())
    packing = parse_layout(layout)
    added = packing.pack_array(IMAGE) + pack_operand(operand, packing)
    np.testing.assert_array_equal(packing.unpack_array(added, IMAGE.shape), IMAGE + operand)
