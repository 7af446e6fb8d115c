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
    from byoc.bundle._compiler_loading import (
        find_rule_file_problems,
        load_compilers,
        read_rule_file_options,
    )
    from byoc.bundle._compiling import RegionCompiler, spread_refusal
    from byoc.bundle._consent import Consent, judge_maker, judge_trust, require_consent
    from byoc.bundle._decisions import (
        DECISIONS_FILE,
        DecidedBoundary,
        DecidedGraph,
        DecidedNodes,
        DecidedOperator,
        DecidedReason,
        DecidedRegion,
        DecidedTensors,
        DecidedType,
        DecidedUnits,
        DecisionDocument,
        write_decisions,
    )
    from byoc.bundle._epcontext import CONTEXT_MODEL_FILE, require_contexts, write_context_model
    from byoc.bundle._genai_files import write_genai_files
    from byoc.bundle._manifest import (
        MANIFEST_FILE,
        HostEntry,
        Manifest,
        RegionEntry,
        VariantEntry,
        describe_file,
        entry_to_contract,
    )
    from byoc.bundle._manifest_reading import FAULT_FILE, PROGRAM_FILE, FolderKind, find_folder_kind
    from byoc.bundle._manifest_schema import manifest_schema
    from byoc.bundle._original_weights import OriginalFiles, WeightFile, move_weights
    from byoc.bundle._packing import is_packed_name, pack_folder, read_signature, sign_folder
    from byoc.bundle._padding_entry import (
        PaddingEntry,
        RowSplitEntry,
        check_padding,
        check_split,
        describe_padding,
        describe_split,
    )
    from byoc.bundle._reading import Bundle, inspect, is_bundle, judge_path, open_bundle, open_own_files
    from byoc.bundle._region_description import MODEL_TEXT, hash_region_model
    from byoc.bundle._report import (
        Compute,
        EstimateReport,
        HostReason,
        NodeCounts,
        OpenDimension,
        PrecisionReport,
        PredictedCosts,
        QuantizedWeightReport,
        RefusalReport,
        RegionReport,
        Report,
        ReportedCause,
        ReportedTensor,
        Sharing,
        SizePrediction,
        TradePointReport,
        TrialCandidate,
        ValueCondition,
        ValuePromise,
    )
    from byoc.bundle._rewritten_regions import write_rewritten
    from byoc.bundle._staging import check_destination, stage_bundle, stage_packed_file
    from byoc.bundle._verification_report import (
        AccuracyReport,
        Finite,
        OutputAccuracy,
        ReachReport,
        ReportModel,
        TensorErrorReport,
        TieBreakReport,
        VerificationReport,
    )
    from byoc.bundle._writing import (
        MODEL_FILE,
        build_manifest,
        compile_bundle,
        describe_variant,
        write_bundle,
        write_manifest,
        write_models,
        write_regions,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
