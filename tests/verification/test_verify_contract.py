"""Targets that promise less than ONNX defines: verified against what they promise, and no more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import vendors
from helpers.support import parse
from interpreting import Spoil, bundle_of, interpreter
from onnx import ModelProto, NodeProto

from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.verification import TOLERANCE, bisect_region, verify_against, verify_regions

RULES = """
target: npu
cost_model: dla
dtype: any
ops: [{op: '*'}]
"""
IN_FLOAT16 = "arithmetic: {computes: float16}\n"


def round_all(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
    """Return what a device makes that rounds each float tensor to float16."""
    return [
        value.astype(np.float16).astype(np.float32) if value.dtype == np.float32 else value
        for value in made
    ]


def spoil_from(operator: str, share: float) -> Spoil:
    """Make such a device that is also off by a share of the range where it runs an operator."""

    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        values = [np.array(value) for value in round_all(node, model, made)]
        if node.op_type == operator:
            flat = values[0].reshape(-1)
            flat[flat.size // 2] += share * np.ptp(flat)
        return values

    return spoil


def partition_for(
    folder: Path, model: str | ModelProto, rules: str = RULES + IN_FLOAT16, **options: Any
) -> Any:
    path = folder / "npu.yaml"
    path.write_text(rules, encoding="utf-8")
    options = {"strategy": "all-supported", "codegen": "wrong", "strict": True, **options}
    return partition(model, path, output=folder / "b", what_if=False, **options)


NETWORKS = ("squeezenet", "mobilenet_v3_large", "vit_tiny", "bert")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_device_that_computes_in_float16_is_held_to_float16(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(round_all))
    result = partition_for(tmp_path, f"zoo:{name}")
    assert result.verification.passed
    worst = result.verification.worst
    assert TOLERANCE["float32"] < worst.relative <= TOLERANCE["float16"]


def test_without_the_clause_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, wrong=interpreter(round_all))
    with pytest.raises(InputError, match=r"differs|is off"):
        partition_for(tmp_path, "zoo:squeezenet", RULES)


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("squeezenet", "Conv"),
        pytest.param("mobilenet_v3_large", "Add", marks=pytest.mark.thorough),
        pytest.param("vit_tiny", "MatMul", marks=pytest.mark.thorough),
        pytest.param("bert", "Erf", marks=pytest.mark.thorough),
    ],
)
def test_a_fault_of_5_percent_in_float16_is_caught_in_each_operation_alone(
    name: str, operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation is a region: those of one operator are off by 5 % in one element."""
    vendors.install(monkeypatch, wrong=interpreter(spoil_from(operator, 0.05)))
    rules = f"{RULES}{IN_FLOAT16}limits: {{max_nodes: 1}}\n"
    bundle = partition_for(tmp_path, f"zoo:{name}", rules, verify=False).bundle
    found = {each.name: each.within for each in verify_regions(open_bundle(bundle))}
    faulty = {
        region.name
        for _, region, _ in open_bundle(bundle).regions()
        if operator in {node.op_type for node in region.load(inline=True).graph.node}
    }
    assert faulty
    assert {region for region, within in found.items() if not within} == faulty


def test_a_fault_of_5_percent_is_caught_by_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(spoil_from("Softmax", 0.05)))
    with pytest.raises(InputError, match=r"at most 0\.01"):
        partition_for(tmp_path, "zoo:squeezenet")


def test_the_shipped_file_of_a_device_in_float16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for share, passes in ((0.0, True), (0.05, False)):
        vendors.install(monkeypatch, wrong=interpreter(spoil_from("Concat", share)))
        rules = "extends: tensorrt-dla\nlimits: {max_nodes: 1}\n"
        bundle = partition_for(tmp_path, "zoo:squeezenet", rules, verify=False).bundle
        assert all(each.within for each in verify_regions(open_bundle(bundle))) == passes


SUMS = """
g (float[64, 512] x, float[512, 4] m, float[64, 4] z) => (float[64, 4] y, float[64, 4] w) {
  y = MatMul(x, m)  w = Tanh(z)
}
"""


def test_each_region_is_held_to_its_own_operators_and_outputs_to_the_weakest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(node: NodeProto, model: ModelProto, made: list[Any]) -> Sequence[Any]:
        return [value + np.float32(2e-3) * np.ptp(value) for value in made]

    vendors.install(monkeypatch, wrong=interpreter(spoil))
    rules = "arithmetic: {op: MatMul, computes: float16}\nlimits: {max_nodes: 1}\n"
    bundle = bundle_of(parse(SUMS), tmp_path, rules=RULES + rules)
    found = verify_against(bundle.folder, regions=True)
    operators = {r.name: r.load(inline=True).graph.node[0].op_type for _, r, _ in bundle.regions()}
    assert {operators[each.name]: each.within for each in found.regions} == {
        "MatMul": True,
        "Tanh": False,
    }
    assert bisect_region(bundle, next(n for n, op in operators.items() if op == "Tanh")).op == "Tanh"


def test_a_threshold_of_the_user_holds_whatever_a_target_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, wrong=interpreter(round_all))
    result = partition_for(tmp_path, "zoo:squeezenet", gate=True, strict=False)
    assert result.report.regions
    result = partition_for(tmp_path, "zoo:squeezenet", gate=1e-6, strict=False)
    assert not result.report.regions
