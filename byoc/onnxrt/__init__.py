"""onnxruntime, which is optional: no other room imports it."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.onnxrt._exact_products import (
        computes_in_integers,
        describe_machine,
        find_inexact_kernels,
        is_exact,
        use_equal_types,
        use_exact_products,
    )
    from byoc.onnxrt._onnxruntime import (
        INSTALL_HINT,
        SessionMode,
        bind_session,
        describe_runtime,
        get_session_settings,
        has_runtime,
        measure_node_seconds,
        open_session,
        output_types,
        profile_nodes,
        run_session,
        session_runner,
        sharing_process,
        with_default_mode,
        with_memory_returned,
        with_session_mode,
        with_session_settings,
        with_threads,
        without_optimizations,
    )
    from byoc.onnxrt._provider import (
        PROPAGATION_SETTING,
        PROVIDER_NAME,
        build_provider,
        get_provider_folder,
        open_provider_session,
        register_provider,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
