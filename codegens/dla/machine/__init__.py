"""The machine: instructions, operands, arithmetic, the program file, and timing."""

from .arithmetic import (
    build_table,
    evaluate_function,
    requantize,
    round_half_even,
    saturate,
    shift_half_even,
    to_common_multipliers,
    to_multiplier,
)
from .instructions import (
    Add,
    Command,
    Conv,
    ConvFlags,
    End,
    Function,
    FunctionKind,
    Load,
    MatMul,
    Mul,
    Normalize,
    NormalizeKind,
    Pool,
    PoolKind,
    Program,
    Scale,
    Store,
    Table,
)
from .operands import ABSENT, NO_PADS, ZERO, DType, Memory, Operand, Pads, Pair
from .program_file import VERSION, assemble, disassemble, format_command, format_program
from .timing import (
    LINE,
    MachineFigures,
    Statistics,
    read_figures,
    read_operands,
    simulate_timing,
    written_operand,
)
