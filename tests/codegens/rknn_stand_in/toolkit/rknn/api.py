"""A stand-in for rknn-toolkit2: networks of one Relu, of float32 or of int8 with one scale.

It has the methods that byoc's codegen calls, and writes files for `rknnrt.c` beside this folder. The
name of a network's first node decides what goes wrong: `refused`, `hangs`, `crashes`, `lost`,
`lost_late`, `slow`, `other_scale` (of what is computed inside), `silent` (shows nothing of that),
`other_size` (of the output), `flat`.
"""

import os
import struct
import time
import types

import numpy as np
import onnx
from onnx import numpy_helper

ROW = "D RKNN: [00:00:00.000] %d    %s  %s  %s    (1,2)   %s    %d/%d/%d    %d    Relu:y"
FLOAT32, INT8 = 0, 2  # of rknn_tensor_type, as in rknn_api.h


class Simulator:
    """What computes a network layer by layer."""

    def _infer_by_sess(self, session, values, can_dump=False):
        """Compute a layer: the values are here before."""


class RKNN:
    """A network."""

    def __init__(self, verbose=False):
        """Begin empty."""
        self.rknn_base = types.SimpleNamespace(simulator=Simulator())

    def config(self, target_platform, optimization_level):
        """Take the options."""

    def load_onnx(self, path):
        """Read a model. Returns 0, or -1 with a line that says why."""
        self.model = onnx.load(path)
        if "refused" in self.model.graph.node[0].name:
            print("\x1b[1;31mE\x1b[0m load_onnx: it is one of those that are refused")  # noqa: T201
            return -1
        return 0

    def build(self, do_quantization):
        """Print the table of layers. Returns 0."""
        name = self.model.graph.node[0].name
        if "hangs" in name:
            time.sleep(600)
        if "crashes" in name:
            os.abort()
        shape = "(%s)" % ",".join(map(str, self.shape))  # noqa: UP031
        target = "CPU" if "slow" in name else "NPU"
        print(ROW % (0, "InputOperator", "FLOAT16", "CPU", shape, 0, 0, 0, 0))  # noqa: T201
        print(ROW % (1, "ConvRelu", "FLOAT16", target, shape, 100, 700, 700, 1))  # noqa: T201
        print(ROW % (2, "MaxPool", "FLOAT16", "NPU", shape, 0, 0, 0, 1))  # noqa: T201
        return 0

    @property
    def shape(self):
        """The shape of the input."""
        return [each.dim_value for each in self.model.graph.input[0].type.tensor_type.shape.dim]

    def export_rknn(self, path):
        """Write the file: type, zero point, scale, rank and extents."""
        stored = {each.name: numpy_helper.to_array(each) for each in self.model.graph.initializer}
        first = self.model.graph.node[0]
        quantized = first.op_type == "DequantizeLinear"
        scale = float(stored[first.input[1]]) if quantized else 1.0
        point = int(stored[first.input[2]]) if quantized else 0
        head = struct.pack("<iif", INT8 if quantized else FLOAT32, point, scale)
        extents = struct.pack("<%dI" % (1 + len(self.shape)), len(self.shape), *self.shape)  # noqa: UP031
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(b"RKNN" + head + extents)
        return 0

    def init_runtime(self):
        """Begin to simulate. Returns 0."""
        return 0

    def inference(self, arrays, data_format):
        """Return the output; only what is not negative is let through."""
        first = self.model.graph.node[0]
        if "lost" in first.name:
            time.sleep(1 if "late" in first.name else 0)
            os.abort()
        point = 0
        if first.op_type == "DequantizeLinear":
            names = {each.name: each for each in self.model.graph.initializer}
            point = numpy_helper.to_array(names[first.input[2]])
        made = np.maximum(arrays[0], point)
        if first.op_type == "DequantizeLinear" and "silent" not in first.name:
            scale = numpy_helper.to_array(names[first.input[1]])
            real = (made.astype(np.float32) - point) * scale
            if "other_scale" in first.name:
                real = real * np.float32(0.7)
            for node in self.model.graph.node:
                if node.op_type == "Relu":
                    values = {node.output[0]: real}
                    self.rknn_base.simulator._infer_by_sess(None, values, can_dump=True)
        made = made[:, 1:] if "other_size" in first.name else made
        return [made.reshape(-1) if "flat" in first.name else made]

    def release(self):
        """Forget the network."""
