"""Lower pools."""

from byoc.codegen import CompileError

from .layers import PoolLayer
from .lower import NetworkBuilder
from .shapes import window_of
from .tensors import SlidingWindow
from .units import LayerGroup


def lower_pool(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a MaxPool or AveragePool."""
    attributes = unit.main.attributes
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise CompileError("auto_pad must be NOTSET", unit.nodes)
    indices = unit.main.outputs[1:]
    if any(lowering.is_read(name) for name in indices):
        raise CompileError("the machine does not compute the indices of a MaxPool", unit.nodes)
    kernel = attributes["kernel_shape"]
    if len(kernel) != 2:
        raise CompileError("a pool must be of an image of two dimensions", unit.nodes)
    window = window_of(attributes, kernel)
    _add_pool(
        lowering, unit, unit.main.op == "AveragePool", window, bool(attributes.get("count_include_pad"))
    )


def lower_global_pool(lowering: NetworkBuilder, unit: LayerGroup) -> None:
    """Lower a GlobalAveragePool to a pool with a window as large as the image."""
    shape = lowering.shapes[unit.main.inputs[0]]
    if len(shape) != 4:
        raise CompileError("a pool must be of an image of two dimensions", unit.nodes)
    _add_pool(lowering, unit, True, SlidingWindow(kernel=shape[2:]), False)


def _add_pool(lowering: NetworkBuilder, unit: LayerGroup, average: bool, window: SlidingWindow, counts_pads: bool) -> None:
    x, y = lowering.operand_tensor(unit, unit.main.inputs[0]), lowering.result_tensor(unit)
    clamp = lowering.fused_clamp(unit)
    lowering.add_layer(PoolLayer(unit.output, unit.nodes, y, x, average, window, counts_pads, clamp=clamp))
