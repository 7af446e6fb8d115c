"""The codegen interface: the Protocols that a vendor implements, and everything that a codegen needs.

A codegen is a class with a `name` and one method, `compile`, registered under the entry-point group
`byoc.codegens`. Each further ability is a Protocol of this module that the class satisfies. Helpers of
other rooms (errors, dtypes, onnxruntime, memory planning, costs) are here as well, so that a codegen
imports nothing else of byoc. A name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.boundary.contracts import TensorContract as TensorContract
    from byoc.codegen._abilities import ABILITIES as ABILITIES
    from byoc.codegen._abilities import BindableExecutor as BindableExecutor
    from byoc.codegen._abilities import Context as Context
    from byoc.codegen._abilities import ContextSource as ContextSource
    from byoc.codegen._abilities import DeviceState as DeviceState
    from byoc.codegen._abilities import Driven as Driven
    from byoc.codegen._abilities import DriverSources as DriverSources
    from byoc.codegen._abilities import Estimating as Estimating
    from byoc.codegen._abilities import Executable as Executable
    from byoc.codegen._abilities import Keyed as Keyed
    from byoc.codegen._abilities import Measured as Measured
    from byoc.codegen._abilities import Oracle as Oracle
    from byoc.codegen._abilities import Recoverable as Recoverable
    from byoc.codegen._abilities import Stamped as Stamped
    from byoc.codegen._abilities import StatefulExecutor as StatefulExecutor
    from byoc.codegen._abilities import TakesWeights as TakesWeights
    from byoc.codegen._abilities import Together as Together
    from byoc.codegen._abilities import can_estimate as can_estimate
    from byoc.codegen._abilities import has_driver as has_driver
    from byoc.codegen._abilities import has_model_driver as has_model_driver
    from byoc.codegen._abilities import list_recovery_options as list_recovery_options
    from byoc.codegen._calling import ask_cache_key as ask_cache_key
    from byoc.codegen._calling import ask_compatible as ask_compatible
    from byoc.codegen._calling import ask_driver as ask_driver
    from byoc.codegen._calling import ask_verdicts as ask_verdicts
    from byoc.codegen._calling import compile_region as compile_region
    from byoc.codegen._calling import compile_together as compile_together
    from byoc.codegen._calling import estimate_region as estimate_region
    from byoc.codegen._calling import exchange_weights as exchange_weights
    from byoc.codegen._calling import load_region as load_region
    from byoc.codegen._calling import measure_seconds as measure_seconds
    from byoc.codegen._calling import read_context as read_context
    from byoc.codegen._calling import run_executor as run_executor
    from byoc.codegen._calling import wait_for_codegen as wait_for_codegen
    from byoc.codegen._codegens import Codegens as Codegens
    from byoc.codegen._codegens import choose_worker_isolation as choose_worker_isolation
    from byoc.codegen._codegens import describe_codegens as describe_codegens
    from byoc.codegen._codegens import drop_executing_options as drop_executing_options
    from byoc.codegen._codegens import find_codegen as find_codegen
    from byoc.codegen._codegens import find_wrong_options as find_wrong_options
    from byoc.codegen._codegens import has_options as has_options
    from byoc.codegen._codegens import parse_codegen_options as parse_codegen_options
    from byoc.codegen._compile_process import CompileProcess as CompileProcess
    from byoc.codegen._compiler_answers import ArtifactCache as ArtifactCache
    from byoc.codegen._compiler_answers import ArtifactStore as ArtifactStore
    from byoc.codegen._compiler_answers import CompilerAnswers as CompilerAnswers
    from byoc.codegen._compiler_identity import CodegenDescription as CodegenDescription
    from byoc.codegen._emx_definitions import Emitters as Emitters
    from byoc.codegen._emx_definitions import SingleNode as SingleNode
    from byoc.codegen._emx_definitions import check_each_node as check_each_node
    from byoc.codegen._emx_definitions import define_emx_nodes as define_emx_nodes
    from byoc.codegen._emx_definitions import find_refused_nodes as find_refused_nodes
    from byoc.codegen._emx_definitions import mend_emx_source as mend_emx_source
    from byoc.codegen._emx_definitions import node_names as node_names
    from byoc.codegen._emx_definitions import split_into_nodes as split_into_nodes
    from byoc.codegen._identical_regions import find_alike as find_alike
    from byoc.codegen._identical_regions import find_identical as find_identical
    from byoc.codegen._identical_regions import region_structure as region_structure
    from byoc.codegen._importer_forms import write_wanted_forms as write_wanted_forms
    from byoc.codegen._interface import API_VERSION as API_VERSION
    from byoc.codegen._interface import NOTE as NOTE
    from byoc.codegen._interface import AnyArray as AnyArray
    from byoc.codegen._interface import Artifact as Artifact
    from byoc.codegen._interface import ArtifactError as ArtifactError
    from byoc.codegen._interface import Codegen as Codegen
    from byoc.codegen._interface import CodegenFailedError as CodegenFailedError
    from byoc.codegen._interface import CompileError as CompileError
    from byoc.codegen._interface import Cycles as Cycles
    from byoc.codegen._interface import Executor as Executor
    from byoc.codegen._interface import NotHereError as NotHereError
    from byoc.codegen._interface import Refusal as Refusal
    from byoc.codegen._interface import RefusedError as RefusedError
    from byoc.codegen._interface import ResourceError as ResourceError
    from byoc.codegen._interface import resolve_node_names as resolve_node_names
    from byoc.codegen._interface import to_seconds as to_seconds
    from byoc.codegen._isolated_abilities import MAX_PATH as MAX_PATH
    from byoc.codegen._isolated_abilities import describe_path_problem as describe_path_problem
    from byoc.codegen._isolated_abilities import escape_line as escape_line
    from byoc.codegen._isolated_abilities import examine_executor as examine_executor
    from byoc.codegen._isolated_abilities import find_same_paths as find_same_paths
    from byoc.codegen._isolated_abilities import is_plain_name as is_plain_name
    from byoc.codegen._isolated_abilities import measure_executor as measure_executor
    from byoc.codegen._isolated_abilities import parse_strict_json as parse_strict_json
    from byoc.codegen._isolated_abilities import quote_name as quote_name
    from byoc.codegen._isolation import Examine as Examine
    from byoc.codegen._isolation import Measure as Measure
    from byoc.codegen._operations import Operation as Operation
    from byoc.codegen._operations import Quantization as Quantization
    from byoc.codegen._region import Region as Region
    from byoc.codegen._region import find_disagreement as find_disagreement
    from byoc.codegen._region import open_region_session as open_region_session
    from byoc.codegen._region import read_region as read_region
    from byoc.codegen._region_model import Arena as Arena
    from byoc.codegen._region_model import ArenaSlot as ArenaSlot
    from byoc.codegen._worker import UNLESS_TRUSTED as UNLESS_TRUSTED
    from byoc.codegen._worker import Isolation as Isolation
    from byoc.codegen._worker import choose_isolation as choose_isolation
    from byoc.codegen._worker import limit_trial as limit_trial
    from byoc.costs import Roofline as Roofline
    from byoc.costs import load_cost_model as load_cost_model
    from byoc.errors import ON_OWN_CPU as ON_OWN_CPU
    from byoc.errors import YES as YES
    from byoc.errors import ByocError as ByocError
    from byoc.errors import InputError as InputError
    from byoc.errors import MissingRuntimeError as MissingRuntimeError
    from byoc.errors import Verdict as Verdict
    from byoc.errors import describe_error as describe_error
    from byoc.errors import refuse as refuse
    from byoc.errors import shorten_text as shorten_text
    from byoc.memory import arena as arena
    from byoc.memory import scratchpad as scratchpad
    from byoc.memory import stripes as stripes
    from byoc.model import MAX_IR as MAX_IR
    from byoc.model import ExternalData as ExternalData
    from byoc.model import TensorType as TensorType
    from byoc.model import count_bits as count_bits
    from byoc.model import is_qdq_node as is_qdq_node
    from byoc.model import list_node_captures as list_node_captures
    from byoc.model import list_reads as list_reads
    from byoc.model import read_type as read_type
    from byoc.model import to_numpy_dtype as to_numpy_dtype
    from byoc.model import walk_graphs as walk_graphs
    from byoc.model import write_type as write_type
    from byoc.onnxrt import has_runtime as has_runtime
    from byoc.onnxrt import open_session as open_session
    from byoc.onnxrt import run_session as run_session
    from byoc.onnxrt import session_runner as session_runner
    from byoc.support import SIZE_UNITS as SIZE_UNITS
    from byoc.support import Bytes as Bytes
    from byoc.support import NoOptions as NoOptions
    from byoc.support import Option as Option
    from byoc.support import OptionDescription as OptionDescription
    from byoc.support import StrictModel as StrictModel
    from byoc.support import find_executing_options as find_executing_options
    from byoc.support import find_option_problems as find_option_problems
    from byoc.support import format_options as format_options
    from byoc.support import list_options as list_options
    from byoc.support import parse_size as parse_size
    from byoc.support import read_options as read_options
    from byoc.support import read_stored_options as read_stored_options
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
