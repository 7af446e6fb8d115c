"""Running a bundle on this machine: `byoc.load(path)` returns a function from inputs to outputs."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.runtime._bound_session import (
        BoundSession,
        DriverExecutor,
        RegionDrivers,
        bind_tensors,
        load_on_executors,
        load_with_drivers,
        load_with_provider,
        use_drivers,
    )
    from byoc.runtime._executors import (
        CheckedExecutor,
        RegionFailedError,
        RegionNotHereError,
        collect_contradictions,
        find_executable,
        load_executor,
        rename_executor,
    )
    from byoc.runtime._fitting import (
        HOST_NAME,
        BundleFit,
        NoneFitsError,
        VariantFit,
        describe_seconds,
        find_fitting,
        list_alternatives,
        list_own_names,
    )
    from byoc.runtime._loading import (
        describe_other_kernels,
        load,
        load_bundle,
        load_executors,
        load_variants,
        read_paddings,
        read_split,
    )
    from byoc.runtime._program_builder import data_inputs
    from byoc.runtime._runtimes import DRIVER_RUNTIME, RUNTIMES
    from byoc.runtime._session import Session
    from byoc.runtime._stage_program import Stage, StageProgram
    from byoc.runtime._stateful_session import StatefulSession, open_stateful
    from byoc.runtime._trace import OPERATOR_CATEGORY, StageProfile, Trace, TraceEvent
    from byoc.runtime._variant_session import FittedInputs, VariantSession
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
