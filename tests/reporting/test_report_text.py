"""The report as text, behind its first line."""

from typing import Any

import pytest
from report_fields import REPORT, TENSOR, print_text

from byoc.reporting import SCREEN, WHOLE


def test_what_is_saved_of_a_weighted_sum_has_no_unit() -> None:
    item: dict[str, Any] = {
        "target": "npu",
        "operator": "Conv",
        "reason": "Conv: too wide",
        "nodes": 1,
        "gain": 0.001,
    }
    item["offloaded"] = 4
    weighted = REPORT["predicted"] | {"objective": "latency=1,energy=1", "joules": 1.0}
    lines = print_text(what_if=[item], predicted=weighted)
    assert lines[-1].split() == ["-0.001", "Conv:", "too", "wide"]


def test_a_region_is_a_row_and_unknown_sizes_are_said() -> None:
    lines = print_text()
    assert lines[1].split() == ["region", "device", "nodes", "inputs", "outputs", "predicted"]
    assert " ".join(lines[3].split()) == "npu_0 npu 3 2 (2 KiB + unknown) 1 (10 B) 2 ms"


def test_memory_stands_beside_its_limit_by_region_and_target() -> None:
    region = REPORT["regions"][0]
    first = region | {"memory": {"used": 3072}, "sram": {"used": 300 * 1024, "limit": 384 * 1024}}
    second = region | {"name": "npu_1", "sram": {"used": 512, "limit": 2**20}}
    use = {"used": 2560 * 1024, "limit": 3 * 2**20, "constants": 2 * 2**20}
    change = {"memory": {"npu": use | {"activations": 2**19}}, "sram": {"npu": first["sram"]}}
    lines = print_text(regions=[first, second], **change)
    assert lines[1:3] == [
        "Memory of npu: 2.50 of 3 MiB (constants of all regions 2 MiB, largest arena of activations"
        " 512 KiB)",
        "SRAM of npu: at most 300 of 384 KiB",
    ]
    assert lines[3].split()[5:7] == ["memory", "SRAM"]
    assert " ".join(lines[5].split()).endswith("1 (10 B) 3 KiB 300 of 384 KiB 2 ms")
    assert " ".join(lines[6].split()).endswith("1 (10 B) 512 B of 1 MiB 2 ms")
    unknown = print_text(memory={"npu": use})
    assert unknown[1].endswith("largest arena of activations not known)")


def test_no_regions_are_no_table() -> None:
    assert len(print_text(regions=[])) == 1


REASONS: list[dict[str, Any]] = [
    {"reason": f"{name} is wrong", "nodes": i + 1, "share": 0.4 / 2**i}
    for i, name in enumerate("abcdefgh")
]


def test_reasons_have_their_shares_and_the_rest_is_counted() -> None:
    lines = print_text(host_reasons=REASONS)
    assert lines[-8:] == [
        "On the host, and why, by share of the work:",
        "   40.0 %     1  a is wrong",
        "   20.0 %     2  b is wrong",
        "   10.0 %     3  c is wrong",
        "    5.0 %     4  d is wrong",
        "    2.5 %     5  e is wrong",
        "    1.2 %     6  f is wrong",
        "    0.9 %    15  for 2 other reasons (--verbose)",
    ]
    assert print_text(host_reasons=REASONS[:6])[-1] == "    1.2 %     6  f is wrong"
    last = print_text(host_reasons=REASONS[:7])[-1]
    assert last == "    0.6 %     7  for 1 other reason (--verbose)"
    assert print_text(WHOLE, host_reasons=REASONS)[-1] == "    0.3 %     8  h is wrong"


def test_a_reason_names_its_operators_the_costliest_node_and_the_remedy() -> None:
    reason = {
        "reason": "supported, but the host is cheaper",
        "nodes": 9,
        "share": 0.25,
        "largest": "wide",
        "operators": ["Conv", "Add", "Mul", "Div", "Sub"],
        "remedy": "buy a link",
    }
    told = "supported, but the host is cheaper; the costliest is 'wide'"
    line = f"   25.0 %     9  Conv, Add, Mul and 2 more: {told}"
    remedy = "                 buy a link"
    assert print_text(host_reasons=[reason])[-2:] == [line, remedy]
    named = reason | {"reason": "Conv: wide", "share": 0.2, "remedy": "make it narrow"}
    assert print_text(host_reasons=[reason, named])[-2:] == [remedy, "   20.0 %     9  Conv: wide"]
    assert print_text(WHOLE, host_reasons=[reason, named])[-1].strip() == "make it narrow"


def test_reasons_that_differ_in_names_and_values_are_one_line() -> None:
    cause = {"kind": "constraint", "operator": "Conv", "constraint": "ops[0].attributes.group.max"}
    reasons = [
        {"reason": f"Conv: group of 'c{i}' is {i}", "nodes": 2, "share": 0.1, "causes": [cause]}
        for i in (3, 4, 5)
    ]
    alone = {"reason": "Gather is not there", "nodes": 7, "share": 0.2}
    lines = print_text(host_reasons=[alone, *reasons])[-2:]
    assert lines == [
        "   30.0 %     6  Conv: group of 'c3' is 3 (and 2 like it)",
        "   20.0 %     7  Gather is not there",
    ]
    assert len(print_text(WHOLE, host_reasons=reasons)) == len(print_text()) + 4


def test_a_bundle_of_before_has_no_shares() -> None:
    reasons = [{"reason": "Gather is not there", "nodes": 7}]
    assert print_text(host_reasons=reasons)[-1] == "              7  Gather is not there"


def test_nothing_offloaded_comes_first_with_its_culprit() -> None:
    nodes = {"total": 5, "offloaded": 0, "host": 5, "constant": 1}
    lines = print_text(nodes=nodes, regions=[], host_reasons=REASONS)
    assert lines[0] == "Nothing was offloaded: for 40.0 % of the work the reason is: a is wrong"
    assert lines[1].startswith("m.onnx: 0 of 5 nodes")
    assert print_text(nodes=nodes, regions=[])[0] == "Nothing was offloaded"


@pytest.mark.parametrize("missing", [True, False])
def test_a_bundle_that_is_not_verified_says_so_first(missing: bool) -> None:
    lines = print_text(bundle="out", verification_missing=missing)
    assert lines[0] == "Not verified: nobody asked"
    assert lines[1].startswith("m.onnx: ")


def test_slower_than_the_host_comes_first_and_once() -> None:
    slower = "the placement is predicted to be slower than the host alone"
    lines = print_text(notes=["other", slower])
    assert lines[0] == "The placement is predicted to be slower than the host alone"
    assert lines[-1] == "note: other"


def test_equal_regions_are_one_row() -> None:
    region = REPORT["regions"][0]
    equal = [region | {"name": f"npu_{i}"} for i in range(4)]
    other = region | {"name": "npu_4", "seconds": 0.003}
    rows = [line.split() for line in print_text(regions=[*equal, other])[1:]]
    assert rows[0] == ["region", "device", "nodes", "inputs", "outputs", "predicted", "together"]
    assert rows[2][:5] == ["npu_0", "x", "4", "npu", "3"]
    assert (rows[2][-4:], rows[3][-4:]) == (["2", "ms", "8", "ms"], ["3", "ms", "3", "ms"])
    assert len(rows) == 4
    whole = print_text(WHOLE, regions=[*equal, other])
    assert [line.split()[0] for line in whole[3:]] == [f"npu_{i}" for i in range(5)]


@pytest.mark.parametrize(
    "change",
    [
        *({"device": "dsp"}, {"graph": "Loop_0/body"}, {"nodes": 4}, {"trips": 2.0}),
        *({"composites": {"conv_relu": 1}}, {"seconds": 0.0021}),
        *({"inputs": []}, {"outputs": [TENSOR | {"bytes": 11}]}),
        *({"memory": {"used": 5}}, {"sram": {"used": 5}}),
    ],
)
def test_regions_that_differ_are_rows_of_their_own(change: dict[str, Any]) -> None:
    regions = [REPORT["regions"][0], REPORT["regions"][0] | change]
    assert len(print_text(regions=regions)) == len(print_text()) + 1


def test_of_many_kinds_those_that_take_longest_are_shown_in_their_order() -> None:
    kinds = [REPORT["regions"][0] | {"name": f"npu_{i}", "seconds": 0.001 * (i + 1)} for i in range(12)]
    lines = print_text(regions=kinds)
    assert [line.split()[0] for line in lines[3:-1]] == [f"npu_{i}" for i in range(3, 12)]
    assert lines[-1] == "  and 3 other regions, 6 ms (--verbose)"


def test_long_lines_are_cut_unless_all_is_wanted() -> None:
    long = "x" * 500
    assert len(print_text(notes=[long])[-1]) == SCREEN.characters
    assert print_text(WHOLE, notes=[long])[-1] == f"note: {long}"


def test_warnings_come_before_notes() -> None:
    notes = [f"n{i}" for i in range(5)] + ["warning: hot"]
    lines = print_text(notes=notes)[-5:]
    assert lines == [
        *("warning: hot", "note: n0", "note: n1", "note: n2", "  and 2 other notes (--verbose)")
    ]


def test_what_more_support_would_save() -> None:
    item: dict[str, Any] = {
        "target": "npu",
        "operator": "Conv",
        "reason": "Conv: too wide",
        "nodes": 2,
        "gain": 0.001,
    }
    item["offloaded"] = 5
    lines = print_text(what_if=[item])
    assert lines[-2] == "If it were supported:"
    assert lines[-1].split() == ["-1", "ms", "Conv", "(2", "nodes):", "too", "wide"]
    joules = REPORT["predicted"] | {"objective": "energy"}
    joules |= {"joules": 0.0041, "host_only_joules": 0.019}
    lines = print_text(what_if=[item], predicted=joules, targets=["npu", "dsp"])
    assert lines[-1].split() == ["-1", "mJ", "Conv", "(2", "nodes)", "on", "npu:", "too", "wide"]

    assert print_text(what_if=[item | {"gain": 1e-6}]) == print_text()  # under a thousandth of the whole


def test_notes_and_the_place_come_last() -> None:
    lines = print_text(notes=["first", "second"], bundle="out")
    assert lines[-3:] == ["note: first", "note: second", "Written to out"]


def test_names_are_not_markup() -> None:
    lines = print_text(
        model="[red]a:car:b.onnx",
        bundle="[bold]out",
        notes=["[/]"],
        host_reasons=[{"reason": "kernel_shape[0] is 9 :smile:", "nodes": 1}],
    )
    assert lines[1].startswith("[red]a:car:b.onnx: 3 of 5")
    assert lines[-3:] == [
        "              1  kernel_shape[0] is 9 :smile:",
        "note: [/]",
        "Written to [bold]out",
    ]


def test_a_warning_is_no_note() -> None:
    assert print_text(notes=["warning: hot", "a word"])[-2:] == ["warning: hot", "note: a word"]
