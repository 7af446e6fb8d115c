"""Small models, and the cut that puts every supported node of them on the accelerator."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from byoc.bundle import RegionCompiler
from byoc.codegen import find_codegen
from byoc.costs import load_device_costs, load_host_costs
from byoc.model import Model, Variant
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.pipeline import EstimateGains, Result, _planning_stages, make_plan, partition
from byoc.placement import Strategy
from byoc.planning import GraphPlan, Plan, PlanSettings
from byoc.rules import Target
from byoc.runtime import load
from helpers.support import VANILLA, parse

# VANILLA takes Relu and Add; Sigmoid, Sub and If stay on the host.
CHAIN = """
chain (float[1, 4] x) => (float[1, 4] y) {
  a = Relu(x)
  b = Sigmoid(a)
  y = Relu(b)
}
"""
# As CHAIN, but the two regions differ, so that each is compiled.
UNLIKE = """
unlike (float[1, 4] x) => (float[1, 4] y) {
  a = Relu(x)
  b = Sigmoid(a)
  y = Add(b, b)
}
"""
HOST_ONLY = "alone (float[1, 4] x) => (float[1, 4] y) { y = Sigmoid(x) }"
DEVICE_ONLY = "all (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }"


def cut(model: str | Path | onnx.ModelProto, output: Path | None = None, **options: Any) -> Result:
    """Partition for VANILLA with all it takes on it, however small; what is refused is an error.

    Regions are called `dla_0`, `dla_1`.
    """
    options = {"strict": True, **options}
    with number_regions():
        return partition(model, VANILLA, output=output, strategy="all-supported", **options)


@contextmanager
def number_regions() -> Iterator[None]:
    """Name regions in launch order, `dla_0`, `dla_1`, for tests that are not about names.

    A test that names a region then says which one it means. What regions are called otherwise is tested
    in tests/planning/test_plan_region_names.py, and wherever this is not used.
    """

    def name_regions(root: GraphPlan, variant: Variant) -> GraphPlan:
        return rename(root, {target.name: count() for target in root.targets}, variant)

    def rename(plan: GraphPlan, numbers: Mapping[str, Iterator[int]], variant: Variant) -> GraphPlan:
        names = (f"{each.target.name}_{next(numbers[each.target.name])}" for each in plan.regions)
        regions = tuple(
            replace(each, name=variant.name_region(name))
            for each, name in zip(plan.regions, names, strict=True)
        )
        bodies = {
            node: tuple(rename(body, numbers, variant) for body in inner)
            for node, inner in plan.bodies.items()
        }
        return replace(plan, regions=regions, bodies=bodies)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_planning_stages, "name_regions", name_regions)
        yield


@pytest.fixture
def numbered_regions() -> Iterator[None]:
    """Name regions as `number_regions` does, for a whole test."""
    with number_regions():
        yield


@pytest.fixture(scope="session")
def cut_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Copy to a path what `cut` makes of a model's text, which is cut only once, and return the path."""
    made: dict[tuple[object, ...], Path] = {}

    def copy(text: str, output: Path, **options: Any) -> Path:
        key = text, *sorted(options.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp("cut") / "b"
            cut(parse(text), made[key], **options)
        return shutil.copytree(made[key], output)

    return copy


def planned(
    model: Model,
    targets: Target | Sequence[Target],
    strategy: Strategy,
    *,
    costs: str = "dla",
    asked: Mapping[str, Any] | None = None,
    **choices: Any,
) -> Plan:
    """Plan for targets and a strategy that are no files or entry points."""
    all_targets = (targets,) if isinstance(targets, Target) else tuple(targets)
    settings = PlanSettings(
        targets=all_targets,
        costs=tuple(load_device_costs(costs) for _ in all_targets),
        host=load_host_costs("host"),
        strategy=strategy,
        **choices,
    )
    with number_regions():
        return make_plan(model, settings, asked)


@contextmanager
def without_what_ifs() -> Iterator[None]:
    """Leave out of reports what placement would gain, which takes longer than all else together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EstimateGains, "run", lambda self, state: state)
        yield


def compilers(plan: Plan, codegen: str = "reference") -> dict[str, RegionCompiler]:
    """Return one codegen for all targets of a plan, without options."""
    return {target.name: RegionCompiler(find_codegen(codegen), {}) for target in plan.targets}


def original(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return what onnxruntime makes of a model, outside of byoc's pipeline."""
    with without_optimizations():
        return run_session(open_session(model), inputs)


def same_as_original(model: onnx.ModelProto, bundle: Path, inputs: dict[str, Any]) -> None:
    """Assert that a bundle gives the outputs of its model, by name and number."""
    expected, given = original(model, inputs), load(bundle)(inputs)
    assert list(given) == list(expected)
    for name, value in expected.items():
        assert given[name].dtype == value.dtype, name
        np.testing.assert_array_equal(given[name], value, err_msg=name)


def ramp(*shape: int) -> NDArray[np.float32]:
    """Return distinct numbers around zero, none of them 0."""
    count = int(np.prod(shape))
    return ((np.arange(count) - count / 2 + 0.25) / count).astype(np.float32).reshape(shape)


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file under a folder, hidden ones too, by relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
