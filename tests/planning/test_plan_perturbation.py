"""`--perturb` and `--robust`: regrets in the report, in rows of a comparison, and in the text."""

import json
from pathlib import Path
from typing import Any

import pytest

import byoc
from byoc.errors import InputError

NET = "zoo:shufflenet"
OPTIONS: dict[str, Any] = {"perturb": 0.5, "perturb_samples": 8, "what_if": False}


def test_the_report_has_regrets_and_units_in_doubt() -> None:
    plain = byoc.partition(NET, "dla", what_if=False)
    found = byoc.partition(NET, "dla", **OPTIONS)
    assert plain.report.perturbed is None
    assert "perturbed" not in plain.report.to_json()
    perturbed = found.report.to_json()["perturbed"]
    assert perturbed["nominal"] == perturbed["chosen"]
    assert 1 < perturbed["nominal"]["mean"] <= perturbed["nominal"]["worst"]
    assert (perturbed["sigma"], perturbed["samples"], perturbed["seed"]) == (0.5, 8, 0)
    assert perturbed["units"]
    names = [unit.name for unit in found.plan.root.units]
    devices = found.plan.root.placement.labels.tolist()
    for unit in perturbed["units"]:
        assert 0 < unit["share"] <= 1
        assert unit["device"] == ("host", "dla")[devices[names.index(unit["unit"])]] != unit["elsewhere"]
    assert devices == plain.plan.root.placement.labels.tolist()
    assert found.report.read(found.report.to_json()).perturbed == found.report.perturbed


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    one, two, other = (
        byoc.partition(NET, "dla", **OPTIONS, perturb_seed=seed).report.perturbed for seed in (1, 1, 2)
    )
    assert one == two != other


@pytest.mark.parametrize("robust", ["mean", "worst"])
def test_a_robust_placement_is_told_with_the_nominal_one(robust: str, byoc: Any) -> None:
    asked = ("--rules", "dla", "--perturb", "0.5", "--samples", "8", "--no-what-if", "--robust", robust)
    ran = byoc("partition", NET, *asked, "--format", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["perturbed"]
    assert found["robust"] == robust
    assert found["chosen"][robust] <= found["nominal"][robust]
    text = byoc("partition", NET, *asked).out
    assert "With costs off by random factors (0.5 the deviation of their logarithm, 8 samples):" in text
    aim = {"mean": "the average", "worst": "the worst case"}[robust]
    nominal = f"{found['nominal']['mean']:.3f} on average, {found['nominal']['worst']:.3f} at worst"
    assert f"candidates for {aim}; the one for the costs as they are: {nominal}" in text


def test_given_places_stay_and_are_not_in_doubt(tmp_path: Path) -> None:
    doubtful = byoc.partition(NET, "dla", **OPTIONS).report.perturbed
    assert doubtful is not None
    first = next(unit for unit in doubtful.units if unit.nodes == 1)
    file = tmp_path / "where.yaml"
    file.write_text(f"format: 1\nmodel: m\nnodes: {{{json.dumps(first.unit)}: host}}\n")
    try:
        found = byoc.partition(NET, "dla", placement=file, robust="mean", **OPTIONS)
    except InputError:
        pytest.skip("the unit's first node has another name")
    assert found.report.perturbed is not None
    assert first.unit not in [unit.unit for unit in found.report.perturbed.units]


def test_rows_of_a_comparison_have_regrets(byoc: Any) -> None:
    asked = (
        "compare",
        NET,
        "--rules",
        "dla",
        "--strategies",
        "all-supported,launch-aware",
        "--strategy-option",
        "launch-aware:margin=0",  # by the file's margin both choose the same
        "--jobs",
        "1",
    )
    rows = json.loads(byoc(*asked, "--perturb", "0.5", "--samples", "8", "--format", "json").out)
    assert all(1 <= row["regret_mean"] <= row["regret_worst"] for row in rows)
    assert rows[1]["regret_mean"] < rows[0]["regret_mean"]
    assert "regret" in byoc(*asked, "--perturb", "0.5", "--samples", "8").out
    plain = json.loads(byoc(*asked, "--format", "json").out)
    assert [(row["regret_mean"], row["regret_worst"]) for row in plain] == [(None, None)] * 2
    assert "regret" not in byoc(*asked).out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"perturb": 0.0}, "perturb 0: not a number above 0, and at most 5"),
        (
            {"robust": "mean"},
            "robust (--robust): costs are not perturbed: give perturb (--perturb), too",
        ),
        (
            {"perturb_samples": 3},
            "perturb_samples (--samples): costs are not perturbed: give perturb (--perturb), too",
        ),
        ({"perturb": 0.5, "robust": "best"}, "robust is 'best', but must be mean or worst"),
        (
            {"perturb": 0.5, "strategy": "makespan"},
            "perturb: made for costs that add up, not for a makespan",
        ),
    ],
)
def test_wrong_options_are_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        byoc.partition("zoo:squeezenet", "dla", **options)
    assert str(caught.value) == sentence


def test_the_manifest_records_what_was_asked(tmp_path: Path) -> None:
    options = {**OPTIONS, "robust": "mean", "perturb_seed": 4}
    byoc.partition("zoo:squeezenet", "dla", output=tmp_path / "b", verify=False, **options)
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    asked = manifest["asked"]
    assert [asked[name] for name in ("perturb", "perturb_samples", "perturb_seed", "robust")] == [
        *(0.5, 8, 4, "mean")
    ]
    assert manifest["variants"][0]["report"]["perturbed"]["robust"] == "mean"
    assert byoc.open_bundle(tmp_path / "b").variant.report.perturbed is not None
