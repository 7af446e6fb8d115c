"""A region's own ONNX on onnxruntime, whatever the model states of shapes."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from byoc.codegen._interface import Executor, Region
from byoc.errors import InputError
from byoc.onnxrt import open_session, session_runner


def open_region_session(region: Region) -> Executor:
    """Return a function that runs a region's model on onnxruntime.

    Stated shapes may be wrong, so the model is opened without them. onnxruntime expands some operators
    only where it knows shapes (LinearAttention, CausalConvWithState); where it cannot load or run the
    model without, it does so with the stated ones. Raises InputError where neither works, also when run;
    MissingRuntimeError without onnxruntime.
    """

    @cache
    def open_stated() -> Executor:
        return session_runner(open_session(region.model, region.path.parent))

    try:
        run_open = session_runner(open_session(region.open_model, region.path.parent))
    except InputError:
        return open_stated()

    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return run_open(inputs)
        except InputError as error:
            try:
                return dict(open_stated()(inputs))
            except InputError:
                raise error from None

    return run
