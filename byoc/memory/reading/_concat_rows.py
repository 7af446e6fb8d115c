"""Concat in place: operands computed directly behind one another, so that nothing has to be copied."""

from collections.abc import Mapping
from math import prod

from onnx import NodeProto

from byoc.memory.arena import Buffer
from byoc.memory.reading._tensor_sizes import TensorSizes
from byoc.model import count_bits, get_stated_attributes, is_onnx

BufferRow = tuple[Buffer, ...]


class ConcatRows:
    """Rows of buffers that have to be adjacent, collected from Concats.

    A buffer is in one row only. A row may become part of a longer one if a Concat reads the result of
    another, but only as a whole.
    """

    def __init__(self, tensors: TensorSizes, alignment: int) -> None:
        """Start without any row."""
        self._tensors = tensors
        self._alignment = alignment
        self._row_of: dict[Buffer, BufferRow] = {}

    @property
    def links(self) -> tuple[BufferRow, ...]:
        """All rows, in the order in which their first buffers were made."""
        return tuple(sorted(set(self._row_of.values())))

    def join(self, node: NodeProto, rows: Mapping[str, BufferRow]) -> BufferRow | None:
        """Return the row that a Concat's result consists of, None if it cannot be computed in place.

        `rows` gives the buffers of each tensor that has some. A result that nobody reads takes no bytes,
        and its row is empty.
        """
        if not is_onnx(node) or node.op_type != "Concat" or not self._is_contiguous(node):
            return None
        pieces = [rows.get(name) for name in node.input]
        joined = tuple(buffer for piece in pieces for buffer in piece or ())
        if not all(pieces) or len(set(joined)) < len(joined):
            return None
        if not all(self._is_free(piece) for piece in pieces if piece):
            return None
        ends = [self._tensors.count_bytes(name) for name in node.input[:-1]]
        if any(size % self._alignment for size in ends):
            return None  # the next would begin where this one ends, and not at a multiple of it
        if not self._tensors.index.is_used(node.output[0]):
            return ()
        if len(joined) > 1:
            self._row_of.update((buffer, joined) for buffer in joined)
        return joined

    def _is_free(self, piece: BufferRow) -> bool:
        """Tell whether some buffers are in no row yet, or are a complete row."""
        return self._row_of.get(piece[0], piece) == piece and all(
            len(piece) > 1 or buffer not in self._row_of for buffer in piece
        )

    def _is_contiguous(self, node: NodeProto) -> bool:
        """Tell whether each operand of a Concat is one range of whole bytes in its result."""
        kind = self._tensors.types.get(node.output[0])
        if kind is None or not kind.shape or count_bits(kind.dtype) % 8:
            return False
        axis = int(get_stated_attributes(node).get("axis", 1)) % len(kind.shape)
        return prod(dim if isinstance(dim, int) else 0 for dim in kind.shape[:axis]) == 1
