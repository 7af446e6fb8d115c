"""The dla's programs as bytes and as text."""

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, get_origin, get_type_hints

import numpy as np
import pytest
from byoc.codegens.dla.machine import (
    ABSENT,
    Add,
    Command,
    DType,
    End,
    Load,
    Memory,
    Pair,
    Pool,
    PoolKind,
    Program,
    assemble,
    disassemble,
)
from byoc.codegens.dla.machine.instructions import Signed
from byoc.codegens.dla.machine.program_file import COMMANDS, format_program
from dla_bench import box
from hypothesis import given
from hypothesis import strategies as st

from byoc.errors import InputError

UNSIGNED = st.integers(0, 2**32 - 1)
SIGNED = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats(-(2.0**127), 2.0**127, width=32) | st.sampled_from([float("inf"), -float("inf")])
X = box(1, 64, (2, 3, 4), DType.INT8)
SMALL = Program((Load(0, Memory.ARENA, X, X), End(0)), 128, 256, 0)


def instances(kind: Any) -> st.SearchStrategy[Any]:
    """Return instances of a dataclass with any words that its fields can have."""
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{field.name: of_type(hints[field.name]) for field in fields(kind)})


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    if is_dataclass(hint):
        return instances(hint)
    if get_origin(hint) is Annotated:
        assert hint == Signed
        return SIGNED
    if hint is float:
        return FLOATS
    return st.sampled_from(hint) if issubclass(hint, Enum) else UNSIGNED


programs = st.builds(
    lambda commands, sizes: Program((*commands, End(0)), *sizes),
    st.lists(st.one_of(*(instances(kind) for kind in COMMANDS if kind is not End)), max_size=4),
    st.tuples(UNSIGNED, UNSIGNED, UNSIGNED),
)


@given(programs)
def test_bytes_come_back_as_the_program_that_they_were(program: Program):
    content = assemble(program)
    assert len(content) % 4 == 0
    assert disassemble(content) == program


def test_opcodes_are_distinct_and_every_command_is_known():
    assert len({kind.opcode for kind in COMMANDS}) == len(COMMANDS)
    assert set(COMMANDS) == {*Command.__subclasses__(), *Load.__subclasses__()}


def test_words_lie_as_the_manual_says():
    words = np.frombuffer(assemble(SMALL), "<u4").tolist()
    operand = [1, 64, 0, 2, 2, 3, 4, 12, 4, 1, 1]
    assert words[0].to_bytes(4, "little") == b"DLA1"
    assert words[1:5] == [4, 128, 256, 0]
    assert words[5:] == [Load.opcode, 24, 0, 0, *operand, *operand, End.opcode, 1, 0]


@given(st.integers(0, len(assemble(SMALL)) - 1))
def test_a_program_that_breaks_off_is_refused(size: int):
    with pytest.raises(InputError, match=r"breaks off|does not begin"):
        disassemble(assemble(SMALL)[:size])


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (0, 7, "not a program of the dla"),
        (1, 1, "version 1, but only versions 4, 5, 6 and 7 are supported"),
        (5, 99, "command 0 at byte 20: no command has the opcode 99"),
        (6, 23, "command 0 at byte 20: 23 words, but LOAD has 24"),
        (8, 5, "command 0 at byte 20: 5 is not a valid Memory"),
    ],
)
def test_bad_words_are_refused(word: int, value: int, message: str):
    words = np.frombuffer(assemble(SMALL), "<u4").copy()
    words[word] = value
    with pytest.raises(InputError, match=message):
        disassemble(words.tobytes())


def test_nothing_stands_behind_end():
    with pytest.raises(InputError, match="command 2 at byte 136: it follows END"):
        disassemble(assemble(SMALL) + b"\0\0\0\0")


@pytest.mark.parametrize("address", [-1, 2**32])
def test_a_field_that_is_no_word_is_refused(address: int):
    source = box(1, address, (1, 1, 1), DType.INT8)
    with pytest.raises(InputError, match="command 0, LOAD"):
        assemble(Program((Load(0, Memory.ARENA, source, X), End(0)), 1, 1, 0))


def test_a_memory_of_more_than_32_bits_is_refused():
    with pytest.raises(InputError, match="addresses have 32 bits"):
        assemble(Program((End(0),), 2**32, 0, 0))


def test_the_listing_has_a_line_for_each_command():
    y, rolling = (
        box(2, 0, (1, 1, 9), DType.INT8),
        box(3, 0, (2, 3, 4), DType.INT8, first_row=5, window=4),
    )
    commands = (
        Load(0, Memory.WEIGHTS, X, y),
        Pool(1, PoolKind.MAX, rolling, y, Pair(3, 2), low=-1.5),
        Add(2, y, ABSENT, y, a_zero=-3),
        End(3),
    )
    assert format_program(Program(commands, 1, 2, 3)) == (
        "arena 1, scratchpad 2, weights 3 bytes\n"
        "    0 [0] LOAD memory=WEIGHTS source=[0:2,3,4]int8@64+12/4/1 target=t2[0:1,1,9]int8@0+9/9/1\n"
        "    1 [1] POOL kind=MAX x=t3[5:7%4,3,4]int8@0+12/4/1 y=t2[0:1,1,9]int8@0+9/9/1"
        " kernel=3,2 low=-1.5\n"
        "    2 [2] ADD a=t2[0:1,1,9]int8@0+9/9/1 b=none y=t2[0:1,1,9]int8@0+9/9/1 a_zero=-3\n"
        "    3 [3] END\n"
    )
