"""Regions that compute in float16 or bfloat16: casts at their boundary and inside.

A tensor that one such region makes and another one of the same type reads is never cast in between,
whoever casts. Constants are rounded at compile time instead of cast at run time; the float32 original is
dropped if nothing else reads it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from byoc.boundary.convert._casting_choice import ShortTypeChooser, find_extent_arithmetic
from byoc.boundary.convert._casting_frame import CastFrame, CastValue, make_cast
from byoc.boundary.convert._casting_rewrite import CastRewriter
from byoc.boundary.convert._host_casts import HostCasts, with_dtype
from byoc.boundary.convert._model_editor import ModelEditor, RegionBoundary, RegionCall
from byoc.boundary.convert._short_dtypes import BFLOAT16, FLOAT, FLOAT16, OperatorSchemas
from byoc.errors import InputError
from byoc.model import read_type

_LEAST_OPSET = {FLOAT16: 6, BFLOAT16: 13}
"""The first version of Cast that names its types by number, and the first that has bfloat16."""


def cast_regions(
    edit: ModelEditor, boundaries: Sequence[RegionBoundary], folder: Path | None = None
) -> None:
    """Convert regions to float16 or bfloat16 where their targets want it; the model is edited in place.

    `folder` is the directory of external data. Raises InputError if the model's operator set has no Cast
    to the type, or the data of a constant is missing.
    """
    wants = {b.region: b for b in boundaries if b.format.compute is not None and b.region in edit.calls}
    if not wants:
        return
    for dtype in {border.format.compute or "" for border in wants.values()}:
        if edit.opset < _LEAST_OPSET[dtype]:
            raise InputError(
                f"operator set {edit.opset}, which the model uses, has no Cast to {dtype}: "
                f"convert the model to {_LEAST_OPSET[dtype]} or newer"
            )
    outside = HostCasts(edit, folder, {name: b.format.compute or "" for name, b in wants.items()})
    for name, call in edit.calls.items():  # a region before those that read what it makes
        if name in wants:
            _ShortRegion(outside, call, wants[name]).cast()
    outside.finish()


@dataclass(eq=False)
class _ShortRegion:
    """A region that is to compute in the short type."""

    host: HostCasts
    call: RegionCall
    boundary: RegionBoundary

    def __post_init__(self) -> None:
        """Choose the nodes that compute in the short type."""
        call, edit = self.call, self.host.edit
        self.dtype = self.boundary.format.compute or ""
        self.frame = CastFrame(self._new_name, renames=True)
        imports = call.function.opset_import
        opsets = {"" if e.domain == "ai.onnx" else e.domain: e.version for e in imports}
        functions = {(f.domain, f.name): f for f in edit.model.functions}
        self.chooser = ShortTypeChooser(OperatorSchemas(opsets), functions, self.dtype)
        self.nodes = call.inside.nodes
        names = [*call.function.input, *(name for node in self.nodes for name in node.output)]
        kinds = {
            name: read_type(self.boundary.types[name]) for name in names if name in self.boundary.types
        }
        types = {name: kind for name, kind in kinds.items() if kind is not None}
        self.known = self.chooser.infer_dtypes(
            self.nodes, {name: kind.dtype for name, kind in types.items()}
        )
        keys = {name: self.host.tensor_key(call.scope, name) for name in call.function.input}
        self.constants = {name for name, key in keys.items() if key in self.host.stored}
        small = {name for name, kind in types.items() if kind.shape is not None and len(kind.shape) <= 1}
        exact = find_extent_arithmetic(self.nodes, self.constants, small)
        outputs = [name for name in call.function.output if self.known.get(name) == FLOAT]
        self.short, self.asked = self.chooser.choose(self.nodes, self.known, outputs, exact)

    def cast(self) -> None:
        """Rewrite the region and the names of its boundary tensors."""
        edit = self.host.edit
        entering = [self._enter_input(name) for name in self.call.function.input]
        for name in self.call.function.input:
            if name in self.asked and name not in self.constants:
                self.frame.read(name, self.dtype)
        rewriter = CastRewriter(self.chooser, lambda name, of, dtype: edit.new_name(name), self.host)
        rewriter.run(self.frame, self.nodes, self.known, self.short)
        leaving = [self._leave_output(name) for name in self.call.function.output]
        self.call.inside.nodes = self.frame.nodes
        for proto in (self.call.node, self.call.function):
            del proto.input[:], proto.output[:]
            proto.input.extend(name for names in entering for name in names)
            proto.output.extend(leaving)

    def _enter_input(self, name: str) -> list[str]:
        """Register an input; the returned list receives its names at the boundary."""
        outside, scope, dtype = self.host, self.call.scope, self.known.get(name)
        if name in self.constants:
            crossing: list[str] = []
            self.frame.values[name] = CastValue(
                self.frame, FLOAT, {}, self._constant_maker(name, crossing)
            )
            return crossing
        if dtype == FLOAT and name in self.asked:
            is_short = (outside.tensor_key(scope, name), self.dtype) in outside.short_names
            if is_short or self.boundary.format.convert == "host":
                new = outside.cast(scope, name, self.dtype, self.boundary.types.get(name))
                self.frame.values[name] = CastValue(self.frame, FLOAT, {self.dtype: new})
                return [new]
        self.frame.values[name] = CastValue(self.frame, dtype, {dtype: name})
        return [name]

    def _constant_maker(self, name: str, crossing: list[str]) -> Callable[[str | None], str]:
        def make(dtype: str | None) -> str:
            short = dtype == self.dtype
            new = self.host.short_constant(self.call.scope, name, self.dtype) if short else name
            crossing.append(new)
            return new

        return make

    def _leave_output(self, name: str) -> str:
        """Return an output's name at the boundary, and add the host's Cast back if the host reads it."""
        outside, scope = self.host, self.call.scope
        value = self.frame.values[name]
        if self.known.get(name) != FLOAT or self.dtype not in value.names:
            return self.frame.read(name, value.dtype)
        key = outside.tensor_key(scope, name)
        elsewhere = outside.is_read_elsewhere(key, self.dtype)
        if self.boundary.format.convert == "device" and elsewhere:
            return self.frame.read(name, FLOAT)
        new = outside.short_names[key, self.dtype] = value.names[self.dtype]
        if elsewhere:
            scope.insert_after(self.call.node, make_cast(new, name, FLOAT))
        return new

    def _new_name(self, name: str, of: str, dtype: str) -> str:
        return self.host.edit.add_tensor(name, with_dtype(self.boundary.types.get(of), dtype), of)
