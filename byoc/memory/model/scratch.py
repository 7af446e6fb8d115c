"""What kernels that compute a row at a time need besides their operands and results.

Counted is what a kernel writes and reads again. A convolution adds up, tap by tap, products of matrices,
and a product is somewhere before it is added: for `block` of its channels at a time, so that `LIMIT`
bytes are enough. A row that is read with a stride is gathered first, for a matrix product reads without
gaps. What is added or compared element by element is so in the result itself, and needs nothing.
"""

LIMIT = 16 << 10
"""Bytes of a product, and of a gathered operand, unless one channel alone needs more."""

_FLOAT = 4


def block(width: int, channels: int) -> int:
    """Channels whose rows of `width` elements fit the limit, at least one."""
    return min(max(LIMIT // max(width * _FLOAT, 1), 1), channels)


def convolution(width: int, out_channels: int, in_channels: int, stride: int) -> int:
    """Bytes for a convolution's row of `width` elements a channel; channels are those of one group."""
    gathered = block(width, in_channels) if stride > 1 else 0
    return (block(width, out_channels) + gathered) * width * _FLOAT


def reduction(channels: int) -> int:
    """Bytes for the sums of one row, or its maxima, before they join those of the rows before."""
    return channels * _FLOAT
