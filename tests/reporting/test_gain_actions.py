"""The actions that a report names as data, when they are done, bring the gain that it promised.

Each test parses the JSON of a report, does what it says, to the rule file or on the command line, and
plans again.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from helpers.support import parse
from report_fields import print_text

import byoc

# All computing takes long on the host, and next to nothing on the accelerator; the link is fast.
COSTS = """
kind: roofline
name: t
peak: {float32: 1.0e+13, float16: 1.0e+13, int8: 1.0e+13, int32: 1.0e+13, int64: 1.0e+13}
bandwidth: 1.0e+12
launch: 1.0e-7
link: {bandwidth: 8.0e+10, latency: 1.0e-7}
"""
HOST = """
kind: roofline
name: host
peak: {float32: 1.0e+12, float16: 1.0e+12, int8: 1.0e+12, int32: 1.0e+12, int64: 1.0e+12}
bandwidth: 1.0e+11
overhead: 2.0e-6
"""
CONVS = """tiny (float[1,3,16,16] x) => (float[1,8,16,16] y) <float[8,3,3,3] w, float[8,8,3,3] v> {
    c = Conv <pads = [1,1,1,1]> (x, w)
    r = Relu (c)
    d = Conv <pads = [1,1,1,1]> (r, v)
    y = Sigmoid (d)
}"""
PLAIN = "g (float[{0},64] x) => (float[{0},64] y) {{ a = Relu(x) b = Neg(a) c = Tanh(b) y = Relu(c) }}"
MIXED = "g (float[4,64] x) => (float[4,64] y) { a = Relu(x) b = Erf(a) c = Relu(b) y = Erf(c) }"
WHOLE = "g (int64[4,64] x) => (int64[4,64] y) { a = Add(x, x) y = Mul(a, a) }"
QUANTIZATION = {
    "activations": {"dtype": "int8"},
    "weights": {"dtype": "int8", "symmetric": True},
    "bias": {"dtype": "int32"},
}


def read_model(text: str) -> onnx.ModelProto:
    """Return a model whose declared weights have values."""
    weights = re.findall(r"float(\[[0-9,]+\]) ([wv])\b", text)
    for shape, name in weights:
        count = 1
        for extent in shape[1:-1].split(","):
            count *= int(extent)
        values = ", ".join(str(((7 * i) % 13 - 6) / 8) for i in range(count))
        text = text.replace(f"float{shape} {name}", f"float{shape} {name} = {{{values}}}")
    return parse(text)


def conv_rules(**more: Any) -> dict[str, Any]:
    return {"dtype": "float32", "ops": [{"op": ["Conv", "Relu"]}, {"op": "Sigmoid"}], **more}


def limited(**limits: Any) -> dict[str, Any]:
    return conv_rules(limits=limits)


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "memory": (CONVS, limited(memory="1KiB"), {}),
    "memory of all": (CONVS, limited(memory=15_000), {}),
    "fewest nodes": (CONVS, limited(min_nodes=30), {}),
    "most nodes": (
        CONVS,
        limited(max_nodes=1)
        | {"composites": [{"name": "cr", "pattern": "c = Conv(x, w, b?)\nr = Relu(c)"}]},
        {},
    ),
    "regions": (MIXED, {"dtype": "float32", "ops": [{"op": "Relu"}], "limits": {"regions": 1}}, {}),
    "batch": (PLAIN.format(8), {"dtype": "float32", "ops": [{"op": "*"}], "limits": {"batch": 2}}, {}),
    "two limits": (CONVS, limited(memory="1KiB", min_nodes=30), {}),
    "int8 without quantized": (CONVS, conv_rules(dtype="int8", quantization=QUANTIZATION), {}),
    "a float model": (
        CONVS,
        {
            "dtype": "int8",
            "quantization": QUANTIZATION,
            "ops": [{"op": ["Conv", "Relu", "Sigmoid"], "quantized": True}],
        },
        {},
    ),
    "a missing operator": (PLAIN.format(4), {"dtype": "float32", "ops": [{"op": ["Relu", "Neg"]}]}, {}),
    "a type for all": (
        PLAIN.format(4),
        {"dtype": "float16", "ops": [{"op": ["Relu", "Neg", "Tanh"]}]},
        {},
    ),
    "an attribute": (
        CONVS,
        conv_rules(
            ops=[
                {"op": "Conv", "attributes": {"pads": {"each": {"max": 0}}}},
                {"op": ["Relu", "Sigmoid"]},
            ]
        ),
        {},
    ),
    "a rank": (
        PLAIN.format(4),
        {"dtype": "float32", "ops": [{"op": ["Relu", "Neg"], "tensors": {"X": {"rank": 4}}}]},
        {},
    ),
    "kept on the host": (
        PLAIN.format(4),
        {"dtype": "float32", "ops": [{"op": "*"}], "host": {"ops": ["Tanh"]}},
        {},
    ),
    "an open dimension": (
        PLAIN.format("n"),
        {"dtype": "float32", "shapes": "static", "ops": [{"op": "*"}]},
        {"keep_open": True},
    ),
    "a range": (
        PLAIN.format("n"),
        {"dtype": "float32", "shapes": "static", "ops": [{"op": "*"}]},
        {"dims": {"n": "1..8"}},
    ),
    "float beside rules for both": (
        CONVS,
        {
            "dtype": "int8",
            "quantization": QUANTIZATION,
            "ops": [
                {"op": ["Conv", "Relu", "Sigmoid"]},
                {"op": ["Conv", "Relu", "Sigmoid"], "quantized": True},
            ],
        },
        {},
    ),
    "a missing operator of integers": (
        CONVS,
        {
            "dtype": "int8",
            "quantization": QUANTIZATION,
            "ops": [{"op": "Conv", "quantized": True}],
        },
        {"precision": byoc.Precision(data="random")},
    ),
    "a body": (
        """g (float[4,64] x) => (float[4,64] y) {
            on = Constant <value_int = 1> () go = Cast <to = 9> (on) many = Constant <value_int = 3> ()
            z = Loop (many, go, x) <body = inner (int64 i, bool c, float[4,64] v) =>
            (bool d, float[4,64] u) { d = Identity(c) e = Relu(v) f = Erf(e) u = Relu(f) }>
            y = Erf(z)
        }""",
        {"dtype": "float32", "ops": [{"op": "Relu"}]},
        {},
    ),
    "whole numbers": (
        WHOLE,
        {
            "dtype": ["int64"],
            "ops": [{"op": "*"}],
            "arithmetic": [{"op": "*", "dtype": "int64", "overflow": "saturates"}],
        },
        {},
    ),
}


def plan(
    folder: Path, model: onnx.ModelProto, rules: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON of a plan's report."""
    (folder / "costs.yaml").write_text(COSTS)
    (folder / "host.yaml").write_text(HOST)
    file = folder / "t.yaml"
    file.write_text(yaml.safe_dump({"target": "t", "cost_model": "costs.yaml", **rules}))
    result = byoc.partition(
        model, file, **{"strategy": "exact", "host_cost_model": folder / "host.yaml", **options}
    )
    return json.loads(json.dumps(result.report.to_json()))


def apply_action(
    action: Mapping[str, Any], rules: dict[str, Any], options: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rules and options after an action."""
    rules, options = json.loads(json.dumps(rules)), dict(options)
    match action["kind"]:
        case "add":
            more = yaml.safe_load(action["value"]) or {}
            rules["ops"].append({"op": action["operator"], **more})
        case "quantized":
            for rule in rules["ops"]:
                rule["quantized"] = True
        case "limit":
            rules["limits"][action["constraint"].removeprefix("limits.")] = int(action["value"])
        case "relax":
            leave_out(rules, re.findall(r"[^.\[\]]+", action["constraint"]))
            rules = drop_empty(rules)
        case "flag":
            give(action["flags"], options)
        case kind:
            raise AssertionError(kind)
    return rules, options


def leave_out(part: Any, path: Sequence[str]) -> None:
    key: Any = int(path[0]) if isinstance(part, list) else path[0]
    if len(path) > 1:
        leave_out(part[key], path[1:])
    elif key == "dtype":
        part[key] = "any"
    else:
        del part[key]


def drop_empty(part: Any) -> Any:
    """Return a part of a rule file without lists and mappings that have become empty."""
    if isinstance(part, dict):
        inner = {key: drop_empty(value) for key, value in part.items()}
        return {key: value for key, value in inner.items() if value not in ({}, [])}
    return [drop_empty(value) for value in part] if isinstance(part, list) else part


def give(flags: Sequence[str], options: dict[str, Any]) -> None:
    precision: dict[str, Any] = {}
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        name = flag.removeprefix("--")
        if name == "dim":
            dim, _, size = value.partition("=")
            options["dims"] = {**options.get("dims", {}), dim: int(size)}
        elif name in {"quantize", "data"}:
            precision[name] = "random" if value == "FOLDER" else value
        else:
            options[name] = value
    if precision:
        options["precision"] = byoc.Precision(**precision)


@pytest.mark.parametrize("case", list(CASES))
def test_what_is_promised_is_brought(case: str, tmp_path: Path) -> None:
    text, rules, options = CASES[case]
    model = read_model(text)
    before = plan(tmp_path, model, rules, options)
    assert before["what_if"]
    for told in before["what_if"]:
        assert told["actions"], told
        edited, given = rules, options
        for action in told["actions"]:
            edited, given = apply_action(action, edited, given)
        after = plan(tmp_path, model, edited, given)
        gain = before["predicted"]["seconds"] - after["predicted"]["seconds"]
        assert gain == pytest.approx(told["gain"], rel=0.1), (told, gain)
        assert after["nodes"]["offloaded"] - before["nodes"]["offloaded"] == told["offloaded"]


@pytest.mark.parametrize(
    ("case", "kind", "constraint", "allowed"),
    [
        ("memory", "limit", "limits.memory", "1024"),
        ("memory of all", "limit", "limits.memory", "15000"),
        ("fewest nodes", "limit", "limits.min_nodes", "30"),
        ("regions", "limit", "limits.regions", "1"),
        ("batch", "limit", "limits.batch", "at most 2"),
        ("a type for all", "constraint", "dtype", "float16"),
        ("an attribute", "constraint", "ops[0].attributes.pads.each.max", "at most 0"),
        ("a rank", "constraint", "ops[0].tensors.X.rank", "4"),
        ("whole numbers", "values", "arithmetic[0].overflow", "saturates"),
    ],
)
def test_causes_have_their_constraint_the_need_and_what_is_allowed(
    case: str, kind: str, constraint: str, allowed: str, tmp_path: Path
) -> None:
    text, rules, options = CASES[case]
    report = plan(tmp_path, read_model(text), rules, options)
    causes = [cause for reason in report["host_reasons"] for cause in reason["causes"]]
    found = [cause for cause in causes if cause["constraint"] == constraint]
    assert found
    assert {(cause["kind"], cause["allowed"]) for cause in found} == {(kind, allowed)}
    assert all(cause["value"] for cause in found if kind != "values")


def test_two_limits_are_named_together(tmp_path: Path) -> None:
    text, rules, options = CASES["two limits"]
    report = plan(tmp_path, read_model(text), rules, options)
    (first,) = report["what_if"]
    assert [action["constraint"] for action in first["actions"]] == ["limits.memory", "limits.min_nodes"]


def test_limits_that_hold_nothing_back_are_not_named(tmp_path: Path) -> None:
    rules = limited(memory="1MiB", min_nodes=2, max_nodes=9, regions=2)
    report = plan(tmp_path, read_model(CONVS), rules, {})
    assert "limit" not in {
        cause["kind"] for reason in report["host_reasons"] for cause in reason["causes"]
    }
    assert "limits." not in json.dumps(report)


def test_one_flag_settles_all_that_it_settles_together(tmp_path: Path) -> None:
    """Each operator alone would gain less than half of what the size brings."""
    text, rules, options = CASES["an open dimension"]
    report = plan(tmp_path, read_model(text), rules, options)
    (told,) = report["what_if"]
    assert told["nodes"] == 4
    assert [action["flags"] for action in told["actions"]] == [["--dim", f"n={read_size(report)}"]]


def read_size(report: Mapping[str, Any]) -> int:
    (dim,) = report["open_dimensions"]
    return int(dim["size"])


def test_a_range_is_told_what_goes_in_its_place(tmp_path: Path) -> None:
    text, rules, options = CASES["a range"]
    report = plan(tmp_path, read_model(text), rules, options)
    remedies = {reason["remedy"] for reason in report["host_reasons"]}
    assert remedies == {
        f"a range leaves n open: in its place give one size, `--dim n={read_size(report)}`, or some, "
        "`--bucket n=1,8`"
    }


def test_all_gains_are_told_or_counted(tmp_path: Path) -> None:
    ops = ["Exp", "Log", "Sqrt", "Sin", "Cos", "Tan", "Erf", "Floor", "Ceil", "Round", "Sign", "Tanh"]
    lines = " ".join(f"t{i + 1} = {op}(t{i})" for i, op in enumerate(ops))
    text = f"net (float[1,64] t0) => (float[1,64] y) {{ {lines} y = Relu(t12) }}"
    report = plan(tmp_path, parse(text), {"dtype": "float32", "ops": [{"op": "Relu"}]}, {})
    assert len(report["what_if"]) + report.get("what_if_left_out", 0) == len(ops)


UNARY = ("Relu", "Neg", "Tanh", "Erf", "Exp", "Abs", "Sigmoid", "Floor")
BINARY = ("Add", "Mul", "Max")


def draw_model(rng: np.random.Generator) -> onnx.ModelProto:
    """Return a graph of images: unary and binary operators, convolutions and pools."""
    made, steps = ["x"], list[str]()
    for number in range(int(rng.integers(3, 9))):
        name, source = f"t{number}", str(rng.choice(made[-3:]))
        match rng.integers(4):
            case 0 if len(made) > 1:
                steps.append(f"{name} = {rng.choice(BINARY)}({source}, {rng.choice(made)})")
            case 1:
                steps.append(f"{name} = Conv <pads = [1,1,1,1]> ({source}, w)")
            case 2:
                text = "MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]>"
                steps.append(f"{name} = {text} ({source})")
            case _:
                steps.append(f"{name} = {rng.choice(UNARY)}({source})")
        made.append(name)
    text = f"y = Relu({made[-1]})"
    declared = "<float[3,3,3,3] w>" if any("Conv" in step for step in steps) else ""
    return read_model(
        f"g (float[2,3,8,8] x) => (float[2,3,8,8] y) {declared} {{ {' '.join(steps)} {text} }}"
    )


def draw_rules(rng: np.random.Generator) -> dict[str, Any]:
    """Return rules that lack operators, constrain others, keep some on the host, and have limits."""
    taken = [str(op) for op in rng.permutation([*UNARY, *BINARY])[: int(rng.integers(4, 11))]]
    half = len(taken) // 2
    constraints: list[dict[str, Any]] = [
        {},
        {"opset": {"max": 12}},
        {"dtype": "float16"},
        {"opset": {"min": 20}},
    ]
    ops: list[dict[str, Any]] = [{"op": taken[:half]}, {"op": taken[half:]}]
    ops[1] |= constraints[int(rng.integers(len(constraints)))]
    conv: list[dict[str, Any]] = [
        {},
        {"attributes": {"pads": {"each": {"max": 0}}}},
        {"tensors": {"X": {"dims": {1: {"multiple_of": 4}}}}},
        {"tensors": {"W": {"dims": {2: {"one_of": [1, 5]}}}, "X": {"rank": 3}}},
    ]
    ops.append({"op": "Conv", **conv[int(rng.integers(len(conv)))]})
    ops += [{"op": "MaxPool"}] if rng.integers(2) else []
    rules: dict[str, Any] = {"dtype": "float32", "ops": ops}
    if rng.integers(4) == 0:
        rules["host"] = {"ops": [taken[0]]}
    limits: dict[str, Any] = {}
    if rng.integers(3) == 0:
        limits["min_nodes"] = int(rng.integers(2, 5))
    if rng.integers(3) == 0:
        limits["regions"] = int(rng.integers(1, 3))
    if rng.integers(3) == 0:
        limits["memory"] = int(rng.integers(1, 6)) * 1500
    return rules | ({"limits": limits} if limits else {})


SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(8, 100))]


@pytest.mark.parametrize("seed", SEEDS)
def test_of_random_models_and_rules_what_is_promised_is_brought(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    model, rules = draw_model(rng), draw_rules(rng)
    before = plan(tmp_path, model, rules, {})
    for told in before["what_if"]:
        edited, given = rules, {}
        for action in told["actions"]:
            edited, given = apply_action(action, edited, given)
        after = plan(tmp_path, model, edited, given)
        gain = before["predicted"]["seconds"] - after["predicted"]["seconds"]
        assert gain == pytest.approx(told["gain"], rel=0.1), (told, gain)


def test_what_fewer_actions_gain_is_told_of_these_alone(tmp_path: Path) -> None:
    """Floor needs the size and a rule for its dtype, and is as fast on the host."""
    text = "g (float[n,64] x) => (float[n,64] y) { a = Relu(x) b = Neg(a) y = Floor(b) }"
    rules = {
        "dtype": "float32",
        "shapes": "static",
        "ops": [{"op": ["Relu", "Neg"]}, {"op": "Floor", "opset": {"min": 20}}],
    }
    report = plan(tmp_path, parse(text), rules, {"keep_open": True})
    kinds = [[action["kind"] for action in told["actions"]] for told in report["what_if"]]
    assert sorted(kinds) == [["flag"], ["flag", "relax"]]
    gains = [told["gain"] for told in report["what_if"]]
    assert gains[0] > gains[1] * (1 + 1e-6)
    (tmp_path / "free.yaml").write_text(
        COSTS.replace("name: t", "name: t\noperators: {Floor: {overhead: 1}}")
    )
    slow = rules | {"cost_model": "free.yaml"}
    report = plan(tmp_path, parse(text), slow, {"keep_open": True})
    assert [[action["kind"] for action in told["actions"]] for told in report["what_if"]] == [["flag"]]


def test_a_limit_of_one_of_two_accelerators_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "costs.yaml").write_text(COSTS)
    (tmp_path / "host.yaml").write_text(HOST)
    files = []
    for name, limits in (("one", {"memory": 1024}), ("two", {"min_nodes": 30})):
        files.append(tmp_path / f"{name}.yaml")
        rules = {"target": name, "cost_model": "costs.yaml", **limited(**limits)}
        files[-1].write_text(yaml.safe_dump(rules))
    options = {"strategy": "launch-aware", "host_cost_model": tmp_path / "host.yaml"}
    before = byoc.partition(read_model(CONVS), files, **options).report
    (told,) = [each for each in before.what_if if each.target == "one"]
    (action,) = told.actions
    assert (action.constraint, action.target) == ("limits.memory", "one")
    rules = {"target": "one", "cost_model": "costs.yaml", **limited(memory=int(action.value))}
    files[0].write_text(yaml.safe_dump(rules))
    after = byoc.partition(read_model(CONVS), files, **options).report
    gain = before.predicted.seconds - after.predicted.seconds
    assert gain == pytest.approx(told.gain, rel=0.1)
    assert {cause.target for each in before.host_reasons for cause in each.causes} == {"one"}


def test_what_one_flag_settles_is_one_reason_on_a_screen(tmp_path: Path) -> None:
    """A float model on an accelerator of integers has one reason, however many sentences there are."""
    text, rules, _ = CASES["a float model"]
    report = plan(tmp_path, read_model(text), rules, {})
    assert len(report["host_reasons"]) > 1
    lines = print_text(host_reasons=report["host_reasons"])
    (first,) = (line for line in lines if "that go with it" in line)
    assert first.split()[2] == "4"
    assert sum("`--quantize int8 --data FOLDER`" in line for line in lines) == 1
    assert not any("for 1 other reason" in line for line in lines)


@pytest.mark.parametrize("dear", [False, True])
def test_advice_that_gains_nothing_says_so(dear: bool, tmp_path: Path) -> None:
    """Over a link on which nothing pays, quantizing the model is told to be of no use."""
    text, rules, _ = CASES["a float model"]
    costs = COSTS.replace("8.0e+10", "1.0e+3") if dear else COSTS
    (tmp_path / "link.yaml").write_text(costs)
    report = plan(tmp_path, read_model(text), rules, {"cost_model": tmp_path / "link.yaml"})
    remedies = {row["remedy"] for row in report["host_reasons"]}
    assert len(remedies) == 1
    assert ("gains nothing" in remedies.pop()) == dear
    assert bool(report["what_if"]) != dear
