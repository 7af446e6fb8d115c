"""The dla's operands: where each element lies, and what its tags say."""

from dataclasses import replace

import numpy as np
import pytest
from byoc.codegens.dla.machine import DType, Operand
from byoc.codegens.dla.simulator import FaultError
from byoc.codegens.dla.simulator.kernel_convolutions import PlainMemory, TaggedMemory
from hypothesis import given
from hypothesis import strategies as st

SIZE = 2048
CONTENT = np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8).tobytes()


@st.composite
def boxes(draw: st.DrawFn) -> Operand:
    """Return boxes whose elements do not overlap, in either order of pixels and channels, with gaps."""
    dtype = draw(st.sampled_from(DType))
    rows, cols, channels = (draw(st.integers(1, 4)) for _ in range(3))
    gaps = st.sampled_from([0, dtype.size])
    if draw(st.booleans()):
        channel_pitch = dtype.size
        pixel_pitch = channels * channel_pitch + draw(gaps)
        row_pitch = cols * pixel_pitch + draw(gaps)
    else:
        pixel_pitch = dtype.size
        channel_pitch = cols * pixel_pitch + draw(gaps)
        row_pitch = channels * channel_pitch + draw(gaps)
    first_row, window = draw(st.integers(0, 9)), draw(st.integers(rows, 6))
    address = draw(st.integers(0, 100))
    return Operand(
        7, address, first_row, window, rows, cols, channels, row_pitch, pixel_pitch, channel_pitch, dtype
    )


def weights(size: int = SIZE) -> PlainMemory:
    return PlainMemory("weights", np.frombuffer(CONTENT[:size], np.uint8))


def addresses(box: Operand) -> np.ndarray:
    """Return the address of each element, by the manual's formula."""
    return np.array(
        [
            [
                [
                    box.address
                    + row % box.window * box.row_pitch
                    + column * box.pixel_pitch
                    + channel * box.channel_pitch
                    for channel in range(box.channels)
                ]
                for column in range(box.cols)
            ]
            for row in range(box.first_row, box.first_row + box.rows)
        ]
    )


@given(boxes())
def test_elements_lie_where_the_formula_says(box: Operand):
    values = weights().read(box)
    size = box.dtype.size
    wanted = [CONTENT[start : start + size] for start in addresses(box).ravel()]
    assert values.dtype == box.dtype.array_type
    assert values.shape == (box.rows, box.cols, box.channels)
    assert values.tobytes() == b"".join(wanted)


@given(boxes())
def test_what_is_written_is_read_and_nothing_else_is_touched(box: Operand):
    memory = TaggedMemory("arena", SIZE)
    values = np.frombuffer(CONTENT, box.dtype.array_type)[: box.rows * box.cols * box.channels]
    values = values.reshape(box.rows, box.cols, box.channels)
    memory.write(box, values)
    assert memory.read(box).tobytes() == values.tobytes()
    touched = {start + byte for start in addresses(box).ravel() for byte in range(box.dtype.size)}
    assert set(np.flatnonzero(memory.tags)) == touched


@given(boxes(), st.data())
def test_any_one_byte_of_another_row_or_tensor_is_found(box: Operand, data: st.DataObject):
    memory = TaggedMemory("arena", SIZE)
    memory.write(box, np.zeros((box.rows, box.cols, box.channels), box.dtype.array_type))
    place = data.draw(st.sampled_from(list(np.ndindex(box.rows, box.cols, box.channels))))
    byte = int(addresses(box)[place]) + data.draw(st.integers(0, box.dtype.size - 1))
    row = box.first_row + place[0]
    one = Operand(box.tensor, byte, row + 1, row + 2, 1, 1, 1, 0, 0, 0, DType.INT8)
    for wrong in (one, replace(one, tensor=8, first_row=row)):
        memory.write(wrong, np.zeros((1, 1, 1), np.int8))
        found = f"row {wrong.first_row} of tensor {wrong.tensor} was written there"
        with pytest.raises(
            FaultError, match=f"byte {byte} of .* hold row {row} of tensor 7, but {found}"
        ):
            memory.read(box)


@given(boxes())
def test_a_memory_one_byte_too_small_is_found(box: Operand):
    end = int(addresses(box).max()) + box.dtype.size
    assert weights(end).read(box).size
    with pytest.raises(FaultError, match=f"it needs byte {end - 1} of the weights, which has {end - 1}"):
        weights(end - 1).read(box)


def test_more_elements_than_bytes_are_refused_before_they_are_read():
    """A pitch of 0 makes a small memory look as large as one likes."""
    box = Operand(7, 0, 0, 2**31, 2**31, 2**31, 2**31, 0, 0, 0, DType.INT8)
    with pytest.raises(FaultError, match=f"it has {2**93} bytes, but the weights only {SIZE}"):
        weights().read(box)
