"""Contracts hold on random graphs, regions and layouts, Transposes of the user's among them.

And when a Transpose of byoc's at a border is turned in any other way, they do not.
"""

from dataclasses import dataclass

import pytest
from contract_views import ContractError
from helpers.support import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import helper
from test_boundary_contract import DOMAIN, Bounded

from byoc.boundary.convert import TransposeShares
from byoc.model import LAYOUT, get_purpose, parse_layout


@dataclass(frozen=True)
class Drawn:
    text: str
    regions: tuple[tuple[int, ...], ...]
    layout: str


# Transposes follow each other often: byoc merges them with its own.
_OPERATORS = ("Relu", "Identity", "Transpose", "Conv", "Add", "Softmax", "Pool", *["Transpose"] * 3)


@st.composite
def drawn(draw: st.DrawFn, layouts: tuple[str, ...]) -> Drawn:
    """A graph of images `t0 ...` (N, C, H, W all 4 or a prime) and their transposed forms."""
    cube = draw(st.booleans())
    shapes = {"x": (4, 4, 4, 4) if cube else (2, 3, 5, 7)}
    lines: list[str] = []
    weights: list[str] = []
    read: set[str] = set()
    count = draw(st.integers(3, 9))
    for number in range(count):
        source = draw(st.sampled_from([*shapes, *[[*shapes][-1]] * 3]))
        shape, name = shapes[source], f"t{number}"
        read.add(source)
        op = draw(st.sampled_from(_OPERATORS))
        if op == "Transpose":
            order = draw(st.sampled_from([(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)]))
            lines.append(f"{name} = Transpose <perm = {list(order)}> ({source})")
            shape = tuple(shape[i] for i in order)
        elif op == "Conv":
            values = ", ".join(str(i % 5 - 2) for i in range(shape[1] * 3))
            weights.append(f"float[3, {shape[1]}, 1, 1] w{number} = {{{values}}}")
            lines.append(f"{name} = Conv({source}, w{number})")
            shape = (shape[0], 3, *shape[2:])
        elif op == "Add":
            other = draw(st.sampled_from([n for n in sorted(shapes) if shapes[n] == shape]))
            lines.append(f"{name} = Add({source}, {other})")
            read.add(other)
        elif op == "Softmax":
            lines.append(f"{name} = Softmax <axis = 1> ({source})")
        elif op == "Pool":
            lines.append(f"{name} = MaxPool <kernel_shape = [1, 1]> ({source})")
        else:
            lines.append(f"{name} = {op}({source})")
        shapes[name] = shape
    outputs = draw(st.sets(st.sampled_from([f"t{i}" for i in range(count)]), max_size=2))
    outputs |= {f"t{i}" for i in range(count)} - read
    stated = ", ".join(f"float{list(shapes[name])} {name}" for name in sorted(outputs))
    stored = f"<{', '.join(weights)}>" if weights else ""
    text = f"g (float{list(shapes['x'])} x) => ({stated}) {stored} {{ {' '.join(lines)} }}"
    labels = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    return Drawn(text, _runs(labels), draw(st.sampled_from(layouts)))


def _runs(labels: list[int]) -> tuple[tuple[int, ...], ...]:
    """Return regions of nodes that follow each other, which together have no cycle."""
    regions: list[list[int]] = []
    before = 0
    for node, label in enumerate(labels):
        if label and label == before:
            regions[-1].append(node)
        elif label:
            regions.append([node])
        before = label
    return tuple(map(tuple, regions))


@settings(deadline=None, max_examples=examples(150))
@example(
    Drawn(
        "g (float[2, 3, 5, 7] x) => (float[2, 5, 7, 3] t3) {"
        " t0 = MaxPool <kernel_shape = [1, 1]> (x) t1 = Relu(t0)"
        " t2 = Transpose <perm = [0, 3, 1, 2]> (t1) t3 = Transpose <perm = [0, 3, 1, 2]> (t2) }",
        ((1,),),
        "NHWC",
    )
)
@given(drawn(("", "NHWC", "NCHW16c", "CHWN", "NHWC2c")))
def test_contracts_hold(case: Drawn) -> None:
    for shares in (None, TransposeShares(0.5, 0.25)):
        _check_contracts(Bounded(case.text, *case.regions, layout=case.layout, shares=shares), case)


def _check_contracts(bounded: Bounded, case: Drawn) -> None:
    for contracts in bounded.check().values():
        for contract in (*contracts.inputs, *contracts.outputs):
            assert contract.layout in ("", case.layout)
            if contract.layout:
                assert parse_layout(case.layout).pack_type(contract.logical) == contract.type
            else:
                assert contract.logical == contract.type


@settings(deadline=None, max_examples=examples(150))
@given(drawn(("NHWC", "CHWN", "NCWH")), st.data(), st.sampled_from([None, TransposeShares(0.5, 0.25)]))
def test_a_transpose_that_is_turned_otherwise_shows(
    case: Drawn, data: st.DataObject, shares: TransposeShares | None
) -> None:
    bounded = Bounded(case.text, *case.regions, layout=case.layout, shares=shares)
    inside = [node for function in bounded.proto.functions for node in function.node]
    calls = [node for node in bounded.proto.graph.node if node.domain == DOMAIN]
    read = {name for call in calls for name in call.input}
    made = {name for call in calls for name in call.output}
    around = [n for n in bounded.proto.graph.node if n.output[0] in read or n.input[0] in made]
    ours = [n for n in (*around, *inside) if get_purpose(n) == LAYOUT and n.op_type == "Transpose"]
    if not ours:
        return
    node = data.draw(st.sampled_from(ours))
    order = tuple(node.attribute[0].ints)
    other = data.draw(st.permutations(range(4)).filter(lambda found: tuple(found) != order))
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("perm", other))
    with pytest.raises(ContractError):
        bounded.check()
