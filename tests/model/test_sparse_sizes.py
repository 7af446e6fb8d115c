"""Sparse initializers that state more elements than fit into memory."""

import numpy as np
import pytest
from onnx import SparseTensorProto, numpy_helper

from byoc.errors import InputError
from byoc.model import make_dense


def make_sparse(*dims: int) -> SparseTensorProto:
    """Return a sparse tensor of ones at its first two places."""
    return SparseTensorProto(
        dims=dims,
        values=numpy_helper.from_array(np.ones(2, np.float32), "w"),
        indices=numpy_helper.from_array(np.array([0, 1]), "i"),
    )


def test_all_elements_are_there() -> None:
    np.testing.assert_array_equal(numpy_helper.to_array(make_dense(make_sparse(2, 2))), [[1, 1], [0, 0]])


def test_sixteen_gibibytes_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        make_dense(make_sparse(1 << 32))
    assert str(caught.value) == (
        "the sparse initializer 'w' would take 17,179,869,184 bytes with all its zeros"
    )
