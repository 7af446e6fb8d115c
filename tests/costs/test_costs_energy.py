"""Joules of the built-in cost models, and of cost files with a figure for each data type."""

from pathlib import Path
from typing import Any

import pytest
from helpers.support import OPENVINO_RULES, parse

import byoc
from byoc.costs import Price, Task, Work, build_tasks, load_cost_model
from byoc.errors import InputError

TARGETS = (
    *("dla", "ethos-u55", "iree-cpu", "nnpa", "openvino-cpu", "ort-ep", "qnn-htp", "rknn-rk3588"),
    *("tensorrt-dla", "tvm-cpu"),
)


@pytest.mark.parametrize(
    "target", [OPENVINO_RULES if name == "openvino-cpu" else name for name in TARGETS]
)
def test_every_built_in_rule_file_can_minimise_energy(target: str) -> None:
    found = byoc.partition("zoo:squeezenet", target, objective="energy", what_if=False).report.predicted
    fast = byoc.partition("zoo:squeezenet", target, what_if=False).report.predicted
    assert found.joules is not None
    assert fast.joules is not None
    assert found.joules <= fast.joules * (1 + 1e-9)
    assert found.seconds >= fast.seconds * (1 - 1e-9)


@pytest.mark.parametrize(
    "name", ["host", *TARGETS, "ethos-u65", "ethos-u65-512", "ethos-u85", "ethos-u85-2048"]
)
def test_a_large_product_draws_a_plausible_power(name: str) -> None:
    """Between 10 mW and what a server or accelerator is cooled for; a wrong power of ten is not."""
    dtype = "int8" if name.startswith(("ethos", "qnn")) else "float32"
    op = "MatMulInteger" if dtype == "int8" else "MatMul"
    out = "int32" if dtype == "int8" else "float"
    model = parse(
        f"g ({dtype.replace('32', '')}[1024, 1024] x, {dtype.replace('32', '')}[1024, 1024] w)"
        f" => ({out}[1024, 1024] y) {{ y = {op}(x, w) }}"
    )
    price = load_cost_model(name).execution(build_tasks(byoc.load_model(model).index)[0])
    assert isinstance(price, Price)
    watts = price.joules / price.seconds
    assert 0.01 < watts < 50
    most = 5e-9 if name == "tvm-cpu" else 2e-10  # TVM's loops leave most of a core's arithmetic unused
    assert price.joules / (2 * 1024**3) < most  # for each operation


def test_joules_by_data_type(tmp_path: Path) -> None:
    def write(figures: str) -> Path:
        file = tmp_path / "a.yaml"
        file.write_text(
            "{kind: roofline, name: a, peak: {default: 1.0}, bandwidth: 1.0, "
            f"energy: {{operation: 5.0, byte: 10.0, second: 100.0{figures}}}}}"
        )
        return file

    def ask(figures: str, dtype: str) -> Any:
        return load_cost_model(str(write(figures))).execution(Task("Relu", Work(2, 1), dtype=dtype))

    # Two operations and a byte take 2 s: 10 J for the byte, 200 J for the seconds.
    assert ask(", by_dtype: {int8: 1.0, float32: 3.0}", "int8") == Price(2.0, 212.0)
    assert ask(", by_dtype: {int8: 1.0, float32: 3.0}", "float32") == Price(2.0, 216.0)
    assert ask(", by_dtype: {int8: 1.0, float32: 3.0}", "float16") == Price(2.0, 220.0)
    assert ask(", by_dtype: {int8: 1.0, default: 2.0}", "float16") == Price(2.0, 214.0)
    assert ask("", "float16") == Price(2.0, 220.0)
    for wrong, sentence in (
        ("int9: 1.0", r"energy\.by_dtype: no such data type 'int9' \(did you mean int8\?\)"),
        ("int8: -1.0", r"energy\.by_dtype\.int8: must be at least 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            load_cost_model(str(write(f", by_dtype: {{{wrong}}}")))
