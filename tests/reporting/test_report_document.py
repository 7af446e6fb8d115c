"""The report as data: its keys, its numbers, and valid JSON."""

import json
from math import fsum, inf, isfinite, nan
from pathlib import Path
from typing import Any

import pytest
from helpers.cutting import CHAIN, HOST_ONLY, cut
from helpers.support import VANILLA, parse

from byoc.errors import Cause, CauseKind, refuse
from byoc.pipeline import partition
from byoc.reporting import RemedyFinder, make_full_verification_report
from byoc.verification import Accuracy, OutputError, Verification

KEYS = [
    "model",
    "targets",
    "strategy",
    "nodes",
    "compute",
    "predicted",
    "regions",
    "refusals",
    "host_reasons",
    "what_if",
    "precision",
    "notes",
    "verification",
    "not_verified",
    "verification_missing",
    "bundle",
]


def _numbers(document: Any) -> list[float]:
    if isinstance(document, dict):
        return [n for value in document.values() for n in _numbers(value)]
    if isinstance(document, list):
        return [n for value in document for n in _numbers(value)]
    return [document] if isinstance(document, float) else []


def test_a_note_names_a_cost_model_that_knows_nothing(tmp_path: Path) -> None:
    table = tmp_path / "other.yaml"
    table.write_text(
        "kind: table\nname: other\nlink: {bandwidth: .inf}\nentries:\n"
        "- {op: Relu, types: 'float32[9] -> float32[9]', seconds: 1.0e-6}\n"
    )
    model = "g (float[4] x) => (float[4] y) { a = Relu(x) b = Softplus(a) y = Relu(b) }"
    result = cut(parse(model), cost_model=str(table))
    reason = "other has no costs of Relu on float32[4] -> float32[4]"
    nothing = "other knew none of the costs that it was asked for"
    told = f"the cost of 2 units is an estimate: {reason}; {nothing}"
    assert told in [note.text for note in result.report.notes]


@pytest.mark.parametrize("strategy", ["min-cut", "all-supported", "host-only", "exhaustive"])
@pytest.mark.parametrize("text", [CHAIN, HOST_ONLY, "g (float[2] x) => (float[2] x) { }"])
def test_keys_and_finite_numbers(text: str, strategy: str) -> None:
    report = partition(parse(text), VANILLA, strategy=strategy).report.to_json()
    assert list(report) == KEYS
    assert all(map(isfinite, _numbers(report)))
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_the_numbers_of_a_small_model(tmp_path: Path) -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y, float[2] k) <float[2] k = {1, 2}> {
        c = Relu(k)
        a = Relu(x)
        b = Sigmoid(a)
        y = Relu(b)
    }"""
    report = cut(parse(text), tmp_path / "b", dims={"N": 3}).report
    assert (report.model, report.targets, report.strategy) == ("g", ("dla",), "all-supported")
    assert report.nodes.model_dump() == {"total": 3, "offloaded": 2, "host": 1, "constant": 1}
    # One operation for each of 12 elements: Relu, Relu on the accelerator; Sigmoid on the host.
    assert report.compute.offloaded == pytest.approx(24 / report.compute.operations)
    assert [region.name for region in report.regions] == ["dla_0", "dla_1"]
    first = report.regions[0]
    assert (first.device, first.nodes, first.composites) == ("dla", 1, {})
    assert [each.to_json() for each in first.inputs] == [
        {"name": "x", "dtype": "float32", "shape": [3, 4], "bytes": 48}
    ]
    assert [each.to_json() for each in first.outputs] == [
        {"name": "a", "dtype": "float32", "shape": [3, 4], "bytes": 48}
    ]
    assert report.to_json()["host_reasons"] == [
        {
            "reason": "Sigmoid is not among the operators of dla",
            "nodes": 1,
            "share": pytest.approx(1 / 3),
            "largest": "b",
            "operators": ["Sigmoid"],
            "remedy": "if dla runs Sigmoid, add `op: Sigmoid` to the `ops` of its rule file",
            "causes": [
                {
                    "kind": "operator",
                    "operator": "Sigmoid",
                    "constraint": "ops",
                    "value": "",
                    "allowed": "",
                    "flags": [],
                    "target": "",
                    "general": "Sigmoid is not among the operators of dla",
                }
            ],
            "actions": [
                {
                    "kind": "add",
                    "target": "dla",
                    "operator": "Sigmoid",
                    "constraint": "ops",
                    "value": "",
                    "flags": [],
                }
            ],
        }
    ]
    assert report.verification.passed is True
    assert report.not_verified is None
    assert report.bundle == str(tmp_path / "b")


def test_the_predicted_parts_sum_to_the_whole() -> None:
    predicted = cut(parse(CHAIN)).report.predicted
    parts = predicted.execution + predicted.transfer + predicted.launch
    assert predicted.seconds == pytest.approx(parts)
    # dla.yaml: two launches of 50 µs, four transfers of 5 µs and 16 bytes at 2 GB/s
    assert predicted.launch == pytest.approx(100e-6)
    assert predicted.transfer == pytest.approx(4 * (5e-6 + 16 / 2e9))


def test_an_open_dimension_has_the_bytes_of_its_planned_size() -> None:
    report = cut(parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")).report
    assert [each.to_json() for each in report.regions[0].inputs] == [
        {"name": "x", "dtype": "float32", "shape": ["N", 4], "bytes": 16}
    ]


def test_the_host_reasons_are_sorted_by_the_share_of_the_work() -> None:
    text = """g (float[1, 4] x, float[512, 512] w) => (float[1, 4] y, float[512, 512] v) {
        a = Sigmoid(x) b = Tanh(a) c = Sigmoid(b) y = Exp(c) v = Softmax(w)
    }"""
    result = cut(parse(text))
    reasons = result.report.host_reasons
    assert [(item.reason.split()[0], item.nodes) for item in reasons][:2] == [
        ("Softmax", 1),
        ("Sigmoid", 2),
    ]
    assert (reasons[0].largest, reasons[0].operators) == ("v", ("Softmax",))
    assert fsum(item.share or 0 for item in reasons) == pytest.approx(1)
    # What plans say of the host alone is the whole.
    posed = result.plan.graph_problem.latency
    assert reasons[0].share == pytest.approx(posed.seconds[4, 0] / result.plan.root.host_only)


def test_the_work_of_a_body_counts_by_its_trips() -> None:
    text = """g (int64 n, bool c, float[64, 64] x) => (float[64, 64] y, float[64, 64] z) {
        z = Sigmoid(x)
        y = Loop <body = b (int64 i, bool go, float[64, 64] a) => (bool on, float[64, 64] o) {
            on = Identity(go) o = Softmax(a)
        }> (n, c, x)
    }"""
    ratios = []
    for trips in (2, 20):
        report = cut(parse(text), trips={"y": trips}).report
        by_operator = {item.operators: item.share for item in report.host_reasons}
        assert fsum(share or 0 for share in by_operator.values()) == pytest.approx(1)
        ratios.append(by_operator["Softmax",] / by_operator["Sigmoid",])
    assert ratios[1] == pytest.approx(10 * ratios[0])


def test_remedies_are_those_that_reasons_state() -> None:
    text = "g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"
    reasons = partition(parse(text), "nnpa").report.host_reasons
    assert [item.remedy for item in reasons] == ["give --dim N=SIZE"]
    text = "g (float[4] x) => (float[M] y) { a = x.Odd(x) y = Relu(a) }"
    model = parse(text)
    model.opset_import.add(domain="x", version=1)
    remedies = {item.remedy for item in partition(model, "nnpa").report.host_reasons}
    assert "state it as value_info of the model" in remedies


def test_nothing_is_advised_where_values_decide() -> None:
    text = "g (float[4] x) => (float[1, M] y) { a = NonZero(x) f = Cast <to = 1> (a) y = Relu(f) }"
    reasons = partition(parse(text), "nnpa").report.host_reasons
    (found,) = [item for item in reasons if item.operators == ("Relu",)]
    assert found.reason == (
        "the shape of 'a', which NonZero 'a' makes, is not known: it depends on values"
    )
    assert (found.remedy, found.actions) == ("", ())


def test_sizes_are_advised_where_they_settle_what_is_behind_a_node() -> None:
    """The repeats are not followed while n is open, and with a size they are a constant."""
    text = """g (float[n, 4] x) => (float[M, 4] y) {
        s = Shape(x)
        t = Tile(x, s)
        y = Relu(t)
    }"""
    reasons = partition(parse(text), "nnpa", dims={"n": "1..4"}).report.host_reasons
    remedies = {item.remedy for item in reasons}
    assert not any("value_info" in remedy for remedy in remedies)
    assert any("`--dim n=" in remedy for remedy in remedies)


SIZE = Cause(CauseKind.SIZE, "dimension N of X is not fixed", "Conv", flags=("--dim N=SIZE",))
RANK = Cause(CauseKind.SIZE, "the rank of 'x' is not known", "Conv", flags=("--shape x=EXTENTS",))
WIDE = Cause(CauseKind.CONSTRAINT, "Conv: group is 2", "Conv", "ops[0].attributes.group.max")


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        (Cause(CauseKind.QUANTIZATION, "Conv: W is not quantized", "Conv"), "--data FOLDER"),
        (SIZE, "give --dim N=SIZE"),
        (RANK, "give --shape x=EXTENTS"),
        (Cause(CauseKind.OPERATOR, "Gather is not there", "Gather"), "add `op: Gather`"),
        (Cause(CauseKind.VALUES, "Add: 'x' may be any int64", "Add"), "--values assumed"),
    ],
)
def test_what_a_user_can_do_comes_before_what_a_vendor_can(cause: Cause, remedy: str) -> None:
    plan = partition(parse(CHAIN), VANILLA).plan
    several = partition(parse(CHAIN), [VANILLA, "nnpa"]).plan
    for causes in ([cause], [WIDE, cause], [cause, WIDE]):
        assert remedy in RemedyFinder(plan).describe(refuse(*causes))
        assert not RemedyFinder(several).describe(refuse(*causes))
    assert "widen `ops[0].attributes.group.max`" in RemedyFinder(plan).describe(refuse(WIDE))


def test_a_target_without_nodes_is_told_with_the_commonest_reason(tmp_path: Path) -> None:
    text = """g (float[1, 4] x) => (float[1, 4] y) {
        a = Relu(x)
        b = Sigmoid(a)
        c = Sigmoid(b)
        y = Relu(c)
    }"""
    (tmp_path / "r.yaml").write_text("target: r\ncost_model: dla\ndtype: float32\nops: [{op: Relu}]\n")
    idle = "target: idle\ncost_model: dla\ndtype: float32\nops: [{op: %s}]\n"

    def notes(operators: str, *rules: str) -> list[str]:
        (tmp_path / "idle.yaml").write_text(idle % operators)
        files = [tmp_path / f"{name}.yaml" for name in rules]
        found = partition(parse(text), files, strategy="all-supported").report.notes
        return [note.text for note in found if " has no node: " in note.text]

    assert notes("Tanh", "r", "idle") == [
        "idle has no node: Relu is not among the operators of idle (2 of 4 nodes)"
    ]
    assert notes("Relu", "r", "idle") in (
        ["idle has no node: supported, but placed on r (2 of 4 nodes)"],
        ["idle has no node: Sigmoid is not among the operators of idle (2 of 4 nodes)"],
    )
    assert notes("Sigmoid", "r", "idle") == []
    assert notes("Tanh", "idle") == []  # all on the host, with its reasons


def test_what_is_cheaper_on_the_host_says_so() -> None:
    report = partition(parse(CHAIN), VANILLA).report
    reasons = {item.reason: item.nodes for item in report.host_reasons}
    assert reasons == {
        "Sigmoid is not among the operators of dla": 1,
        "supported, but the host is cheaper once moving the data is counted": 2,
    }


ENERGY = """kind: roofline
name: {name}
peak: {{default: {peak}}}
bandwidth: 1.0e+12
energy: {{operation: {joules}}}
"""
# On the device an operation takes 100 times as long, and a tenth of the joules.
LOOP = """g (float[1000] x, bool c) => (float[1000] y) {
  n = Constant <value_int = 5> ()
  w = Sin (x)
  y = Loop <body = l (int64 i, bool k, float[1000] p) => (bool m, float[1000] q)
    { m = Identity (k) r = Neg (p) q = Relu (r) }> (n, c, w) }"""


@pytest.fixture
def frugal(tmp_path: Path) -> dict[str, str]:
    """Cost models with joules."""
    host, device = tmp_path / "host.yaml", tmp_path / "device.yaml"
    host.write_text(ENERGY.format(name="host", peak="1.0e+9", joules="1.0e-6"))
    slow = ENERGY.format(name="device", peak="1.0e+7", joules="1.0e-7")
    device.write_text(f"{slow}link: {{bandwidth: 1.0e+12}}\n")
    return {"host_cost_model": str(host), "cost_model": str(device)}


def test_joules_of_the_host_alone(frugal: dict[str, str], tmp_path: Path) -> None:
    text = "g (float[1000] x) => (float[1000] y) { a = Relu(x)\n y = Sin(a) }"
    predicted = partition(parse(text), VANILLA, objective="energy", **frugal).report.predicted
    # One operation an element: Relu on the device, Sin on the host.
    assert predicted.host_only_joules == pytest.approx(2e-3)
    assert predicted.joules == pytest.approx(1e-3 + 1e-4)
    silent = tmp_path / "silent.yaml"
    silent.write_text("{kind: roofline, name: silent, peak: {default: 1.0e+9}, bandwidth: 1.0e+9}")
    plain = partition(parse(text), VANILLA, host_cost_model=str(silent)).report.predicted
    assert plain.host_only_joules is None


def test_joules_of_the_host_alone_with_bodies(frugal: dict[str, str], tmp_path: Path) -> None:
    options: dict[str, Any] = {"objective": "energy", "trips": {"y": 5}, **frugal}
    cut_up = partition(parse(LOOP), VANILLA, **options).report.predicted
    whole = partition(parse(LOOP), VANILLA, strategy="host-only", **options).report.predicted
    assert cut_up.joules < whole.joules
    assert cut_up.host_only_joules == pytest.approx(whole.joules)
    assert whole.host_only_joules == whole.joules


def test_what_is_slower_is_told_with_what_it_saves(frugal: dict[str, str]) -> None:
    text = "g (float[1000] x) => (float[1000] y) { y = Relu(x) }"
    notes = partition(parse(text), VANILLA, objective="energy", **frugal).report.notes
    assert [note.text for note in notes] == [
        "the placement is predicted to be slower than the host alone, and to save 900 µJ of 1 mJ"
    ]


def test_notes_say_what_is_not_exact() -> None:
    text = """g (float[4] x, int64[1] k) => (float[M] y) {
        a = Relu(x)
        p = Softplus(a)
        n = NonZero(p)
        m = Cast <to = 1> (n)
        y = Squeeze(m)
    }"""
    notes = cut(parse(text)).report.notes
    texts = [note.text for note in notes]
    assert "the placement is predicted to be slower than the host alone" in texts
    assert any("is an estimate: host: a shape of NonZero is not known" in text for text in texts)


@pytest.mark.parametrize(
    ("errors", "largest", "passed"),
    [
        ([], 0.0, True),
        ([0.0], 0.0, True),
        ([1e-6, 5e-5], 5e-5, True),
        ([1e-6, 0.5], 0.5, False),
        ([1e-6, inf], None, False),
        ([nan], None, False),
    ],
)
def test_an_error_that_is_not_finite_is_null(
    errors: list[float], largest: float | None, passed: bool
) -> None:
    outputs = tuple(OutputError(f"o{i}", "float32", e, e, 1e-4) for i, e in enumerate(errors))
    made = make_full_verification_report(Verification("m", outputs)).to_json()
    assert (made["against"], made["largest_relative_error"], made["passed"]) == ("m", largest, passed)
    assert [o["relative"] for o in made["outputs"]] == [e if isfinite(e) else None for e in errors]
    assert all(
        list(o)
        == [
            *("name", "dtype", "absolute", "relative", "tolerance", "problem", "measure"),
            *("signal_to_noise", "cosine", "differing", "noise"),
            *("noise_source", "tie_break", "fidelity", "within"),
        ]
        for o in made["outputs"]
    )
    json.dumps(made, allow_nan=False)


def test_what_lower_precision_left() -> None:
    assert make_full_verification_report(Verification("m", ())).accuracy is None
    left = (Accuracy("a", 31.5, 0.75), Accuracy("b", inf, 1.0), Accuracy("c", nan, nan))
    made = make_full_verification_report(Verification("m", (), "the original", left)).to_json()
    assert made["accuracy"] == {
        "original": "the original",
        "outputs": [
            {"name": "a", "signal_to_noise": 31.5, "same_class": 0.75, "exact": False},
            {"name": "b", "signal_to_noise": None, "same_class": 1.0, "exact": True},
            {"name": "c", "signal_to_noise": None, "same_class": None, "exact": False},
        ],
    }
    json.dumps(made, allow_nan=False)
