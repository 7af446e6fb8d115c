"""A report's fields that say nothing are left out, others are written and read back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, parse
from onnx import numpy_helper

import byoc
from byoc.bundle import RefusalReport, RegionReport, Report, hash_region_model

CHAIN = "g (float[4000] x) => (float[4000] y) { a = Mul(x, w) y = Sin(a) }"
NO_HOST = "there is no board"


def make_model() -> onnx.ModelProto:
    model = parse(CHAIN)
    weight = np.arange(4000, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


@pytest.fixture(scope="module")
def report() -> Report:
    return byoc.partition(make_model(), VANILLA, strategy="all-supported").report


def test_of_a_region_an_estimate_and_what_is_missing_here_stand_where_they_say_something(
    report: Report,
) -> None:
    (region,) = report.regions
    plain = region.model_dump(mode="json")
    assert {"estimate", "not_here"}.isdisjoint(plain)
    told = region.model_copy(update={"not_here": NO_HOST}).model_dump(mode="json")
    assert told == {**plain, "not_here": NO_HOST}
    for data in (plain, told):
        assert RegionReport.model_validate_json(json.dumps(data)).model_dump(mode="json") == data


def test_of_a_refusal_options_and_parts_stand_where_there_are_some() -> None:
    fields = RefusalReport.model_fields.items()
    defaults: dict[str, Any] = {
        name: field.get_default(call_default_factory=True) for name, field in fields
    }
    refusal = RefusalReport.model_construct(**defaults)
    plain = refusal.model_dump(mode="python", warnings=False)
    assert plain.keys() == RefusalReport.model_fields.keys() - {"options", "tried", "detail"}
    with_options = refusal.model_copy(update={"options": {"a": "1"}})
    assert with_options.model_dump(mode="python", warnings=False) == {**plain, "options": {"a": "1"}}
    for name, text in (("tried", "2 parts of it compiled"), ("detail", "Traceback ...")):
        searched = refusal.model_copy(update={name: text})
        assert searched.model_dump(mode="python", warnings=False) == {**plain, name: text}


def test_of_a_report_what_is_empty_is_left_out(report: Report) -> None:
    data = report.model_dump(mode="json")
    left_out = Report.model_fields.keys() - data.keys()
    assert {"passes", "generations", "variant", "conditions", "placed", "measured"} <= left_out
    assert not any(getattr(report, name) for name in left_out)
    assert Report.model_validate_json(json.dumps(data)).model_dump(mode="json") == data


def test_the_hash_of_a_regions_model_is_of_its_constants_too(tmp_path: Path) -> None:
    output = tmp_path / "b.byoc"
    byoc.partition(
        make_model(), VANILLA, output=output, strategy="all-supported", codegen="reference", verify=False
    )
    bundle = byoc.open_bundle(output)
    (entry,) = bundle.manifest.regions
    first = hash_region_model(output, entry)
    assert first == hash_region_model(output, entry)
    weights = output / "weights.bin"
    content = bytearray(weights.read_bytes())
    content[4 * 17] ^= 1
    weights.write_bytes(content)
    assert hash_region_model(output, entry) != first
    content[4 * 17] ^= 1
    weights.write_bytes(content)
    assert hash_region_model(output, entry) == first
