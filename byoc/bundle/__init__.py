"""The bundle on disk: a folder with the partitioned model, its regions, their artifacts, a manifest.

manifest.json     the arguments, the report, the hash of every file
signature.json    who wrote the manifest: a key, and its signature
model.onnx        the partitioned model: plain ONNX, regions as functions
<region>.onnx     each region as a separate model
decisions.json.gz the decisions, node by node
weights.bin       the large constants of all models, each once, but for those in files that are shared
artifacts/        the output of the codegens, a folder for each region
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.bundle._compiling import RegionCompiler, spread_refusal
    from byoc.bundle._decisions import (
        DecidedBoundary,
        DecidedGraph,
        DecidedNodes,
        DecidedOperator,
        DecidedRange,
        DecidedReason,
        DecidedRegion,
        DecidedTensors,
        DecidedType,
        DecidedUnits,
        DecisionDocument,
        PlacedNode,
        write_decisions,
    )
    from byoc.bundle._epcontext import (
        CONTEXT_MODEL_FILE,
        MODEL_TEXT,
        hash_region_model,
        require_contexts,
        write_context_model,
    )
    from byoc.bundle._manifest import (
        MANIFEST_FILE,
        MODEL_FILE,
        HostEntry,
        Manifest,
        PaddingEntry,
        RegionEntry,
        RowSplitEntry,
        VariantEntry,
        check_padding,
        check_split,
        describe_file,
        describe_padding,
        describe_split,
        entry_to_contract,
    )
    from byoc.bundle._manifest_reading import (
        FAULT_FILE,
        PROGRAM_FILE,
        FolderKind,
        find_folder_kind,
        manifest_schema,
        split_path,
    )
    from byoc.bundle._original_weights import OriginalFiles, WeightFile, move_weights
    from byoc.bundle._ort_package import (
        HOST_PROVIDER,
        ExportedPackage,
        export_genai,
        export_package,
    )
    from byoc.bundle._package import (
        PackageWriter,
        check_devices,
        measure_package,
        pack_bundle,
        reduce_package,
        stage_package,
    )
    from byoc.bundle._packing import (
        Consent,
        is_packed_name,
        judge_consent,
        judge_maker,
        judge_trust,
        pack_folder,
        read_signature,
        require_consent,
        sign_folder,
    )
    from byoc.bundle._reading import (
        Bundle,
        describe_models,
        inspect,
        is_bundle,
        judge_path,
        list_models,
        open_bundle,
        open_own_files,
        read_only_manifest,
    )
    from byoc.bundle._report import (
        AccuracyReport,
        Compute,
        EstimateReport,
        Finite,
        HostReason,
        MemoryUse,
        NodeCounts,
        OpenDimension,
        OutputAccuracy,
        PlacedNodes,
        PrecisionReport,
        PredictedCosts,
        QuantizedWeightReport,
        ReachReport,
        RefusalReport,
        RegionReport,
        Report,
        ReportedCause,
        ReportedTensor,
        ReportModel,
        Sharing,
        SizePrediction,
        TensorErrorReport,
        TieBreakReport,
        TradePointReport,
        TrialCandidate,
        ValueCondition,
        ValuePromise,
        VerificationReport,
    )
    from byoc.bundle._target_compilers import (
        add_earlier_regions,
        find_rule_file_problems,
        load_compilers,
        read_rule_file_options,
        require_earlier_regions,
    )
    from byoc.bundle._writing import (
        build_manifest,
        check_destination,
        compile_bundle,
        describe_variant,
        stage_bundle,
        write_bundle,
        write_genai_files,
        write_manifest,
        write_models,
        write_regions,
        write_rewritten,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
