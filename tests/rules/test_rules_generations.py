"""Generations of hardware in one rule file: what each changes, how one is named, what messages say."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.ruling import RULE_KEYS
from helpers.support import Ran, parse, prepared

import byoc
from byoc.costs import Roofline, load_device_costs
from byoc.errors import InputError
from byoc.quantization import Precision
from byoc.rules import load_rules, split_generation

Cli = Callable[..., Ran]

COSTS = """
kind: roofline
name: npu
peak: {float32: 1.0e+9, int8: 4.0e+9}
bandwidth: 1.0e+9
launch: 1.0e-6
link: {bandwidth: 1.0e+9, latency: 0.0}
"""
RULES = """
target: npu
description: two generations
cost_model: npu_costs.yaml
codegen: reference
dtype: float32
generation: v1
limits: {memory: 1MiB, max_nodes: 9}
ops:
  - {op: Relu}
  - {op: Exp}
  - {op: Neg}
composites:
  - {name: one, pattern: "a = Relu(x)\\ny = Exp(a)"}
generations:
  v1: {}
  v2:
    description: the second one
    drop: {ops: Neg}
    limits: {memory: 2MiB}
    cost_parameters: {peak.float32: 4.0e+9, link.bandwidth: 2.0e+9}
    ops:
      - {op: Exp, tensors: {input: {rank: 2}}}
      - {op: Sqrt}
"""
MODEL = "g (float[4] x) => (float[4] y) { a = Exp(x) b = Neg(a) c = Sqrt(b) y = Relu(c) }"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A rule file of two generations with its cost model."""
    (tmp_path / "npu_costs.yaml").write_text(COSTS, encoding="utf-8")
    path = tmp_path / "npu.yaml"
    path.write_text(RULES, encoding="utf-8")
    return path


def complaint(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        load_rules(str(path))
    folder = Path(str(path)).parent
    return str(caught.value).replace(f"{folder}/", "")


def rewrite(path: Path, *changes: tuple[str, str]) -> Path:
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_default_holds_unless_another_is_named(rules: Path) -> None:
    plain, first, second = (load_rules(f"{rules}{which}") for which in ("", ":v1", ":v2"))

    assert plain.rules == first.rules
    assert (plain.generation, second.generation) == ("v1", "v2")
    assert (plain.display_name, second.display_name) == ("npu (v1)", "npu (v2)")
    assert plain.name == second.name == "npu"
    assert (plain.source, second.source) == (str(rules), f"{rules}:v2")
    assert [rule.op for rule in second.rules.ops] == [("Exp",), ("Sqrt",), ("Relu",)]
    assert (second.rules.limits.memory, second.rules.limits.max_nodes) == (2 << 20, 9)
    assert second.rules.description == "the second one"
    assert second.rules.composites == plain.rules.composites
    assert second.cost_model == plain.cost_model == str(rules.parent / "npu_costs.yaml")


def test_messages_name_what_a_generation_says_and_what_it_keeps(rules: Path) -> None:
    target = load_rules(f"{rules}:v2")

    assert target.locate("ops[0]") == "generations.v2.ops[0]"
    assert target.locate("ops[1].tensors.X") == "generations.v2.ops[1].tensors.X"
    assert target.locate("ops[2]") == "ops[0]"
    assert target.locate("limits.memory") == "generations.v2.limits.memory"
    assert target.locate("limits.max_nodes") == "limits.max_nodes"
    assert target.locate("dtype") == "dtype"


def test_a_path_with_a_colon_is_a_path(rules: Path, tmp_path: Path) -> None:
    odd = tmp_path / "npu.yaml:v2"
    odd.write_text("extends: dla\ntarget: odd\n", encoding="utf-8")

    assert load_rules(str(odd)).name == "odd"
    assert load_rules(f"{odd}").generation == ""
    assert split_generation("C:\\rules\\npu.yaml") == ("C:\\rules\\npu.yaml", "")
    assert split_generation("a/b:c/npu.yaml") == ("a/b:c/npu.yaml", "")
    assert split_generation("npu:v-2.1") == ("npu", "v-2.1")
    assert split_generation(":v1") == (":v1", "")


def test_a_generation_that_there_is_not_is_one_sentence(rules: Path) -> None:
    assert complaint(f"{rules}:v3") == ("npu.yaml:v3: npu has no generation 'v3'; it has: v1, v2")
    assert complaint("dla:v1") == "dla:v1: dla has no generations, and so no 'v1'"
    assert complaint("dlaa:v1").startswith(
        "dlaa: no such file and no installed rule file (did you mean dla"
    )


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "generation: v1",
            "",
            "generation: must be given, the one of `generations` that holds where none is named",
        ),
        (
            "generation: v1",
            "generation: v9",
            "generation: npu has no generation 'v9'; it has: v1, v2",
        ),
        ("v1: {}", "v1:", "generations.v1: expected a mapping of keys"),
        (
            "v1: {}",
            "v1: {limit: 3}",
            "generations.v1.limit: no such key (did you mean limits?); known: extends, ",
        ),
        ("v1: {}", "v1: {target: t}", "generations.v1.target: a generation cannot change it"),
        (
            "v1: {}",
            "v1: {ops: [{op: Reluu}]}",
            "generations.v1.ops[0].op: ONNX has no operator 'Reluu' (did you mean Relu?)",
        ),
        (
            "drop: {ops: Neg}",
            "drop: {ops: Sin}",
            "generations.v2.drop.ops[0]: there is no 'Sin' to drop",
        ),
        (
            "limits: {memory: 2MiB}",
            "limits: {min_nodes: 10}",
            "generations.v2.limits: min_nodes 10 is greater than max_nodes 9",
        ),
        ("v1: {}", "'a b': {}", "generations.a b: string should match pattern"),
    ],
)
def test_a_mistake_in_a_generation_has_its_location(
    old: str, new: str, sentence: str, rules: Path
) -> None:
    path = rewrite(rules, (old, new))

    assert complaint(f"{path}:v2" if "min_nodes" in new else path).startswith(f"npu.yaml: {sentence}")


def test_mistakes_in_a_generation_are_in_the_order_of_the_file(rules: Path) -> None:
    keys, held = ["target", "generation", "generations"], "v1: {}"
    for order in (keys, keys[::-1]):
        new = f"v1: {{{', '.join(f'{key}: t' for key in order)}}}"
        path, held = rewrite(rules, (held, new)), new
        places = [complaint(path).index(f"generations.v1.{key}: a generation cannot") for key in order]
        assert places == sorted(places)


def test_generations_are_inherited_by_name_and_one_can_be_built_on(rules: Path, tmp_path: Path) -> None:
    heir = tmp_path / "heir.yaml"
    heir.write_text(
        "extends: npu.yaml\ntarget: heir\ngenerations: {v3: {ops: [{op: Tanh}]}}\n", encoding="utf-8"
    )
    fixed = tmp_path / "fixed.yaml"
    fixed.write_text("extends: npu.yaml:v2\ntarget: fixed\nops: [{op: Tanh}]\n", encoding="utf-8")

    assert [*load_rules(f"{heir}").rules.generations] == ["v1", "v2", "v3"]
    assert load_rules(f"{heir}").generation == "v1"
    second, third = load_rules(f"{heir}:v2"), load_rules(f"{heir}:v3")
    assert [rule.op for rule in second.rules.ops] == [("Exp",), ("Sqrt",), ("Relu",)]
    assert second.locate("ops[0]") == "npu.yaml: generations.v2.ops[0]"
    assert second.locate("ops[2]") == "npu.yaml: ops[0]"
    assert third.locate("ops[0]") == "generations.v3.ops[0]"

    target = load_rules(fixed)
    assert (target.generation, target.rules.generations) == ("", {})
    assert [rule.op for rule in target.rules.ops] == [("Tanh",), ("Exp",), ("Sqrt",), ("Relu",)]
    assert target.locate("ops[1]") == "npu.yaml: generations.v2.ops[0]"
    assert target.locate("ops[3]") == "npu.yaml: ops[0]"
    assert target.rules.cost_parameters == {"peak.float32": 4e9, "link.bandwidth": 2e9}
    assert complaint(f"{fixed}:v2") == "fixed.yaml:v2: fixed has no generations, and so no 'v2'"
    rewrite(fixed, ("npu.yaml:v2", "npu.yaml:v7"))
    assert complaint(fixed) == ("fixed.yaml: extends: npu has no generation 'v7'; it has: v1, v2")


@pytest.mark.parametrize(("which", "taken"), [("v1", ["Exp", "Neg", "Relu"]), ("v2", ["Sqrt", "Relu"])])
def test_a_plan_goes_by_the_rules_of_the_generation(which: str, taken: list[str], rules: Path) -> None:
    result = byoc.partition(parse(MODEL), f"{rules}:{which}", strategy="all-supported", what_if=False)

    units = [unit for region in result.plan.regions for unit in region.units]
    index = result.plan.model.index
    assert [index.nodes[node].op_type for unit in units for node in unit.nodes] == taken
    assert result.report.generations == {"npu": which}


def seconds_by_generation(rules: Path, **options: Any) -> list[float]:
    model = parse("g (float[1000,1000] x) => (float[1000,1000] y) { y = Relu(x) }")
    return [
        byoc.partition(
            model, f"{rules}:{which}", strategy="all-supported", what_if=False, **options
        ).report.predicted.seconds
        for which in ("v1", "v2")
    ]


def test_cost_parameters_count_with_the_files_own_cost_model_alone(rules: Path, tmp_path: Path) -> None:
    rewrite(rules, ("memory: 1MiB", "memory: 64MiB"), ("memory: 2MiB", "memory: 64MiB"))
    # 4 MB cross twice at 1 GB/s, or 2 GB/s; 8 MB are read and written at 1 GB/s by both.
    first, second = seconds_by_generation(rules)
    assert first - second == pytest.approx(8e6 / 1e9 - 8e6 / 2e9)

    (tmp_path / "other.yaml").write_text(COSTS, encoding="utf-8")
    other = seconds_by_generation(rules, cost_model=str(tmp_path / "other.yaml"))
    assert other[0] == other[1] == first


def test_a_parameter_that_does_not_fit_names_the_rule_file(rules: Path, byoc: Cli) -> None:
    rewrite(rules, ("peak.float32: 4.0e+9", "peak.float33: 4.0e+9"))
    ran = byoc("partition", "zoo:squeezenet", "--rules", f"{rules}:v2")

    assert ran.code == 1
    assert (
        f"{rules}:v2: generations.v2.cost_parameters: cost model npu: peak: no such data type 'float33'"
        in ran.err
    )
    checked = byoc("rules", "check", rules)
    assert checked.code == 1
    assert checked.out.startswith(f"{rules}: generations.v2.cost_parameters: cost model npu: peak: ")


def test_options_of_the_codegen_belong_to_the_generation(rules: Path, tmp_path: Path) -> None:
    rewrite(
        rules,
        ("codegen: reference", "codegen: dla\ncodegen_options: {memory: best-fit, stripes: true}"),
        ("  v1: {}", "  v1: {codegen_options: {scratchpad: 65536}}"),
    )
    options = []
    for which in ("v1", "v2"):
        target = load_rules(f"{rules}:{which}")
        options.append(target.rules.codegen_options)
    assert options == [
        {"memory": "best-fit", "stripes": "true", "scratchpad": "65536"},
        {"memory": "best-fit", "stripes": "true"},
    ]


def test_a_wrong_option_of_any_generation_is_found_by_the_check(rules: Path, byoc: Cli) -> None:
    rewrite(
        rules,
        ("codegen: reference", "codegen: dla"),
        ("drop: {ops: Neg}", "codegen_options: {banks: 3}"),
    )
    ran = byoc("rules", "check", rules)

    assert ran.code == 1
    assert ran.out.startswith(
        f"{rules}: generations.v2.codegen_options.banks: codegen dla has no option 'banks'"
    )


def test_the_summary_the_manifest_and_inspect_name_the_generation(
    rules: Path, tmp_path: Path, byoc: Cli
) -> None:
    bundle = tmp_path / "b"
    ran = byoc("partition", "zoo:squeezenet", "--rules", f"{rules}:v2", "--strategy", "all-supported",
               "-o", bundle)  # fmt: skip

    assert ran.code == 0, ran.err
    assert " on npu (v2) in " in ran.out
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["asked"]["rules"] == ["npu.yaml:v2"]
    assert manifest["variants"][0]["report"]["generations"] == {"npu": "v2"}
    assert "npu (v2)" in byoc("inspect", bundle).out
    assert byoc("inspect", bundle, "--format", "json").code == 0


def test_the_lists_of_rule_files_name_generations(byoc: Cli) -> None:
    rows = {row["name"]: row for row in json.loads(byoc("rules", "--format", "json").out)}

    assert rows["nnpa"]["generations"] == ["z16", "z17"]
    assert rows["qnn-htp"]["generations"][0] == "v73"
    assert rows["dla"]["generations"] == []
    assert "u55-256, u55-32, u55-64, u55-128" in byoc("rules").out
    assert byoc("rules", "check", "nnpa").out == "nnpa: ok, 27 operators, 0 composites, 2 generations\n"
    assert byoc("rules", "check", "nnpa:z17").out.startswith("nnpa:z17: ok, 34 operators")


def test_a_study_sweeps_generations(rules: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "models: [zoo:squeezenet]\nrules: [npu.yaml:v1, npu.yaml:v2, nnpa:z17]\nstrategies: host-only\n",
        encoding="utf-8",
    )
    rows = byoc.study(study, jobs=1).rows

    assert [row["rules"] for row in rows] == ["npu.yaml:v1", "npu.yaml:v2", "nnpa:z17"]
    assert {row["status"] for row in rows} == {"ok"}
    assert len({row["rules_digest"] for row in rows}) == len({row["costs_digest"] for row in rows}) == 3
    rewrite(study, ("npu.yaml:v2", "npu.yaml:v5"))
    with pytest.raises(InputError, match=r"rules\[1\]: .*npu has no generation 'v5'"):
        byoc.study(study, jobs=1)


def test_what_a_generation_can_change_is_in_the_schema_for_editors() -> None:
    schema = byoc.rules.make_json_schema()
    keys = {*schema["$defs"]["generation"]["properties"]}

    assert keys == {*RULE_KEYS} - {"extends", "target", "generation", "generations"}


ETHOS = {"u55-32": 32, "u55-64": 64, "u55-128": 128, "u55-256": 256}


@pytest.mark.parametrize("family", ["ethos-u55", "ethos-u65", "ethos-u85"])
def test_an_ethos_u_computes_in_proportion_to_its_multipliers(family: str) -> None:
    names = list(load_rules(family).rules.generations)
    clock = 500e6 if family == "ethos-u55" else 1e9

    assert len(names) == {"ethos-u55": 4, "ethos-u65": 2, "ethos-u85": 5}[family]
    for name in names:
        rules = load_rules(f"{family}:{name}")
        costs = load_device_costs(rules.cost_model)
        assert isinstance(costs, Roofline)
        assert costs.peak["int8"] == int(name.rpartition("-")[2]) * 2 * clock
        assert rules.rules.codegen_options == {"accelerator": f"ethos-{name}"}


@pytest.mark.ethos_u
@pytest.mark.skipif(find_spec("ethosu") is None, reason="ethos-u-vela is not installed")
def test_the_compiler_is_told_of_the_generation_that_costs_are_of(tmp_path: Path) -> None:
    """Predicted seconds and Vela's cycles fall together, from 32 multipliers to 256."""
    text = "g (float[1,16,32,32] x) => (float[1,64,32,32] y) { y = Conv<pads=[1,1,1,1]>(x, w) }"
    proto = parse(text)
    weights = np.random.default_rng(0).normal(size=(64, 16, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    cycles, seconds = [], []
    for name in ETHOS:
        bundle = tmp_path / name
        result = byoc.partition(
            proto,
            f"ethos-u55:{name}",
            output=bundle,
            strategy="all-supported",
            precision=Precision(quantize="int8", data="random"),
            verify=False,
            what_if=False,
        )
        (region,) = byoc.open_bundle(bundle).manifest.regions
        assert region.codegen_options == {"accelerator": f"ethos-{name}"}
        cycles.append(float(region.artifact_metadata["cycles"]))
        seconds.append(result.report.regions[0].seconds)
    assert cycles == sorted(cycles, reverse=True)
    assert seconds == sorted(seconds, reverse=True)
    assert cycles[0] / cycles[-1] == pytest.approx(seconds[0] / seconds[-1], rel=0.5)


def refusals(which: str, text: str, opset: int = 20) -> list[str]:
    from byoc.rules import annotate_graph  # noqa: PLC0415 - only here

    index = prepared(text, opset=opset).index
    return [str(mark.verdict) for mark in annotate_graph(index, load_rules(f"nnpa:{which}"))]


def test_z17_takes_what_z16_does_not() -> None:
    """The operators that onnx-mlir has for z17 alone, and matrices too wide for z16."""
    texts = {
        "Gelu": "g (float[2,3] x) => (float[2,3] y) { y = Gelu(x) }",
        "Sqrt": "g (float[2,3] x) => (float[2,3] y) { y = Sqrt(x) }",
        "LeakyRelu": "g (float[2,3] x) => (float[2,3] y) { y = LeakyRelu(x) }",
        "ReduceMax": "g (float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceMax(x, a) }",
        "2 by 3": "g (float[2,3] x, float[5,3,4] w) => (float[5,2,4] y) { y = MatMul(x, w) }",
        "wide": "g (float[2,3] x, float[3,50257] w) => (float[2,50257] y) { y = MatMul(x, w) }",
        "integers": "g (int8[2,3] x, int8[3,4] w) => (int32[2,4] y) <int8 z = {0}>"
        " { y = MatMulInteger(x, w, z, z) }",
    }
    for name, text in texts.items():
        assert refusals("z17", text) == ["yes"], name
        assert refusals("z16", text) != ["yes"], name
    first = "g (float[2,3] x) => (float[1,3] y) <int64[1] a = {0}> { y = ReduceMax(x, a) }"
    assert refusals("z17", first) == ["ReduceMax: the axis must be the last one"]
    wider = "g (float[2000000,3] x, float[3,4] w) => (float[2000000,4] y) { y = MatMul(x, w) }"
    assert refusals("z17", wider)[0].startswith("MatMul: dimensions must be at most 2097152 (the last)")
