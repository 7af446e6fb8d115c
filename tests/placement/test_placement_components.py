"""Components that Python finds in small graphs, against those of scipy."""

from typing import Literal

import numpy as np
import pytest
import scipy
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.placement import find_components


@pytest.mark.parametrize("connection", ["weak", "strong"])
@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_components_are_those_of_scipy(
    connection: Literal["weak", "strong"], data: st.DataObject
) -> None:
    nodes = data.draw(st.integers(1, 12))
    node = st.integers(0, nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node), max_size=25))
    if data.draw(st.booleans()):  # no cycle, but for loops of one node
        edges = [(min(edge), max(edge)) for edge in edges]
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    graph = scipy.sparse.coo_array((np.ones(len(edges)), (source, target)), shape=(nodes, nodes))
    expected = scipy.sparse.csgraph.connected_components(graph.tocsr(), connection=connection)

    count, component = find_components(nodes, source, target, connection)

    assert (count, component.dtype) == (expected[0], np.int64)
    assert ((component[:, None] == component) == (expected[1][:, None] == expected[1])).all()
    if connection == "weak":  # numbered by their first nodes
        assert component.tolist() == expected[1].tolist()
