"""What transformers consist of, on the dla: matrix products, normalizations, transpositions."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byoc.codegens.dla.compiler.layers import MoveLayer, RestackLayer
from byoc.codegens.dla.machine import ABSENT, DType, MatMul, Normalize, NormalizeKind, to_multiplier
from byoc.codegens.dla.simulator import SimulationError
from dla_bench import onnx_run, run_one
from dla_cases import bytes_of as random_bytes
from dla_cases import close
from dla_regions import agrees, bytes_of, executed, floats, mentioned, model, network
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.codegen import CompileError

LAYER = """
g (float[2,16,32] x, float[2,1,16,16] mask) => (float[2,16,32] y) {
  n = LayerNormalization<axis=-1>(x, gain, shift)
  q1 = MatMul(n, wq) k1 = MatMul(n, wk) v1 = MatMul(n, wv)
  q2 = Reshape(q1, heads) k2 = Reshape(k1, heads) v2 = Reshape(v1, heads)
  q = Transpose<perm=[0,2,1,3]>(q2) k = Transpose<perm=[0,2,3,1]>(k2) v = Transpose<perm=[0,2,1,3]>(v2)
  s = MatMul(q, k) t = Div(s, root) m = Add(t, mask) p = Softmax<axis=-1>(m)
  o = MatMul(p, v) r = Transpose<perm=[0,2,1,3]>(o) c = Reshape(r, joined) d = MatMul(c, wo)
  a = Add(x, d) l = LayerNormalization<axis=-1, epsilon=0.001>(a, gain)
  u = MatMul(l, up) e1 = Div(u, two) e2 = Erf(e1) e3 = Add(e2, one) e4 = Mul(u, e3) e = Mul(e4, half)
  f = MatMul(e, down) y = Add(a, f)
}
"""
WEIGHTS: dict[str, Any] = {
    **{name: floats(32, 32, seed=seed) / 6 for seed, name in enumerate(("wq", "wk", "wv", "wo"))},
    "up": floats(32, 40, seed=4) / 6,
    "down": floats(40, 32, seed=5) / 6,
    "gain": floats(32, seed=6),
    "shift": floats(32, seed=7),
    "root": np.float32(4.0),
    "two": np.float32(2**0.5),
    "one": np.float32(1.0),
    "half": np.float32(0.5),
    "heads": np.array([2, 16, 2, 16]),
    "joined": np.array([2, 16, -1]),
}


@pytest.mark.parametrize("options", [{}, {"scratchpad": "4096"}, {"stripes": "true"}], ids=str)
def test_a_layer_of_a_transformer(options: dict[str, str], tmp_path: Path) -> None:
    mask = np.where(floats(2, 1, 16, 16, seed=9) > 1, np.float32(-3e38), np.float32(0))

    agrees(model(LAYER, WEIGHTS), {"x": floats(2, 16, 32), "mask": mask}, tmp_path, **options)


def test_a_softmax_of_many_classes(tmp_path: Path) -> None:
    """Its sum is right to the last digits, in the driver in C as well."""
    x = 3 * floats(1, 20000)
    x[0, 0] = np.log(np.exp(x.astype(np.float64)).sum())  # half of all
    agrees(
        model("g (float[1,20000] x) => (float[1,20000] y) { y = Softmax<axis=-1>(x) }"),
        {"x": x},
        tmp_path,
    )


def test_a_transformer_moves_its_heads_alone(tmp_path: Path) -> None:
    found = network(model(LAYER, WEIGHTS), tmp_path).layers

    moves = [layer.nodes for layer in found if isinstance(layer, MoveLayer)]
    assert moves == [("q",), ("k",), ("v",), ("r",)]
    assert [layer.nodes for layer in found if isinstance(layer, RestackLayer)] == [("m",)]


@pytest.mark.parametrize("shapes", [("5,7", "7,6"), ("3,5,7", "3,7,6"), ("2,3,5,7", "2,3,7,6")])
@pytest.mark.parametrize("dtype", ["float", "int8", "uint8"])
def test_products_of_two_tensors(shapes: tuple[str, str], dtype: str, tmp_path: Path) -> None:
    made = f"{shapes[0][:-1]}6"
    text = f"g ({dtype}[{shapes[0]}] a, {dtype}[{shapes[1]}] b) => ({dtype}[{made}] y)"
    extents = [tuple(map(int, each.split(","))) for each in shapes]
    if dtype == "float":
        proto = model(f"{text} {{ p = MatMul(a, b) y = Relu(p) }}")
        given_ = dict(zip("ab", (floats(*each) for each in extents), strict=True))
    else:
        proto = model(
            f"{text} {{ d = DequantizeLinear(a, s, z) e = DequantizeLinear(b, t, z)"
            " p = MatMul(d, e) r = Relu(p) y = QuantizeLinear(r, u, z) }",
            {"s": np.float32(0.25), "t": np.float32(0.5), "u": np.float32(600), "z": np.array(5, dtype)},
        )
        given_ = {n: bytes_of(*each, dtype=dtype) for n, each in zip("ab", extents, strict=True)}

    agrees(proto, given_, tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[2,3,4] a, float[1,4,5] b) => (float[2,3,5] y) { y = MatMul(a, b) }", "2 to 4 axes"),
        ("(float[3,4] a) => (float[3,4] y) { y = Softmax<axis=0>(a) }", "over the last axis"),
        (
            "(float[3,4] a) => (float[3,4] y) { y = LayerNormalization<axis=0>(a, s) }",
            "over the last axis",
        ),
        (
            "(float[3,4] a, float[4] k) => (float[3,4] y) { y = LayerNormalization(a, k) }",
            "'k' must be constant",
        ),
        ("(float[3,4] a) => (float[3,4] y) { y = Div(a, zero) }", "one over the divisor"),
    ],
)
def test_what_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    constants = {
        "s": floats(3, 4),
        "zero": np.array([1, 0, 1, 1], np.float32),
        "u": np.float32(1),
        "z": np.int8(0),
    }
    with pytest.raises(CompileError, match=reason):
        network(model(f"g {text}", mentioned(text, constants)), tmp_path)


@pytest.mark.parametrize("kind", ["float", "uint8"])
@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_transpositions_of_three_axes(order: tuple[int, ...], kind: str, tmp_path: Path) -> None:
    shape = (3, 4, 5)
    made = ",".join(str(shape[axis]) for axis in order)
    text = f"g ({kind}[3,4,5] x) => ({kind}[{made}] y)"
    line = f"Transpose<perm={list(order)}>"
    if kind == "float":
        agrees(model(f"{text} {{ y = {line}(x) }}"), {"x": floats(*shape)}, tmp_path)
        return
    proto = model(
        f"{text} {{ d = DequantizeLinear(x, s, z) t = {line}(d) y = QuantizeLinear(t, s, z) }}",
        {"s": np.float32(0.5), "z": np.uint8(7)},
    )
    agrees(proto, {"x": bytes_of(*shape, dtype=kind)}, tmp_path)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_images_matrices_and_views_in_any_order(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Transposes, Reshapes, pools of images and sums, one after another, equal onnxruntime."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=4, max_size=4)))
    first = shape
    lines: list[str] = []
    constants: dict[str, Any] = {}
    for number in range(data.draw(st.integers(1, 6))):
        x, y = ("x" if not number else f"t{number}"), f"t{number + 1}"
        kind = data.draw(st.sampled_from(["transpose", "reshape", "pool", "sum", "softmax", "relu"]))
        if kind == "transpose":
            order = data.draw(st.permutations(range(len(shape))))
            lines.append(f"{y} = Transpose<perm={list(order)}>({x})")
            shape = tuple(shape[axis] for axis in order)
        elif kind == "reshape":
            shape = data.draw(st.sampled_from([shape[::-1], (shape[0], -1), (-1, *shape[2:])]))
            size = int(np.prod(first))
            shape = tuple(size // -int(np.prod(shape)) if each == -1 else each for each in shape)
            constants[f"s{number}"] = np.array(shape)
            lines.append(f"{y} = Reshape({x}, s{number})")
        elif kind == "pool" and len(shape) == 4:
            lines.append(f"{y} = MaxPool<kernel_shape=[1,1]>({x})")
        elif kind == "sum":
            constants[f"c{number}"] = floats(shape[-1])
            lines.append(f"{y} = Add({x}, c{number})")
        elif kind == "softmax":
            lines.append(f"{y} = Softmax<axis=-1>({x})")
        else:
            lines.append(f"{y} = Relu({x})")
    inside, last = "\n".join(lines[:-1]), lines[-1].replace(lines[-1].split(" ")[0], "y", 1)
    sides = [",".join(map(str, each)) for each in (first, shape)]
    text = f"g (float[{sides[0]}] x) => (float[{sides[1]}] y) {{ {inside} {last} }}"

    agrees(model(text, constants), {"x": floats(*first)}, tmp_path_factory.mktemp("case"))


def test_a_matmul_of_integers_is_exact() -> None:
    a, b = random_bytes(1, np.int8, 2, 5, 7), random_bytes(2, np.uint8, 2, 7, 6)
    mantissa, shift = to_multiplier(1 / 4096)
    zeros = {"a_zero": 3, "b_zero": 120, "y_zero": -4}

    made = run_one(
        lambda **boxes: MatMul(0, **boxes, **zeros, mantissa=mantissa, shift=shift),
        {"a": a, "b": b},
        (2, 5, 6),
        DType.INT8,
    )

    sums = (a.astype(int) - 3) @ (b.astype(int) - 120)
    np.testing.assert_array_equal(made, np.clip(np.rint(sums / 4096) - 4, -128, 127))
    assert len(np.unique(made)) > 5


def test_a_softmax_of_large_numbers() -> None:
    x = np.array([[[1e4, 1e4 - 1, -3e38], [-1e4, -1e4, -1e4]]], np.float32)

    made = run_one(
        lambda x, y: Normalize(0, NormalizeKind.SOFTMAX, x, ABSENT, ABSENT, y), {"x": x}, x.shape
    )

    close(made, np.array([[[0.7310586, 0.2689414, 0], [1 / 3, 1 / 3, 1 / 3]]], np.float32))


@pytest.mark.parametrize("kind", [NormalizeKind.LAYER, NormalizeKind.RMS])
def test_normalizations(kind: NormalizeKind) -> None:
    arrays = {"x": floats(2, 3, 8), "scale": floats(8, seed=1), "bias": floats(8, seed=2)}

    made = run_one(lambda **boxes: Normalize(0, kind, **boxes, epsilon=0.01), arrays, arrays["x"].shape)

    if kind is NormalizeKind.LAYER:
        text = "g (float[2,3,8] x, float[8] scale, float[8] bias) => (float[2,3,8] y)"
        line = "{ y = LayerNormalization<axis=-1, epsilon=0.01>(x, scale, bias) }"
        wanted = onnx_run(text + line, arrays)
    else:
        x, scale, bias = arrays.values()
        wanted = x / np.sqrt((x * x).mean(axis=2, keepdims=True) + 0.01) * scale + bias
    close(made, wanted)


def test_commands_with_operands_that_do_not_fit() -> None:
    x, three = floats(1, 2, 4), floats(1, 3, 5)

    with pytest.raises(SimulationError, match="matrices of"):
        run_one(lambda **boxes: MatMul(0, **boxes), {"a": x, "b": three}, (1, 2, 5))
    with pytest.raises(SimulationError, match="a zero point is not in"):
        run_one(
            lambda **boxes: MatMul(0, **boxes, a_zero=256),
            {"a": random_bytes(1, np.int8, 1, 2, 3), "b": random_bytes(1, np.int8, 1, 3, 5)},
            (1, 2, 5),
            DType.INT8,
        )
    with pytest.raises(SimulationError, match="neither scale nor bias"):
        run_one(
            lambda x, scale, y: Normalize(0, NormalizeKind.SOFTMAX, x, scale, ABSENT, y),
            {"x": x, "scale": floats(4)},
            x.shape,
        )


@pytest.mark.parametrize("side", ["MatMul(x, k)", "MatMul(k, x)"])
def test_products_by_constant_matrices(side: str, tmp_path: Path) -> None:
    proto = model(
        f"g (float[2,3,5,5] x) => (float[2,3,5,5] y) {{ y = {side} }}", {"k": floats(2, 3, 5, 5)}
    )

    agrees(proto, {"x": floats(2, 3, 5, 5, seed=1)}, tmp_path)


@pytest.mark.parametrize(
    "shape", [(3, 6), (2, 6, 5), (2, 6, 3, 4), (2, 6, 1, 1), (1, 6, 2, 3, 2)], ids=str
)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_parts_of_a_tensor(shape: tuple[int, ...], axis: int, tmp_path: Path) -> None:
    x, sizes = floats(*shape), [1, shape[axis] - 1] if shape[axis] > 1 else [1]
    parts = np.split(x, [1], axis)[: len(sizes)]
    picked = np.take(x, -1, axis)
    outputs = [f"float[{','.join(map(str, each.shape))}]" for each in (*parts, picked)]
    names = [f"part{number}" for number in range(len(parts))] + ["y"]
    made = ", ".join(f"{kind} {name}" for kind, name in zip(outputs, names, strict=True))
    text = f"""g (float[{",".join(map(str, shape))}] x) => ({made}) {{
      r = Relu(x) {", ".join(names[:-1])} = Split<axis={axis}>(r, sizes)
      y = Gather<axis={axis}>(r, last) }}"""

    agrees(model(text, {"sizes": np.array(sizes), "last": np.array(-1)}), {"x": x}, tmp_path)


def test_parts_of_an_image_stay_images(tmp_path: Path) -> None:
    pool = "MaxPool<kernel_shape=[1,1]>"
    text = f"""g (float[1,6,4,5] x) => (float[1,3,4,5] y) {{
      p = {pool}(x) a, b = Split<axis=1, num_outputs=2>(p)
      c = {pool}(a) d = {pool}(b) y = Add(c, d) }}"""
    proto = model(text, opset=18)

    inside = [layer for layer in network(proto, tmp_path).layers if isinstance(layer, MoveLayer)]
    assert [layer.y.name for layer in inside if layer.nodes] == ["a", "b"]
    agrees(proto, {"x": floats(1, 6, 4, 5)}, tmp_path)


@pytest.mark.parametrize("exponent", [2, 3])
def test_powers_and_casts(exponent: int, tmp_path: Path) -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { c = Cast<to=1>(x) y = Pow(c, k) }"

    agrees(model(text, {"k": np.float32(exponent)}), {"x": floats(3, 4)}, tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Pow(x, half)", "a Pow must be by 2 or 3"),
        ("Gather<axis=0>(x, two)", "a Gather must be of one constant position"),
        ("Cast<to=10>(x)", "must be float32, int8, uint8 or int16|a Cast must be to float32"),
    ],
)
def test_parts_and_powers_that_the_machine_has_not(line: str, reason: str, tmp_path: Path) -> None:
    kind = "float16" if "Cast" in line else "float"
    constants = {"half": np.float32(0.5), "two": np.array([0, 1])}
    proto = model(f"g (float[2,4] x) => ({kind}[2,4] y) {{ y = {line} }}", mentioned(line, constants))

    with pytest.raises(CompileError, match=reason):
        network(proto, tmp_path)


GUARDS = {
    "guarded": ("i = IsNaN(p) y = Where(i, nothing, p)", {"nothing": np.float32(0)}, ""),
    "not zero": (
        "i = IsNaN(p) y = Where(i, nothing, p)",
        {"nothing": np.float32(1)},
        "IsNaN must be|has no Where",
    ),
    "another": (
        "i = IsNaN(x) y = Where(i, nothing, p)",
        {"nothing": np.float32(0)},
        "IsNaN must be|has no Where",
    ),
    "the other way around": (
        "i = IsNaN(p) y = Where(i, p, nothing)",
        {"nothing": np.float32(0)},
        "IsNaN must be|has no Where",
    ),
}


@pytest.mark.parametrize("case", GUARDS)
def test_zeros_stand_in_the_place_of_nan(case: str, tmp_path: Path) -> None:
    """A row that is masked altogether is NaN, and with PyTorch's guard zeros; in C as well."""
    guard, constants, refused = GUARDS[case]
    proto = model(
        f"g (float[1,4,6,6] x, float[1,1,6,6] mask) => (float[1,4,6,6] y) "
        f"{{ m = Add(x, mask) p = Softmax<axis=-1>(m) {guard} }}",
        constants,
    )
    x, mask = floats(1, 4, 6, 6), np.zeros((1, 1, 6, 6), np.float32)
    mask[..., 3:, 2:] = -np.inf
    mask[..., 5, :] = -np.inf
    x[0, 1, 2, 3] = np.nan
    if refused:
        with pytest.raises(CompileError, match=refused):
            agrees(proto, {"x": x, "mask": mask}, tmp_path)
        return
    agrees(proto, {"x": x, "mask": mask}, tmp_path)
    made = executed(proto, {"x": x, "mask": mask}, tmp_path)["y"]
    assert not made[:, :, 5].any()
    assert not made[0, 1, 2].any()
    assert np.isfinite(made).all()
