"""A region's own ONNX on onnxruntime, whatever the model states of shapes."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from byoc.codegen._interface import Executor
from byoc.codegen._region import Region
from byoc.errors import InputError
from byoc.onnxrt import bind_session, open_session, session_runner


class RegionSession:
    """An executor that runs a region's model on onnxruntime; its tensors may be bound to arrays.

    Stated shapes may be wrong, so the model is opened without them. onnxruntime expands some operators
    only where it knows shapes (LinearAttention, CausalConvWithState); where it cannot load or run the
    model without, it does so with the stated ones.
    """

    def __init__(self, region: Region) -> None:
        """Open the region's model. Raises InputError where that fails, and MissingRuntimeError."""
        self._region = region
        try:
            self._session = open_session(region.open_model, region.path.parent)
        except InputError:
            self._session = open_session(region.model, region.path.parent)
            self._run = self._run_stated
        else:
            self._run = session_runner(self._session)

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by name. Raises InputError where onnxruntime refuses to run."""
        try:
            return self._run(inputs)
        except InputError as error:
            try:
                return self._run_stated(inputs)
            except InputError:
                raise error from None

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Executor | None:
        """Return an executor that reads and writes some tensors where they lie; see `bind_session`."""
        return bind_session(self._session, inputs, outputs)

    @cached_property
    def _run_stated(self) -> Executor:
        return session_runner(open_session(self._region.model, self._region.path.parent))


def open_region_session(region: Region) -> RegionSession:
    """Return an executor that runs a region's model on onnxruntime.

    Raises InputError where onnxruntime cannot load it, and MissingRuntimeError without onnxruntime.
    """
    return RegionSession(region)
