"""The numbers: the same everywhere, spread as asked, chosen by use."""

import hashlib
from math import sqrt

import numpy as np
import onnx
import pytest

from byoc import zoo
from byoc.errors import InputError
from byoc.zoo._classic_models import WeightGraph, choose_spread
from byoc.zoo._sample_inputs import UniformSpread, derive_seed, draw_uniform


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("shufflenet", "db1df57b945759eece4e8dba001e1384924713c40a952ace433e8b777d2a5a36"),
        ("squeezenet", "ced332f9e61b7b1ae2378c1fe9c3c512082aefdc384ab164491c48bfd707c456"),
    ],
)
def test_a_model_has_the_same_weights_everywhere(name: str, digest: str) -> None:
    total = hashlib.sha256()
    for tensor in sorted(zoo.load(name).graph.initializer, key=lambda tensor: tensor.name):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            total.update(tensor.name.encode() + b"\0" + tensor.raw_data)
    assert total.hexdigest() == digest


def test_values_are_what_the_raw_bits_say() -> None:
    words = [int(word) for word in np.random.PCG64(7).random_raw(2)]
    halves = [(word >> shift) & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
    signed = [half - (1 << 16 if half >= 1 << 15 else 0) for half in halves]
    expected = [3.0 + 0.5 * half / (1 << 15) for half in signed]
    values = draw_uniform(7, (2, 3), UniformSpread(3.0, 0.5))
    assert values.shape == (2, 3)
    assert values.ravel().tolist() == pytest.approx(expected[:6], abs=3e-7)


def test_a_longer_draw_continues_a_shorter_one() -> None:
    chunk = 4 << 17
    long = draw_uniform(1, (2 * chunk + 5,), UniformSpread(0.0, 1.0))
    assert np.array_equal(draw_uniform(1, (chunk + 1,), UniformSpread(0.0, 1.0)), long[: chunk + 1])
    assert not np.array_equal(long[:chunk], long[chunk : 2 * chunk])


def test_values_fill_the_spread() -> None:
    values = draw_uniform(2, (1000, 1000), UniformSpread(1.0, 0.2))
    assert values.min() >= np.float32(0.8)
    assert values.max() <= np.float32(1.2)
    assert values.mean() == pytest.approx(1.0, abs=1e-3)
    assert values.std() == pytest.approx(0.2 / sqrt(3), rel=1e-2)


def test_seeds_tell_names_apart() -> None:
    assert derive_seed("a", "bc") != derive_seed("ab", "c")
    assert derive_seed("a", "bc") == derive_seed("a", "bc")


def test_a_kernel_is_scaled_by_its_fan_in() -> None:
    text = """
        x = Conv<group = 2>(image, kernel)
        r = Relu(x)
        f = Flatten(r)
        a = Gemm<transB = 1>(f, tall)
        b = Gemm(a, wide, bias)
    """
    wiring = _wiring(text)
    assert choose_spread("kernel", (8, 2, 3, 3), wiring).reach == pytest.approx(sqrt(3 / 18))
    assert choose_spread("tall", (10, 50), wiring).reach == pytest.approx(sqrt(3 / 50))
    assert choose_spread("wide", (10, 50), wiring).reach == pytest.approx(sqrt(3 / 10))
    assert choose_spread("bias", (50,), wiring).centre == 0


def test_a_relu_before_a_kernel_doubles_its_variance() -> None:
    wiring = _wiring("r = Relu(image) d, mask = Dropout(r) x = Conv(d, kernel)")
    assert choose_spread("kernel", (8, 2, 3, 3), wiring).reach == pytest.approx(sqrt(2 * 3 / 18))


def test_a_residual_branch_adds_little() -> None:
    wiring = _wiring("x = Conv(image, kernel) n = BatchNormalization(x,s,b,m,v) y = Sum(n, image)")
    assert choose_spread("kernel", (8, 2, 1, 1), wiring).reach < sqrt(3 / 2) / 2


def test_use_decides_and_not_the_name() -> None:
    wiring = _wiring("""
        n = BatchNormalization(image, bias, variance, mean, weight)
        u = Unsqueeze<axes = [1, 2]>(b)
        y = Mul(n, u)
    """)
    near_one = [choose_spread(name, (3,), wiring).centre for name in ("bias", "weight", "b")]
    near_zero = [choose_spread(name, (3,), wiring).centre for name in ("variance", "mean")]
    assert near_one == [1, 1, 1]
    assert near_zero == [0, 0]


def test_an_unknown_use_is_refused() -> None:
    with pytest.raises(InputError, match="slope is input 1 of PRelu: no rule for its values"):
        choose_spread("slope", (3,), _wiring("y = PRelu(image, slope)"))


def _wiring(body: str) -> WeightGraph:
    return WeightGraph.from_graph(
        onnx.parser.parse_graph(f"g (float[1,3,8,8] image) => (float y) {{ {body} }}")
    )
