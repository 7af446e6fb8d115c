"""The striping problem and its plan: tensors of rows, and layers that compute rows from rows.

Only numbers, no ONNX. A tensor is stored row by row, height outermost: `[H][C][W]` or `[H][W][C]`; the
planner does not distinguish them. A tensor without rows, such as the result of a fully connected layer,
is one row.
"""

from dataclasses import dataclass, field
from typing import Literal

LayerMode = Literal["rows", "whole", "reduction"]


@dataclass(frozen=True)
class OperandRows:
    """The rows of an operand that one row of the result reads.

    Row `r` reads `extent` rows from `r * stride // repeat - before` on; rows outside the operand are
    padding. `stride` is at least 0: later rows never read earlier rows than those before them.
    """

    extent: int = 1
    stride: int = 1
    before: int = 0
    repeat: int = 1

    def first_row(self, row: int, height: int) -> int:
        """Return the first row that result row `row` or any later one reads, `height` for none."""
        return min(max(row * self.stride // self.repeat - self.before, 0), height)

    def end_row(self, row: int, height: int) -> int:
        """Return the end of the rows that result row `row` and all earlier ones read."""
        return min(max(row * self.stride // self.repeat - self.before + self.extent, 0), height)


SAME_ROW = OperandRows()
"""Row `r` reads row `r`: elementwise layers, normalizations, pointwise convolutions."""

ALL_ROWS = OperandRows(extent=1 << 40, stride=0)
"""Every row: fully connected layers, Softmax, and the one row of a tensor for each channel."""


@dataclass(frozen=True)
class RowTensor:
    """A tensor of `rows` rows of `row_bytes` bytes each."""

    name: str
    rows: int
    row_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole tensor."""
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class RowLayer:
    """One operation.

    `mode` defines its rows: `rows`, one row of each of `writes` at a time, all with the same number of
    rows; `whole`, everything at once; `reduction`, one row of the first operand at a time (read with
    `SAME_ROW`), accumulated into the single row of the result, which is complete after the last one.
    `may_overwrite` are operands read with `SAME_ROW` whose row the same row of the first result may
    overwrite, element by element. `scratch` are bytes needed while the layer runs.
    """

    name: str
    reads: tuple[tuple[str, OperandRows], ...]
    writes: tuple[str, ...]
    mode: LayerMode = "rows"
    may_overwrite: tuple[str, ...] = ()
    scratch: int = 0


@dataclass(frozen=True)
class RowBand:
    """Rows `[first_row, first_row + rows)` of a layer, computed at once.

    They are rows of its results; of its first operand if the layer is a reduction.
    """

    layer: str
    first_row: int
    rows: int


@dataclass(frozen=True)
class RowWindow:
    """The window of a tensor: row `r` is at byte `offset + (r % window) * row_bytes` of the arena."""

    offset: int
    window: int
    row_bytes: int

    def row_offset(self, row: int) -> int:
        """Return the byte at which row `row` begins."""
        return self.offset + row % self.window * self.row_bytes


@dataclass(frozen=True)
class StripedPlan:
    """Bands in order of execution, and a window for each tensor in an arena of `size` bytes.

    `groups` are the layers of each cascade, whose bands are interleaved. `scratch` gives the offset of
    each layer's scratch. `live` is the peak of the bytes in use, scratch and windows included: a lower
    bound on the arena for these bands. `limits` are messages about searches cut short because the
    network is large.
    """

    bands: tuple[RowBand, ...]
    places: dict[str, RowWindow]
    scratch: dict[str, int]
    size: int
    groups: tuple[tuple[str, ...], ...]
    live: int = 0
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowNetwork:
    """Tensors, and layers in an executable order.

    `inputs` exist before the first layer, `outputs` are read after the last one. Raises ValueError,
    naming the layer or tensor, if the order cannot be executed, if the rows of a layer do not match its
    tensors, or if a tensor has no rows.
    """

    tensors: dict[str, RowTensor]
    layers: tuple[RowLayer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        """Check the network, and count the rows of each layer."""
        flat = [each.name for each in self.tensors.values() if each.rows < 1 or each.row_bytes < 0]
        if flat:
            raise ValueError(f"tensor {flat[0]!r} has no rows")
        there = set(self.inputs)
        steps: dict[str, int] = {}
        for layer in self.layers:
            steps[layer.name] = _count_steps(layer, self.tensors)
            missing = [name for name, _ in layer.reads if name not in there]
            if missing:
                raise ValueError(
                    f"layer {layer.name!r} reads {missing[0]!r}, which nothing has made yet"
                )
            if there.intersection(layer.writes):
                raise ValueError(f"layer {layer.name!r} writes a tensor that is there already")
            there.update(layer.writes)
        if len(steps) < len(self.layers):
            raise ValueError("two layers have the same name")
        unmade = [name for name in self.outputs if name not in there]
        if unmade:
            raise ValueError(f"nothing makes the output {unmade[0]!r}")
        object.__setattr__(self, "steps", steps)


def _count_steps(layer: RowLayer, tensors: dict[str, RowTensor]) -> int:
    """Return the number of rows of the layer; 1 if it runs at once."""
    if not layer.writes:
        raise ValueError(f"layer {layer.name!r} writes nothing")
    height = tensors[layer.writes[0]].rows
    if layer.mode == "whole":
        return 1
    if layer.mode == "rows":
        if any(tensors[name].rows != height for name in layer.writes):
            raise ValueError(f"the results of layer {layer.name!r} have different numbers of rows")
        return height
    if len(layer.writes) > 1 or height != 1 or not layer.reads or layer.reads[0][1] != SAME_ROW:
        raise ValueError(f"layer {layer.name!r} is no reduction of rows to one row")
    return tensors[layer.reads[0][0]].rows
