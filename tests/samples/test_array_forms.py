"""The short look at arrays that runs take: it accepts no array that the long look refuses."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from byoc.model import Dim, TensorType
from byoc.samples import ArrayForm, describe_mismatch, write_npz

DTYPES = ("float32", "float64", "int64", "bool", "bfloat16")
NEARLY = np.ones(2, np.dtype(np.float32).newbyteorder("<"))
"""On a machine of this byte order its dtype equals numpy's, and is another object."""
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
DIMS = st.lists(st.sampled_from([0, 1, 2, 3, "N", None]), max_size=3).map(tuple)


@given(st.sampled_from(DTYPES), DIMS, st.sampled_from(DTYPES[:-1]), SHAPES, st.booleans())
def test_an_array_that_fits_has_the_type(
    dtype: str, shape: tuple[Dim, ...], given_dtype: str, given_shape: tuple[int, ...], turned: bool
) -> None:
    kind = TensorType(dtype, shape)
    value: NDArray[np.generic] = np.zeros(given_shape, given_dtype)
    form = ArrayForm.of(kind)

    assert form is not None
    turned_value = value.T if turned else value
    expected = not describe_mismatch(turned_value, kind) and turned_value.flags.c_contiguous
    assert form.fits(turned_value) == expected


@pytest.mark.parametrize(
    "kind",
    [None, TensorType("float32", None), TensorType("string", (2,))],
)
def test_what_is_not_known_has_no_form(kind: TensorType | None) -> None:
    assert ArrayForm.of(kind) is None


@pytest.mark.parametrize("value", [None, 1.0, [1.0, 2.0], np.float32(1), np.ones(2, ">f4"), NEARLY])
def test_what_is_no_plain_array_does_not_fit(value: object) -> None:
    form = ArrayForm.of(TensorType("float32", (2,)))
    assert form is not None
    assert not form.fits(value)


def test_maps_are_written_as_keys_and_values(tmp_path: Path) -> None:
    path = tmp_path / "y.npz"
    write_npz(path, {"z": [{1: 0.25, 5: 0.5}, {1: 1.0, 5: 0.0}], "s": {"a": 3, "b": 4}})
    with np.load(path) as found:
        made = {name: (found[name].dtype.kind, found[name].tolist()) for name in found.files}
        assert found["z[0].values"].dtype == np.float32
    assert made == {
        "z[0].keys": ("i", [1, 5]),
        "z[0].values": ("f", [0.25, 0.5]),
        "z[1].keys": ("i", [1, 5]),
        "z[1].values": ("f", [1.0, 0.0]),
        "s.keys": ("U", ["a", "b"]),
        "s.values": ("i", [3, 4]),
    }
