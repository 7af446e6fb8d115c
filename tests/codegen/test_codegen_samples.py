"""Codegens that calibrate are handed the user's samples as they reach each region."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, cut
from helpers.support import parse

from byoc.codegen import Artifact, Executor, NoOptions, Region
from byoc.pipeline import partition
from byoc.quantization import Precision

SAMPLES = [
    {"x": np.random.default_rng(seed).normal(size=(1, 4)).astype(np.float32)} for seed in range(3)
]


class Calibrating:
    """Keeps the samples of what it compiles."""

    name = "calibrating"
    Options = NoOptions
    calibrates = True
    seen: ClassVar[dict[str, list[dict[str, Any]]]] = {}

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        self.seen[region.name] = [dict(each) for each in region.samples()]
        return Artifact()

    def load(self, region: Region, artifact: Artifact) -> Executor:
        return lambda inputs: {region.outputs[0].name: np.maximum(next(iter(inputs.values())), 0)}


class Indifferent(Calibrating):
    name = "indifferent"
    calibrates = False


@pytest.fixture(autouse=True)
def _vendors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calibrating, "seen", {})
    vendors.forbid_processes(monkeypatch)
    vendors.install(monkeypatch, calibrating=Calibrating, indifferent=Indifferent)


def test_samples_are_what_reaches_each_region(tmp_path: Path) -> None:
    """The two regions are the same but for what reaches them, so that each is compiled."""
    cut(parse(CHAIN), tmp_path / "b", codegen="calibrating", inputs=SAMPLES)
    first, second = (Calibrating.seen[name] for name in ("dla_0", "dla_1"))
    assert len(first) == len(second) == 3
    for given, one, other in zip(SAMPLES, first, second, strict=True):
        np.testing.assert_array_equal(next(iter(one.values())), given["x"])
        expected = 1 / (1 + np.exp(-np.maximum(given["x"], 0)))
        np.testing.assert_allclose(next(iter(other.values())), expected, rtol=1e-6)
    assert not list((tmp_path / "b").rglob("*.npz"))


def test_other_samples_are_another_artifact(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b", codegen="calibrating", inputs=SAMPLES)
    Calibrating.seen.clear()
    cut(parse(CHAIN), tmp_path / "c", codegen="calibrating", inputs=SAMPLES[:2])
    assert [len(found) for found in Calibrating.seen.values()] == [2, 2]


@pytest.mark.parametrize(
    ("codegen", "options"),
    [("calibrating", {}), ("indifferent", {"inputs": SAMPLES})],
)
def test_without_data_or_interest_there_are_none(
    codegen: str, options: dict[str, Any], tmp_path: Path
) -> None:
    cut(parse(CHAIN), tmp_path / "b", codegen=codegen, **options)
    assert list(Calibrating.seen.values()) == [[]]  # the second region is the same as the first


def test_samples_of_a_folder_of_data_reach_regions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number, sample in enumerate(SAMPLES):
        np.savez(data / f"{number}.npz", **sample)
    cut(parse(CHAIN), tmp_path / "b", codegen="calibrating", precision=Precision(data=data))
    (first, *_) = Calibrating.seen.values()
    assert len(first) == 3


def test_conversions_at_the_boundary_are_done(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("""
target: dla
cost_model: dla
dtype: float32
layout: {activations: NHWC}
ops: [{op: [MaxPool]}]
""")
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    model = parse(
        "g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y) { y = MaxPool<kernel_shape = [1, 1]>(x) }"
    )
    partition(
        model,
        tmp_path / "r.yaml",
        output=tmp_path / "b",
        strategy="all-supported",
        codegen="calibrating",
        inputs={"x": x},
        verify=False,
    )
    ((sample,),) = Calibrating.seen.values()
    np.testing.assert_array_equal(sample["x_NHWC"], x.transpose(0, 2, 3, 1))
