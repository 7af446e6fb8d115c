"""The dla's machine: tiles, rolling windows, transposing DMA, and what it refuses."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from byoc.codegens.dla.machine import (
    ABSENT,
    Add,
    Command,
    Conv,
    ConvFlags,
    DType,
    End,
    Load,
    Memory,
    Mul,
    Operand,
    Pads,
    Pair,
    Pool,
    PoolKind,
    Program,
    Scale,
    Store,
    to_multiplier,
)
from byoc.codegens.dla.simulator import SimulationError, Simulator
from byoc.codegens.dla.simulator.simulator import compute
from dla_bench import FIGURES, Array, box, program

F32 = DType.FLOAT32
ROWS, COLS, IN, OUT = 8, 6, 8, 12


def run(made: Program, *inputs: tuple[Operand, Array], outputs: tuple[Operand, ...] = ()) -> list[Array]:
    return list(Simulator(made, bytes(made.weights), FIGURES).run(inputs, outputs).outputs)


def floats(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def part(whole: Operand, first: int, rows: int, channel: int, channels: int) -> Operand:
    """Return some rows and channels of a tensor in the arena."""
    size = whole.dtype.size
    start = whole.address + channel * size
    return replace(whole, address=start, first_row=first, rows=rows, channels=channels)


def tiled_conv(x: Operand, y: Operand, weights: Array, parameters: Array, more: dict[str, object]):
    """Return the commands and the constants of a 3x3 convolution in 2 x 3 x 2 tiles, and one as a whole.

    Rows are split in 2, output channels in 3, input channels in 2 over an accumulator.
    """
    commands: list[Command] = []
    constants = bytearray()
    dtype, size = x.dtype, x.dtype.size
    sums = F32 if dtype is F32 else DType.INT32
    for tile, first_out in enumerate(range(0, OUT, 4)):
        bytes_of = np.ascontiguousarray(parameters[..., first_out : first_out + 4]).tobytes()
        count = len(bytes_of) // 4
        bias = box(90, 0, (1, 1, count), sums, first_row=tile)
        commands.append(Load(0, Memory.WEIGHTS, replace(bias, address=len(constants)), bias))
        constants += bytes_of
        pieces = {}
        for first_in in range(0, IN, 4):
            chosen = weights[first_out : first_out + 4, :, :, first_in : first_in + 4]
            pieces[first_in] = box(91, len(constants), (1, 1, chosen.size), dtype)
            constants += np.ascontiguousarray(chosen).tobytes()
        for top in range(0, ROWS, 4):
            start, end = max(top - 1, 0), min(top + 5, ROWS)
            made = box(92, 64, (4, COLS, 4), sums, first_row=top)
            result = box(y.tensor, 512, (4, COLS, 4), dtype, first_row=top)
            for first_in, piece in pieces.items():
                tile_in = box(93, 1024, (end - start, COLS, 4), dtype, first_row=start)
                factors = replace(piece, address=2048, first_row=tile * 2 + first_in // 4)
                flags = ConvFlags.FIRST if first_in == 0 else ConvFlags.LAST
                commands += [
                    Load(0, Memory.ARENA, part(x, start, end - start, first_in, 4), tile_in),
                    Load(0, Memory.WEIGHTS, piece, factors),
                    Conv(
                        0, flags, tile_in, factors, bias, made, ABSENT, result, Pair(3, 3),
                        pads=Pads(top=int(top == 0), left=1, bottom=int(end == ROWS), right=1), **more,
                    ),
                ]  # fmt: skip
            commands.append(Store(0, result, part(y, top, 4, first_out, 4)))
    assert size * 1024 <= 4096
    return commands, bytes(constants)


def whole_conv(x: Operand, y: Operand, arrays: dict[str, Array], more: dict[str, object]) -> Array:
    weights = box(2, 0, (1, 1, arrays["weights"].size), x.dtype)
    around = {"pads": Pads(1, 1, 1, 1), **more}
    return compute(
        Conv(0, ConvFlags.ONLY, x, weights, weights, ABSENT, ABSENT, y, Pair(3, 3), **around), arrays
    )


def test_a_float_convolution_in_tiles_is_that_of_the_whole():
    x, y = box(1, 0, (ROWS, COLS, IN), F32), box(2, 2048, (ROWS, COLS, OUT), F32)
    image, weights, bias = floats(ROWS, COLS, IN), floats(OUT, 3, 3, IN), floats(OUT)
    commands, constants = tiled_conv(x, y, weights, bias, {"low": 0.0})
    made = program(*commands, arena=8192, weights=len(constants))
    mine = Simulator(made, constants, FIGURES).run([(x, image)], [y]).outputs[0]
    arrays = {"x": image, "weights": weights, "parameters": bias.reshape(1, 1, -1)}
    np.testing.assert_allclose(mine, whole_conv(x, y, arrays, {"low": 0.0}), rtol=1e-5, atol=1e-5)


def test_an_int8_convolution_in_tiles_is_exactly_that_of_the_whole():
    x, y = box(1, 0, (ROWS, COLS, IN), DType.INT8), box(2, 2048, (ROWS, COLS, OUT), DType.INT8)
    random = np.random.default_rng(1)
    image = random.integers(-128, 128, (ROWS, COLS, IN)).astype(np.int8)
    weights = random.integers(-128, 128, (OUT, 3, 3, IN)).astype(np.int8)
    scales = [to_multiplier(0.001 * (1 + number)) for number in range(OUT)]
    bias = random.integers(-9999, 9999, OUT)
    parameters = np.array([bias, *np.array(scales).T]).astype(np.int32)
    more = {"x_zero": -9, "y_zero": 4}
    commands, constants = tiled_conv(x, y, weights, parameters, more)
    made = program(*commands, arena=8192, weights=len(constants))
    mine = Simulator(made, constants, FIGURES).run([(x, image)], [y]).outputs[0]
    arrays = {"x": image, "weights": weights, "parameters": parameters.reshape(1, 1, -1)}
    assert len(np.unique(mine)) > 50
    assert (mine == whole_conv(x, y, arrays, more)).all()


def cascade(window: int) -> tuple[list[Command], Operand, Operand]:
    """Return a copy two rows at a time, and a pool of 3 rows that follows it over a rolling buffer."""
    x, y = box(1, 0, (8, 2, 2), F32), box(3, 1024, (6, 2, 2), F32)
    between = box(2, 512, (8, 2, 2), F32, window=window)
    commands: list[Command] = []
    for row in range(0, 8, 2):
        source = box(1, 0, (2, 2, 2), F32, first_row=row)
        copy = box(2, 256, (2, 2, 2), F32, first_row=row)
        commands += [
            Load(0, Memory.ARENA, replace(x, first_row=row, rows=2), source),
            Scale(0, source, copy),
            Store(0, copy, replace(between, first_row=row, rows=2)),
        ]
        for top in range(max(row - 2, 0), row):
            tile = box(2, 512, (3, 2, 2), F32, first_row=top)
            result = box(3, 768, (1, 2, 2), F32, first_row=top)
            commands += [
                Load(1, Memory.ARENA, replace(between, first_row=top, rows=3), tile),
                Pool(1, PoolKind.MAX, tile, result, Pair(3, 1)),
                Store(1, result, replace(y, first_row=top, rows=1)),
            ]
    return commands, x, y


def test_a_rolling_window_of_enough_rows():
    commands, x, y = cascade(4)
    image = floats(8, 2, 2)
    (mine,) = run(program(*commands), (x, image), outputs=(y,))
    assert (mine == np.max([image[:6], image[1:7], image[2:]], axis=0)).all()


def test_a_rolling_window_one_row_short():
    commands, x, _ = cascade(3)
    with pytest.raises(
        SimulationError, match=r"should hold row 0 of tensor 2, but row 3 of tensor 2 was written there"
    ):
        run(program(*commands), (x, floats(8, 2, 2)))


def test_dma_reorders_by_pitches():
    """A flattening in ONNX's order: channels become the outermost."""
    x, tile = box(1, 0, (1, 3, 4), F32), box(1, 0, (1, 3, 4), F32)
    turned = replace(box(2, 512, (1, 3, 4), F32), pixel_pitch=4, channel_pitch=12)
    image = floats(1, 3, 4)
    made = program(Load(0, Memory.ARENA, x, tile), Store(0, tile, turned))
    (mine,) = run(made, (x, image), outputs=(box(2, 512, (1, 1, 12), F32),))
    assert (mine.ravel() == image[0].T.ravel()).all()


def test_runs_are_independent():
    x, y = box(1, 0, (2, 2, 2), F32), box(2, 512, (2, 2, 2), F32)
    made = program(Load(0, Memory.ARENA, x, x), Scale(0, x, y), Store(0, y, y))
    machine = Simulator(made, b"", FIGURES)
    for image in (floats(2, 2, 2), -floats(2, 2, 2)):
        assert (machine.run([(x, image)], [y]).outputs[0] == image).all()
    with pytest.raises(SimulationError, match="but nothing yet was written there"):
        machine.run([], [y])


def test_an_output_may_take_the_place_of_its_operand():
    x = box(1, 0, (3, 2, 2), F32, first_row=1)
    y = replace(x, tensor=2)
    image = floats(3, 2, 2)
    commands = (Load(0, Memory.ARENA, x, x), Scale(0, x, y, low=0.0), Store(0, y, y))
    (mine,) = run(program(*commands), (x, image), outputs=(y,))
    assert (mine == np.maximum(image, 0)).all()


X, Y, B = (box(tensor, 256 * tensor, (2, 2, 2), F32) for tensor in (1, 2, 3))
FILL = Load(0, Memory.ARENA, X, X)
SMALL = box(4, 0, (1, 2, 2), F32)

WRONG: dict[str, tuple[Callable[[], tuple[Command, ...]], str]] = {
    "reading past the arena": (
        lambda: (Load(0, Memory.ARENA, replace(X, address=4080), X),),
        "command 0, [0] LOAD .*: it needs byte 4111 of the arena, which has 4096 bytes",
    ),
    "reading past the weights": (
        lambda: (Load(0, Memory.WEIGHTS, replace(X, address=96), X),),
        "command 0, .*: it needs byte 127 of the weights, which has 100 bytes",
    ),
    "writing past the arena": (
        lambda: (FILL, Store(0, X, replace(Y, address=4080))),
        "command 1, [0] STORE .*: it needs byte 4111 of the arena, which has 4096 bytes",
    ),
    "writing past the scratchpad": (
        lambda: (FILL, Scale(0, X, replace(Y, address=4080))),
        "command 1, [0] SCALE .*: it needs byte 4111 of the scratchpad, which has 4096 bytes",
    ),
    "reading what was never written": (
        lambda: (Load(0, Memory.ARENA, Y, Y),),
        "byte 512 of the arena should hold row 0 of tensor 2, but nothing yet was written there",
    ),
    "a LOAD that was left out": (
        lambda: (FILL, Add(0, X, B, Y)),
        "command 1, [0] ADD .*: byte 768 of the scratchpad should hold row 0 of tensor 3, "
        "but nothing yet was written there",
    ),
    "a line of the scratchpad that is stale": (
        lambda: (FILL, Scale(0, replace(X, first_row=1, rows=1), SMALL),
                 Scale(0, replace(SMALL, first_row=1), Y)),
        "command 2, .*: byte 0 of the scratchpad should hold row 1 of tensor 4, "
        "but row 0 of tensor 4 was written there",
    ),
    "tensors that overlap": (
        lambda: (FILL, Scale(0, X, Y), Store(0, Y, replace(Y, address=280)), FILL),
        "command 3, .*: byte 280 of the arena should hold row 1 of tensor 1, "
        "but row 0 of tensor 2 was written there",
    ),
    "an accumulator that no command started": (
        lambda: (FILL, Conv(0, ConvFlags.LAST, X, X, ABSENT, B, ABSENT, Y, Pair(1, 1))),
        "should hold row 0 of tensor 3, but nothing yet was written there",
    ),
    "a DMA between boxes of other extents": (
        lambda: (Load(0, Memory.ARENA, X, SMALL),),
        "(2, 2, 2) float32 do not fit the operand that is written",
    ),
    "more rows than the window has": (
        lambda: (Load(0, Memory.ARENA, replace(X, window=1), X),),
        "the operand source has 2 rows, but its window only 1",
    ),
    "an operand without a tensor": (
        lambda: (Load(0, Memory.ARENA, replace(X, tensor=0), X),),
        "the operand source has no tensor or no elements",
    ),
    "an output that is not there": (
        lambda: (FILL, Scale(0, X, ABSENT)),
        "command 1, .*: the operand to be written has no tensor or no elements",
    ),
    "types that do not go together": (
        lambda: (FILL, Mul(0, X, X, replace(Y, dtype=DType.INT8))),
        "an operand is float32, but the output is an integer type",
    ),
    "an operand that a command must have": (
        lambda: (FILL, Add(0, X, ABSENT, Y)),
        "the operand b has no tensor or no elements",
    ),
    "parameters of another type": (
        lambda: (FILL, Conv(0, ConvFlags.ONLY, X, replace(SMALL, tensor=1, address=256, channels=2),
                            X, ABSENT, ABSENT, Y, Pair(1, 1))),
        "an operand is (2, 2, 2) float32, but must be (1, 1, 2) float32",
    ),
    "other weights than the kernel has": (
        lambda: (FILL, Conv(0, ConvFlags.ONLY, X, X, ABSENT, ABSENT, ABSENT, Y, Pair(1, 1))),
        "there are 8 weights, but 4 are needed",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=list(WRONG))
def test_planted_errors_are_found(make: Callable[[], tuple[Command, ...]], message: str):
    wanted = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(SimulationError, match=wanted):
        run(program(*make(), weights=100), (X, floats(2, 2, 2)))


def test_other_weights_are_refused():
    with pytest.raises(SimulationError, match="for 100 bytes of weights, but there are 99"):
        Simulator(program(weights=100), bytes(99), FIGURES)


def test_inputs_and_outputs_have_their_place():
    with pytest.raises(SimulationError, match="input tensor 1: it needs byte"):
        run(program(arena=260), (X, floats(2, 2, 2)))
    with pytest.raises(SimulationError, match=r"input tensor 1: \(2, 2, 3\) float32 do not fit"):
        run(program(), (X, floats(2, 2, 3)))
    with pytest.raises(
        SimulationError, match="output tensor 2: byte 512 of the arena should hold row 0"
    ):
        run(program(), (X, floats(2, 2, 2)), outputs=(Y,))


@pytest.mark.parametrize("commands", [(), (FILL,), (End(0), FILL), (End(0), End(0))])
def test_end_is_the_last_command_and_no_other(commands: tuple[Command, ...]):
    with pytest.raises(SimulationError, match="END must be the last"):
        run(Program(commands, 4096, 4096, 0))


@pytest.mark.parametrize("stores", [False, True])
def test_a_copy_of_a_tensor_keeps_its_rows(stores: bool):
    """A LOAD whose source begins a row off reads a row of the same tensor, which is there, too."""
    values = floats(3, 2, 2)
    x, near = box(1, 0, (3, 2, 2), F32), box(1, 0, (3, 2, 2), F32)
    off, two = replace(x, rows=2, first_row=1), replace(near, rows=2)
    load, store = Load(0, Memory.ARENA, x, near), Store(0, two, off)
    commands = (load, store) if stores else (Load(0, Memory.ARENA, off, two),)
    rows = (0, 1) if stores else (1, 0)
    with pytest.raises(
        SimulationError, match=f"row {rows[0]} of tensor 1 is copied as row {rows[1]} of"
    ):
        run(program(*commands), (x, values))
