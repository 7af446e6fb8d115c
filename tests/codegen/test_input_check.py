"""A region that writes into its inputs is refused, in this process as in a worker."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from byoc.codegen import load_region, run_executor

X = np.arange(6.0, dtype=np.float32)


def load(run: Any) -> Any:
    return load_region(SimpleNamespace(load=lambda _region, _artifact: run), None, None)  # type: ignore[arg-type]


def add_in_place(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs["x"][2] += 1
    return {"y": inputs["x"].copy()}


def test_an_input_that_is_written_is_named() -> None:
    with pytest.raises(TypeError, match=r"^it wrote into its input 'x', which others read, too$"):
        run_executor(load(add_in_place), {"k": np.ones(2), "x": X.copy()})


def test_inputs_that_are_only_read_pass() -> None:
    inputs = {"x": X.copy(), "text": np.array(["a"], object), "part": X[::2], "none": None}
    executor = load(lambda given: {"y": given["x"] * 2})
    for _ in range(2):
        assert run_executor(executor, inputs)["y"].tolist() == (X * 2).tolist()


def test_a_sign_of_zero_and_not_a_number_count() -> None:
    def negate(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        inputs["x"] *= -1
        return {"y": inputs["x"]}

    with pytest.raises(TypeError, match="'x'"):
        run_executor(load(negate), {"x": np.zeros(2)})
    unchanged = load(lambda given: {"y": given["x"]})
    assert np.isnan(run_executor(unchanged, {"x": np.array([np.nan])})["y"]).all()
