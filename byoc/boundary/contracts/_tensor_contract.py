"""The contract of a boundary tensor: everything that host and region must agree on about its bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from byoc.errors import ByocError
from byoc.model import Dim, TensorType

Converter = Literal["host", "device", "model"]
"""Who converts: byoc's nodes on the host, byoc's nodes in the region, or nodes of the user's own."""

_MAX_SHOWN = 4  # numbers that are written out


class ContractError(ByocError):
    """Host and region disagree about a boundary tensor: a defect of byoc, never of the input."""


@dataclass(frozen=True)
class TensorView:
    """The view of a boundary tensor from the host or from the region; None stands for unknown.

    `layout` is empty for a tensor in ONNX's own layout. `scale`, `zero_point` and `axis` are as in
    `TensorContract`.
    """

    type: TensorType | None = None
    layout: str | None = None
    scale: tuple[float, ...] | None = None
    zero_point: tuple[int, ...] | None = None
    axis: int | None = None

    def agrees(self, other: "TensorView") -> bool:
        """Return whether the two views have no contradiction."""
        if self.type is not None and other.type is not None and not types_agree(self.type, other.type):
            return False
        if self.layout is not None and other.layout is not None and self.layout != other.layout:
            return False
        if self.scale is None or other.scale is None:
            return True
        return (self.scale, self.zero_point, self.axis) == (other.scale, other.zero_point, other.axis)

    def is_same(self, other: "TensorView") -> bool:
        """Return whether both views also know the same things, except for unknown extents."""
        return self.agrees(other) and (self.layout, self.scale) == (other.layout, other.scale)

    def describe(self, other: "TensorView") -> str:
        """Describe this view; long lists of scales show where they differ from the other view."""
        parts = [str(self.type or "unknown")]
        if self.layout:
            parts.append(f"in {self.layout}")
        if self.scale is not None:
            parts.append(f"scale {_format_numbers(self.scale, other.scale)}")
            parts.append(f"zero point {_format_numbers(self.zero_point or (), other.zero_point)}")
            if self.axis is not None:
                parts.append(f"axis {self.axis}")
        return " ".join(parts)


@dataclass(frozen=True)
class TensorContract:
    """The description of a tensor that a region reads, returns, or holds as a constant.

    `tensor` is its name in the user's model and `logical` its type there. `name` is the input, output or
    initializer of the region's model, and `type` its dtype and shape at the boundary, where an unknown
    extent may differ from run to run. `inner` is its name inside the region once byoc's own conversions
    of layout and float type are reverted; it equals `name` if there are none. `layout` is in the
    notation of `byoc.model._layouts`, empty for ONNX's own layout.

    A quantized tensor has `scale` and `zero_point`: real value = (stored - zero_point) * scale, with one
    pair for the tensor, or one for each element of the dimension `axis` of `logical` (ONNX,
    DequantizeLinear; with a block size the scales are in row-major order). All three are None if the
    tensor is not quantized, or nothing at the boundary states its scales.

    `converts` says who converts it between its form in the user's model and its form at the boundary,
    under the keys `layout`, `quantize` and `cast`, for each conversion that takes place.
    """

    tensor: str
    name: str
    inner: str
    type: TensorType
    logical: TensorType
    layout: str = ""
    scale: tuple[float, ...] | None = None
    zero_point: tuple[int, ...] | None = None
    axis: int | None = None
    converts: Mapping[str, Converter] = field(default_factory=dict)

    @property
    def view(self) -> TensorView:
        """The properties that the host must agree on."""
        return TensorView(self.type, self.layout, self.scale, self.zero_point, self.axis)

    def __str__(self) -> str:
        """Return for instance `int8[1, 8, 8, 3] in NHWC scale 0.5 zero point 3`."""
        return self.view.describe(TensorView())


def types_agree(one: TensorType, other: TensorType) -> bool:
    """Return whether two types can belong to one tensor; symbolic extents match any extent."""
    if one.dtype != other.dtype:
        return False
    if one.shape is None or other.shape is None:
        return True
    return len(one.shape) == len(other.shape) and all(map(_dims_agree, one.shape, other.shape))


def _dims_agree(one: Dim, other: Dim) -> bool:
    return not (isinstance(one, int) and isinstance(other, int)) or one == other


def _format_numbers(own: tuple[float, ...], other: tuple[float, ...] | None) -> str:
    """Format numbers: all of a few, otherwise the first that differs from the other view's."""
    if len(own) <= _MAX_SHOWN:
        return ", ".join(map(_format_number, own))
    pairs = enumerate(zip(own, other or (), strict=False))
    first = next((i for i, (own_number, other_number) in pairs if own_number != other_number), None)
    some = (
        ", ".join(map(_format_number, own[:2]))
        if first is None
        else f"[{first}] {_format_number(own[first])}"
    )
    return f"{some}, ... ({len(own)})"


def _format_number(value: float) -> str:
    return f"{value:.9g}"  # enough digits to tell two float32 apart
