"""Which passes clean a model before it is placed: what the rules of all targets together ask for."""

from itertools import product
from pathlib import Path

import pytest
from accelerators import Files
from helpers.support import prepared

from byoc.errors import InputError
from byoc.planning import choose_clean_passes, clean_for_targets
from byoc.rules import Target, load_rules

SOMETIMES = {"flatten-to-reshape", "fold-batchnorm", "read-quantized"}
QUANTIZED = "{op: Conv, quantized: true, dtype: int8}"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def chosen(*targets: Target) -> set[str]:
    return {each.name for each in choose_clean_passes(targets)} & SOMETIMES


SPOKEN = [(), ("Flatten",), ("Reshape",), ("Flatten", "Reshape"), ("'*'",)]


@pytest.mark.parametrize("speaks", [*product(SPOKEN, repeat=2)])
def test_flatten_becomes_reshape_where_that_alone_is_taken(
    speaks: tuple[tuple[str, ...], tuple[str, ...]], files: Files
) -> None:
    targets = [load_rules(files.rules(f"t{number}", "Relu", *ops)) for number, ops in enumerate(speaks)]
    expected = ("Reshape",) in speaks and ("Flatten",) not in speaks
    assert ("flatten-to-reshape" in chosen(*targets)) == expected


@pytest.mark.parametrize(
    ("rules", "read"),
    [
        ((("Relu",),), False),
        (((QUANTIZED,),), True),
        (((QUANTIZED, "QLinearConv"),), False),
        (((QUANTIZED, "ConvInteger"),), False),
        (((QUANTIZED, "'*'"),), False),
        (((QUANTIZED,), ("Relu",)), True),
        (((QUANTIZED,), ("QLinearMatMul",)), False),
        ((("Relu",), ("QLinearMatMul",)), False),
    ],
)
def test_operators_of_integers_are_read_as_groups_where_none_speaks_of_them(
    rules: tuple[tuple[str, ...], ...], read: bool, files: Files
) -> None:
    targets = [load_rules(files.rules(f"t{number}", *ops)) for number, ops in enumerate(rules)]
    assert ("read-quantized" in chosen(*targets)) == read


def test_batch_normalization_is_folded_where_a_target_wants_it(files: Files) -> None:
    plain = load_rules(files.rules("plain", "Relu"))
    wants = load_rules(files.rules("wants", "Relu", more="wants: [folded_batchnorm]\n"))
    assert ["fold-batchnorm" in chosen(*each) for each in ([plain], [wants], [plain, wants])] == [
        False,
        True,
        True,
    ]


def test_what_is_left_out_does_not_run(files: Files) -> None:
    target = load_rules(files.rules("one", "Relu", "Reshape"))
    every = [each.name for each in choose_clean_passes([target])]
    for name in every:
        assert [each.name for each in choose_clean_passes([target], [name])] == [
            other for other in every if other != name
        ]
    assert choose_clean_passes([target], ["all"]) == ()
    with pytest.raises(InputError, match=r"^flaten-to-reshape: no pass that runs .* \(did you mean "):
        choose_clean_passes([target], ["flaten-to-reshape"])
    model = prepared("g (float[2, 3] x) => (float[2, 3] y) { a = Flatten(x) y = Relu(a) }")
    for left_out, first in (((), "Reshape"), ("flatten-to-reshape", "Flatten"), (["all"], "Flatten")):
        found = clean_for_targets(model, [target], left_out).model
        assert first in {node.op_type for node in found.proto.graph.node}
