"""Execute a striped plan of an ONNX model: one byte array of the planned size, and nothing else.

The arena is poisoned first, and so is every row when it dies: a row that is read too late or too early
is not a number, and neither is the output.
"""

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np
from arena_kernels import kernel
from arena_windows import Kernel, Look, Row
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from byoc.memory.reading import RowwiseModel, read_row_model
from byoc.memory.stripes import RowBand, RowLayer, StripedPlan, stripe
from byoc.model import GraphIndex, fold_constants, prepare_model

_POISON = np.uint32(0x7FC0DEAD)
"""A quiet NaN; whoever adds it, multiplies it or takes the larger of it gets a NaN."""

Feeds = Mapping[str, NDArray[Any]]


def read_rows(model: ModelProto) -> tuple[GraphIndex, RowwiseModel]:
    """Return the model's index, constants computed, and its row-wise layers."""
    index = prepare_model(fold_constants(model), model.graph.name or "model").index
    return index, read_row_model(index)


def plan_rows(rows: RowwiseModel, alignment: int = 4) -> StripedPlan:
    """Return the striped plan."""
    return stripe(rows.tensors, rows.layers, rows.inputs, rows.outputs, alignment)


def execute(index: GraphIndex, rows: RowwiseModel, plan: StripedPlan, feeds: Feeds) -> dict[str, Row]:
    """Return the outputs of a model of float32 tensors, computed in an arena of `plan.size` bytes."""
    arena = _Arena(index, rows, plan)
    with np.errstate(all="ignore"):  # what reads poison shall go on, and be seen in the output
        for name in rows.inputs:
            arena.put(name, feeds[name])
        for band in plan.bands:
            arena.run(band)
    return {name: arena.take(name) for name in index.outputs}


class _Arena:
    """The bytes, and who wrote which of them last."""

    def __init__(self, index: GraphIndex, rows: RowwiseModel, plan: StripedPlan) -> None:
        self.index, self.rows, self.plan = index, rows, plan
        if plan.size % 4 or any(gcd(p.offset, p.row_bytes, 4) != 4 for p in plan.places.values()):
            raise ValueError("the places of float32 tensors are multiples of 4 bytes")
        self.words = np.full(plan.size // 4, _POISON, dtype=np.uint32).view(np.float32)
        self.owner = np.full(plan.size // 4, -1, dtype=np.int64)
        self.tensors = {each.name: each for each in rows.tensors}
        self.numbers = {name: number << 32 for number, name in enumerate(self.tensors)}
        self.layers = {each.name: each for each in rows.layers}
        self.done = dict.fromkeys(self.layers, 0)
        self.dead = dict.fromkeys(self.tensors, 0)
        self.readers: dict[str, list[RowLayer]] = {name: [] for name in self.tensors}
        for layer in rows.layers:
            for name in dict.fromkeys(name for name, _ in layer.reads):
                self.readers[name].append(layer)
        weights = {name: numpy_helper.to_array(each) for name, each in index.stored_tensors.items()}
        self.scratch: Row = self.words[:0]
        look = Look(index, weights, self.row, lambda: self.scratch)
        self.kernels: dict[str, Kernel] = {
            name: kernel(look, [index.nodes[number] for number in rows.nodes[name]])
            for name in self.layers
        }

    def shape(self, name: str) -> tuple[int, ...]:
        kind = self.index.types[name]
        return tuple(int(dim) for dim in kind.shape or () if isinstance(dim, int))

    def row(self, name: str, row: int) -> Row:
        """The view of a row: `[C][W]` of an image, else all of the tensor."""
        shape = self.shape(name)
        is_image = len(shape) == 4 and shape[0] == 1
        return self.words[self.where(self.rows.storage_of[name], row)].reshape(
            (shape[1], shape[3]) if is_image else shape
        )

    def where(self, tensor: str, row: int) -> slice:
        place = self.plan.places[tensor]
        begin = (place.offset + row % place.window * place.row_bytes) // 4
        return slice(begin, begin + self.tensors[tensor].row_bytes // 4)

    def put(self, name: str, value: NDArray[Any]) -> None:
        for row in range(self.tensors[name].rows):
            self.row(name, row)[...] = value[0, :, row] if value.ndim == 4 else value
            self.owner[self.where(name, row)] = self.numbers[name] + row

    def take(self, name: str) -> Row:
        shape = self.shape(name)
        if len(shape) != 4 or shape[0] != 1:
            return self.row(name, 0).copy()
        return np.stack([self.row(name, row) for row in range(shape[2])], axis=1)[None]

    def run(self, band: RowBand) -> None:
        layer = self.layers[band.layer]
        if layer.scratch:
            at = self.plan.scratch[layer.name] // 4
            there = slice(at, at + layer.scratch // 4)
            self.scratch = self.words[there]
            self.poison(there)
        if layer.mode == "whole":
            self.kernels[layer.name](0)
        else:
            for row in range(band.first_row, band.first_row + band.rows):
                self.kernels[layer.name](row)
        if layer.scratch:
            self.poison(there)
        count = self.tensors[layer.writes[0]].rows
        for name in layer.writes:
            first, rows = (0, 1) if layer.mode == "reduction" else (band.first_row, band.rows)
            for row in range(first, first + rows):
                self.owner[self.where(name, row)] = self.numbers[name] + row
        self.done[layer.name] += count if layer.mode == "whole" else band.rows
        for name, _ in layer.reads:
            self.bury(name)

    def bury(self, name: str) -> None:
        """Poison the rows that nobody reads any more, where nobody else has written."""
        if name in self.rows.outputs:
            return
        height = self.tensors[name].rows
        dead = min(self._needed(layer, name) for layer in self.readers[name])
        for row in range(self.dead[name], min(dead, height)):
            there = self.where(name, row)
            mine = self.owner[there] == self.numbers[name] + row
            self.words.view(np.uint32)[there][mine] = _POISON
        self.dead[name] = max(dead, self.dead[name])

    def poison(self, there: slice) -> None:
        self.words.view(np.uint32)[there] = _POISON
        self.owner[there] = -1

    def _needed(self, layer: RowLayer, name: str) -> int:
        """The first row that a reader still needs."""
        height = self.tensors[name].rows
        count = self.done[layer.name]
        steps = self.tensors[layer.reads[0][0] if layer.mode == "reduction" else layer.writes[0]].rows
        if count >= steps:
            return height
        if layer.mode == "whole":
            return 0
        return min(
            max(count * rows.stride // rows.repeat - rows.before, 0)
            for read, rows in layer.reads
            if read == name
        )


def error(found: Mapping[str, Row], wanted: Mapping[str, Row]) -> float:
    """The largest difference, as a part of the largest value of that output; NaN counts as infinite."""
    worst = 0.0
    for name, right in wanted.items():
        apart = np.abs(found[name].reshape(right.shape).astype(np.float64) - right)
        most = float(np.abs(right).max(initial=0)) or 1.0
        worst = max(worst, float(np.nan_to_num(apart, nan=np.inf).max(initial=0)) / most)
    return worst


def reference(model: ModelProto, feeds: Feeds) -> dict[str, Row]:
    """What onnxruntime makes of the model as it is written."""
    import onnxruntime  # noqa: PLC0415 - optional for those who only plan

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def random_feeds(index: GraphIndex, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs between -1 and 1."""
    chance = np.random.default_rng(seed)
    shapes = {name: index.types[name].shape or () for name in index.inputs}
    return {
        name: chance.uniform(-1, 1, [d for d in shape if isinstance(d, int)]).astype(np.float32)
        for name, shape in shapes.items()
    }
