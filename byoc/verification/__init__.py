"""Verification: outputs and regions of a bundle compared with the original's; faults narrowed down."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.verification._bisection import Fault, bisect_region
    from byoc.verification._bundle_check import BundleCheck, bisect, verify, verify_against
    from byoc.verification._bundle_comparison import VerificationModels, find_added_errors
    from byoc.verification._bundle_runs import (
        compare_models,
        compare_regions,
        compare_unit,
        record_region_inputs,
    )
    from byoc.verification._bundle_verification import (
        add_padded,
        choose_samples,
        describe_failure,
        rerun_fault,
        verify_independence,
        verify_padding,
        verify_samples,
        verify_split,
        write_fault,
    )
    from byoc.verification._function_check import FunctionTrial, FunctionVerdict, make_function_trial
    from byoc.verification._generation import GenerationCheck, GenerationOptions, verify_generation
    from byoc.verification._generation_result import (
        Generation,
        GenerationRun,
        TokenDifference,
        describe_problem,
        find_worst_by_count,
        require_generated,
    )
    from byoc.verification._noise import NoiseGauge, compare_tensors
    from byoc.verification._part_trials import BundleLayers, compile_and_load
    from byoc.verification._quantization_noise import (
        DEFAULT_THRESHOLDS,
        QUANTIZED_THRESHOLD,
        TOLERANCE,
        Thresholds,
        find_quantized_tensors,
        make_exact_products,
        quantized_tensors_of,
        read_thresholds,
    )
    from byoc.verification._region_cutter import (
        PlainModel,
        make_reference_executor,
        open_original,
        open_plain,
        open_reference,
        run_plain,
    )
    from byoc.verification._region_verification import (
        NotVerifiableError,
        RecordedRuns,
        heed_contract,
        record_reference_runs,
        verify_regions,
    )
    from byoc.verification._unit_noise import Difference, OutputError
    from byoc.verification._verification_result import (
        Accuracy,
        LayerCheck,
        LayerError,
        NotVerified,
        RegionError,
        RewriteComparison,
        Verification,
        require_passed,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
