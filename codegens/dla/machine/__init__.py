"""The machine: instructions, operands, arithmetic, the program file, and timing."""

from .arithmetic import (
    MAX_SHIFT,
    build_table,
    evaluate_function,
    requantize,
    round_half_even,
    saturate,
    shift_half_even,
    split_bytes,
    to_common_multipliers,
    to_multiplier,
    to_real_multiplier,
)
from .element_commands import (
    Add,
    Function,
    FunctionKind,
    Mul,
    Normalize,
    NormalizeKind,
    Scale,
    Table,
    scaling_fields,
)
from .instructions import Command, End, Load, Store, Unpack
from .operands import ABSENT, ACTIVATIONS, NO_PADS, ZERO, DType, Memory, Operand, Pads, Pair
from .program import Program
from .program_file import (
    VERSIONS,
    assemble,
    disassemble,
    find_version,
    format_command,
    format_program,
)
from .timing import (
    LINE,
    MachineFigures,
    Statistics,
    read_figures,
    read_operands,
    simulate_timing,
    written_operand,
)
from .window_commands import Conv, ConvFlags, MatMul, Pool, PoolKind
