"""Pow on Ethos-U: by any exponent, or of any base, that is stored, in whatever form."""

from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byoc.codegens.ethos_u.lower_regions import EthosUOptions, compile_graphs, lower_region
from compiling import region
from helpers.support import parse
from onnx import numpy_helper

from byoc.model import prepare_model
from byoc.rules import annotate_graph, load_rules

pytestmark = pytest.mark.ethos_u

# How a number `c` is stored, and the tensor that Pow reads.
FORMS = {
    "an initializer": "",
    "an Identity of one": "e = Identity(c)",
    "a Cast of one": "e = Cast<to=1>(c)",
    "dequantized": "e = DequantizeLinear(b, k, n)",
    "dequantized from uint8": "e = DequantizeLinear(v, k, m)",
    "quantized and dequantized": "b2 = QuantizeLinear(f, k, n) e = DequantizeLinear(b2, k, n)",
}
NUMBERS = (2.0, 3.0, 0.5, -1.0, 0.0)
STORED = {
    "s": np.float32(0.05), "z": np.int8(3), "t": np.float32(0.07), "u": np.int8(-5),
    "n": np.int8(0), "m": np.uint8(128),
}  # fmt: skip


def make_power(form: str, number: float, shape: tuple[int, ...], dtype: str, base: bool) -> Any:
    """Return the model of a Pow between QDQ nodes."""
    line = FORMS[form]
    read = "e" if line else "c"
    operands = f"{read}, d" if base else f"d, {read}"
    proto = parse(
        "g (int8[1,3,4,4] x) => (int8[1,3,4,4] y) { d = DequantizeLinear(x, s, z)"
        f" {line} p = Pow({operands}) y = QuantizeLinear(p, t, u) }}",
        opset=18,
    )
    each = np.full(shape, number)
    stored = {
        **STORED, "c": each.astype(dtype), "f": each.astype(np.float32),
        "k": np.float32(abs(number) / 64 or 1), "b": np.full(shape, np.sign(number) * 64, np.int8),
        "v": np.full(shape, 128 + np.sign(number) * 64, np.uint8),
    }  # fmt: skip
    used = {name for node in proto.graph.node for name in node.input}
    for name, value in stored.items():
        if name in used:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def list_powers() -> list[tuple[str, float, tuple[int, ...], str, bool]]:
    """Return all forms by one shape and type, and initializers by all."""
    shapes, dtypes = ((), (1,), (1, 1, 1)), ("float32", "int32", "int64")
    forms = [(form, n, (), "float32", base) for form, n, base in product(FORMS, NUMBERS, (False, True))]
    more = product(("an initializer", "a Cast of one"), (2.0, -1.0), shapes, dtypes, (False,))
    return list(dict.fromkeys([*forms, *more]))


def test_the_rules_take_every_power_that_is_stored() -> None:
    target = load_rules("ethos-u55")

    for case in list_powers():
        index = prepare_model(make_power(*case), "power").index
        marks = annotate_graph(index, target)
        (asked,) = [n for n, node in enumerate(index.nodes) if node.op_type == "Pow"]
        assert marks[asked].verdict, (case, str(marks[asked].verdict))


@pytest.mark.skipif(find_spec("ethosu") is None, reason="ethos-u-vela is not installed")
def test_vela_takes_what_the_rules_take(tmp_path: Path) -> None:
    cases = list_powers()
    graphs = [lower_region(region(make_power(*case), tmp_path))[0] for case in cases]

    for case, result in zip(cases, compile_graphs(graphs, EthosUOptions()), strict=True):
        assert not isinstance(result, Exception), (case, result)


@pytest.mark.parametrize("shape", [(3, 1, 1), (4,)])
def test_exponents_that_differ_are_refused(shape: tuple[int, ...]) -> None:
    index = prepare_model(make_power("an initializer", 2.0, shape, "float32", False), "power").index
    marks = annotate_graph(index, load_rules("ethos-u55"))
    (asked,) = [n for n, node in enumerate(index.nodes) if node.op_type == "Pow"]

    assert not marks[asked].verdict
    assert "the number of elements of Y" in str(marks[asked].verdict)
