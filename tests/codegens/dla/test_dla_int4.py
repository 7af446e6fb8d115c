"""Weights of four bits on the dla: packed in WEIGHTS, unpacked while they are loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byoc.codegens.dla.machine import DType, End, Load, Memory, Program, Store, Unpack, disassemble
from byoc.codegens.dla.simulator import SimulationError, Simulator
from dla_bench import FIGURES, box
from dla_regions import agrees, executed, floats, network, region, runtime_model
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.codegen import CompileError, find_codegen, parse_codegen_options

Arrays = dict[str, Any]


def make_weights(outputs: int, inputs: int, block: int, *, zeros: bool, seed: int = 0) -> Arrays:
    """Return random numbers, scales, and zero points as MatMulNBits stores them."""
    random = np.random.default_rng(seed)
    blocks = -(-inputs // block)
    made: Arrays = {
        "numbers": random.integers(0, 256, (outputs, blocks, block // 2), np.uint8),
        "scales": random.uniform(0.01, 0.1, (outputs * blocks)).astype(np.float32),
    }
    if zeros:
        made["zeros"] = random.integers(0, 256, outputs * (-(-blocks // 2)), np.uint8)
    return made


def product(shape: tuple[int, ...], outputs: int, block: int, constants: Arrays) -> onnx.ModelProto:
    """Return a model that is one product of `x` by such weights, with a Relu."""
    sides = [",".join(map(str, each)) for each in (shape, (*shape[:-1], outputs))]
    names = ["x", "numbers", "scales", *("zeros" if "zeros" in constants else '""',)]
    names += ['""', "bias"] if "bias" in constants else []
    attributes = f"K={shape[-1]}, N={outputs}, bits=4, block_size={block}"
    text = f"""g (float[{sides[0]}] x) => (float[{sides[1]}] y) {{
      p = com.microsoft.MatMulNBits<{attributes}>({", ".join(names)}) y = Relu(p) }}"""
    return runtime_model(text, constants)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_products_by_packed_weights(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any shape, block, scratchpad, with zero points, a bias or none, equals onnxruntime."""
    block = data.draw(st.sampled_from([16, 32, 64, 128]))
    inputs, outputs = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 40))
    shape = (*data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)), inputs)
    seed = data.draw(st.integers(0, 2**16))
    constants = make_weights(outputs, inputs, block, zeros=data.draw(st.booleans()), seed=seed)
    if data.draw(st.booleans()):
        constants["bias"] = floats(outputs, seed=seed)
    options = {"scratchpad": str(data.draw(st.sampled_from([4096, 16384, 524288])))}

    agrees(
        product(shape, outputs, block, constants),
        {"x": floats(*shape, seed=seed)},
        tmp_path_factory.mktemp("case"),
        **options,
    )


def test_packed_weights_are_moved_packed(tmp_path: Path) -> None:
    constants = make_weights(64, 256, 32, zeros=True)
    found: Any = find_codegen("dla")
    made = region(product((4, 256), 64, 32, constants), tmp_path)

    artifact = found.compile(made, parse_codegen_options(found, {}))

    packed = 64 * 256 // 2 + 64 * 8 * (4 + 1)
    assert int(artifact.metadata["weights"]) == packed + 64 * 4
    assert int(artifact.metadata["bytes_loaded"]) == packed + 64 * 4 + 4 * 256 * 4
    commands = disassemble(artifact.files["program.bin"]).commands
    assert sum(each.source.nbytes for each in commands if isinstance(each, Unpack)) == packed


def test_the_weights_of_a_program_are_exchanged(tmp_path: Path) -> None:
    found: Any = find_codegen("dla")
    folders = [tmp_path / name for name in ("first", "second")]
    regions = []
    for seed, folder in enumerate(folders):
        folder.mkdir()
        weights = make_weights(8, 64, 32, zeros=True, seed=seed)
        regions.append(region(product((3, 64), 8, 32, weights), folder))
    options = parse_codegen_options(found, {})
    first = found.compile(regions[0], options)

    taken = found.take_weights(regions[1], regions[0], first, options)

    compiled = found.compile(regions[1], options)
    assert taken.files["weights.bin"] == compiled.files["weights.bin"] != first.files["weights.bin"]
    assert taken.files["program.bin"] == compiled.files["program.bin"]


@pytest.mark.parametrize("bits", [2, 8])
def test_other_numbers_of_bits_are_refused(bits: int, tmp_path: Path) -> None:
    constants = make_weights(8, 64, 32, zeros=False)
    constants["numbers"] = np.zeros((8, 2, 4 * bits), np.uint8)
    proto = product((3, 64), 8, 32, constants)
    next(each for each in proto.graph.node[0].attribute if each.name == "bits").i = bits

    with pytest.raises(CompileError, match="of 4 bits"):
        network(proto, tmp_path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"block": 0}, "a block of weights"),
        ({"has_zeros": 2}, "a block of weights"),
        ({"block": 2}, "bytes, but"),
        ({"has_zeros": 1}, "bytes, but"),
    ],
)
def test_commands_that_do_not_fit(changed: dict[str, int], reason: str) -> None:
    source, target = box(1, 0, (1, 1, 14), DType.UINT8), box(2, 0, (1, 1, 4 + 16), DType.FLOAT32)
    command = Unpack(0, Memory.WEIGHTS, source, target, **{"block": 32, "has_zeros": 0, **changed})
    store = Store(0, target, box(3, 0, (1, 1, 20), DType.FLOAT32))
    program = Program((command, store, End(0)), 80, 80, 14)

    with pytest.raises(SimulationError, match=reason):
        Simulator(program, bytes(14), FIGURES).run([], [store.target])


def test_packed_weights_are_read_as_the_manual_says() -> None:
    numbers = np.array([0x98, 0x07], np.uint8)  # 8, 9, 7
    scale = np.array([0.5, 2.0], "<f4").view(np.uint8)
    content = np.concatenate([numbers, scale, [1, 3]]).astype(np.uint8)
    source, target = box(1, 0, (1, 1, 12), DType.UINT8), box(2, 0, (1, 1, 3), DType.FLOAT32)
    command = Unpack(0, Memory.WEIGHTS, source, target, block=2, has_zeros=1)
    store = Store(0, target, box(3, 0, (1, 1, 3), DType.FLOAT32))
    program = Program((command, store, End(0)), 16, 16, 12)

    (made,) = Simulator(program, content.tobytes(), FIGURES).run([], [store.target]).outputs

    np.testing.assert_array_equal(made.reshape(-1), [(8 - 1) * 0.5, (9 - 1) * 0.5, (7 - 3) * 2.0])
    assert isinstance(command, Load)


def test_weights_of_four_bits_are_exact(tmp_path: Path) -> None:
    constants = make_weights(4, 32, 32, zeros=False)
    one_hot = np.eye(32, dtype=np.float32)

    made = executed(product((32, 32), 4, 32, constants), {"x": one_hot}, tmp_path)["y"]

    halves = constants["numbers"].reshape(4, 16)
    numbers = np.stack([halves & 15, halves >> 4], axis=2).reshape(4, 32).astype(np.float32)
    np.testing.assert_array_equal(made, np.maximum((numbers - 8) * constants["scales"][:, None], 0).T)
