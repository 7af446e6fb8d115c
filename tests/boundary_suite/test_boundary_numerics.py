"""What int8 costs, on two models; `python tests/boundary_suite/numerics.py` does many more."""

import pytest
from helpers.strategies import Alternating, Random
from helpers.support import prepared, sample_cases
from lowering import ALL, compared, integers_off, plain
from numerics import text

from byoc.placement import Strategy
from byoc.rules import Target, load_rules


@pytest.mark.parametrize("name", sample_cases(["squeezenet", "inception_v1"], "squeezenet"))
def test_what_int8_leaves_of_a_network(name: str) -> None:
    found = compared(name, calibrated=4, tested=2)
    assert found.units > 30
    assert found.borders >= found.regions > 1
    assert found.worst >= 25
    assert found.border[1] >= 25
    assert found.same_class == 1
    assert bool(found.costs) == (found.worst < 30)
    assert text(found).startswith(f"{name} ")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Target:
    path = tmp_path_factory.mktemp("rules") / "any.yaml"
    path.write_text(ALL)
    return load_rules(str(path))


QDQ = """g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y)
    <float s = {0.1}, int8 z = {3}, float t = {0.02}, int8 o = {-5},
     int8[2, 2, 1, 1] w = {9, -8, 7, 6}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    v = DequantizeLinear(w, t, o)
    c = Conv(d, v)
    p = QuantizeLinear(c, s, z)
    e = DequantizeLinear(p, s, z)
    r = Relu(e)
    u = QuantizeLinear(r, s, z)
    y = DequantizeLinear(u, s, z)
}"""


@pytest.mark.parametrize("strategy", [Alternating(), Random(1), Random(2)])
def test_integers_of_a_quantized_model_are_the_same_at_borders(
    strategy: Strategy, everything: Target
) -> None:
    number, off = integers_off(prepared(QDQ), everything, strategy)
    assert number > 0
    assert off == []


def test_the_check_tells_integers_apart(everything: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowering.plain", lambda *given: plain(*given) + 1)
    number, off = integers_off(prepared(QDQ), everything, Alternating())
    assert len(off) == number > 0
