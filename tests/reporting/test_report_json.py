"""The JSON of reports, explanations and verifications: every key, in its order (tests/golden)."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from helpers.cutting import CHAIN
from helpers.support import VANILLA, parse, prepared

from byoc.bundle import Report
from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.planning import LoweredPrecision, Plan, PreciseUnit, RefusedRegion, WhatIf
from byoc.reporting import (
    explain,
    make_explanation_document,
    make_full_verification_report,
    make_report,
)
from byoc.rules import load_rules
from byoc.support import Note
from byoc.verification import Accuracy, LayerCheck, LayerError, OutputError, RegionError, Verification

Golden = Callable[[str, str], None]

EXACT = OutputError("y", "float32", 0.0, 0.0, 1e-4, differing=0.0)
ENDLESS = OutputError("z", "int8", inf, nan, 1.0, "is missing", "units", inf, nan)
VERIFIED = Verification(
    "m.onnx",
    (EXACT, ENDLESS),
    "the original",
    (Accuracy("y", 31.5, 0.75), Accuracy("z", inf, 1.0), Accuracy("u", nan, nan)),
    (EXACT,),
    (RegionError("dla_0", (EXACT,), 2), RegionError("dla_1", problem="does not run")),
)


def _text(document: Any) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _plan() -> Plan:
    """Return a plan with something in every part of its report."""
    plan = partition(parse(CHAIN), VANILLA, strategy="all-supported").plan
    return replace(
        plan,
        what_ifs=(WhatIf("dla", "Sigmoid", "not among the operators", 1, 0.5, 3),),
        lowered=LoweredPrecision(
            plan.model,
            "int8",
            *(2, "photos", "entropy", 3, True, "30dB", inf, nan),
            *((PreciseUnit("a", "dla", 20.5), PreciseUnit("b", "host", inf)), 1, "photos"),
        ),
        notes=(Note("warning", "it is hot"), Note("note", "nothing is quantized")),
        refusals=(
            RefusedRegion("dla", "dla_0", "tables", "no table", ("b",)),
            RefusedRegion("dla", "dla_1", "tables", "too large", split=2),
        ),
    )


def test_report(golden: Golden) -> None:
    report = make_report(_plan(), VERIFIED, Path("out"))
    golden("report.json", _text(report.to_json()))
    assert Report.read(report.to_json()) == report


def test_explanation(golden: Golden) -> None:
    text = """net (float[1, 4, 8, 8] x, float[4, 4, 1, 1] w) => (float[1, 4, 8, 8] y) {
        a = Conv(x, w) b = Relu(a) c = Sigmoid(b) d = Conv <dilations = [9, 9]> (c, w) y = Tanh(d) }"""
    model, rules = prepared(text), load_rules(str(VANILLA))
    found = explain(model, rules, no_passes="all", keep_open=True)
    documents = [make_explanation_document(found, details).to_json() for details in (False, True)]
    documents[0]["rules"] = documents[1]["rules"] = "vanilla.yaml"
    golden("explanation.json", _text(documents))


def test_verification(golden: Golden) -> None:
    golden("verification.json", _text(make_full_verification_report(VERIFIED).to_json()))


def test_other_data_is_no_report() -> None:
    data = make_report(_plan(), VERIFIED).to_json()
    del data["model"]
    with pytest.raises(InputError, match=r"not a report of byoc: model: must be given; nodes\.total: "):
        Report.read(data | {"nodes": data["nodes"] | {"total": "many"}})


def test_the_quantized_layers_of_a_region_are_in_the_document() -> None:
    layer = LayerError("Conv@1", "Conv", "t", 2.0, 0.1, 0.5, 0.25, "channel 3", 1.0)
    region = RegionError("dla_0", (EXACT,), layers=LayerCheck((layer,), same=True))

    document = make_full_verification_report(replace(VERIFIED, regions=(region,))).model_dump()

    layers = document["regions"][0]["layers"]
    assert layers["problem"].startswith("Conv 'Conv@1' is off alone: 't' differs by 2 units")
    assert (layers["errors"][0]["where"], layers["errors"][0]["units"]) == ("channel 3", 1.0)
    assert not layers["errors"][0]["within"]
