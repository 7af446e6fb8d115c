"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators.

Every name is imported when it is first used: `import byoc` loads neither scipy nor a codegen.
"""

from pathlib import Path as _Path
from typing import TYPE_CHECKING

from byoc._doors import find_beside as _find_beside
from byoc._doors import open_door
from byoc._doors import refuse_mixture as _refuse_mixture

_refuse_mixture(_Path(__file__).parent)
_find_beside(_Path(__file__).parent)

if TYPE_CHECKING:
    from byoc.bundle import Bundle as Bundle
    from byoc.bundle import Report as Report
    from byoc.bundle import export_genai as export_genai
    from byoc.bundle import export_package as export_package
    from byoc.bundle import inspect as inspect
    from byoc.bundle import open_bundle as open_bundle
    from byoc.bundle import reduce_package as reduce_package
    from byoc.codegen.scaffold import new_codegen as new_codegen
    from byoc.comparison import BucketChoice as BucketChoice
    from byoc.comparison import ModelProblem as ModelProblem
    from byoc.comparison import PlacementDiff as PlacementDiff
    from byoc.comparison import Profile as Profile
    from byoc.comparison import Tolerances as Tolerances
    from byoc.comparison import build_problem as build_problem
    from byoc.comparison import choose_buckets as choose_buckets
    from byoc.comparison import compare as compare
    from byoc.comparison import compare_rules as compare_rules
    from byoc.comparison import diff as diff
    from byoc.comparison import fastest as fastest
    from byoc.comparison import list_tasks as list_tasks
    from byoc.comparison import profile as profile
    from byoc.comparison import simplify as simplify
    from byoc.comparison import study as study
    from byoc.errors import ByocError as ByocError
    from byoc.errors import InputError as InputError
    from byoc.errors import MissingRuntimeError as MissingRuntimeError
    from byoc.errors import RequirementError as RequirementError
    from byoc.errors import Verdict as Verdict
    from byoc.memory.report import MemoryReport as MemoryReport
    from byoc.model import Model as Model
    from byoc.pipeline import Options as Options
    from byoc.pipeline import PlacedTogether as PlacedTogether
    from byoc.pipeline import Result as Result
    from byoc.pipeline import package as package
    from byoc.pipeline import partition as partition
    from byoc.pipeline import partition_together as partition_together
    from byoc.planning import Plan as Plan
    from byoc.planning import place as place
    from byoc.planning import save_placement as save_placement
    from byoc.quantization import Budget as Budget
    from byoc.quantization import Precision as Precision
    from byoc.quantization import Ranges as Ranges
    from byoc.quantization import calibrate as calibrate
    from byoc.reporting import Explanation as Explanation
    from byoc.reporting import Requirements as Requirements
    from byoc.reporting import RuleCheck as RuleCheck
    from byoc.reporting import check_rules as check_rules
    from byoc.reporting import explain as explain
    from byoc.reporting import plan_memory as plan_memory
    from byoc.reporting.page import make_explorer_files as make_explorer_files
    from byoc.reporting.page import make_page as make_page
    from byoc.rules import Target as Target
    from byoc.rules import load_rules as load_rules
    from byoc.runtime import BoundSession as BoundSession
    from byoc.runtime import Session as Session
    from byoc.runtime import StatefulSession as StatefulSession
    from byoc.runtime import Trace as Trace
    from byoc.runtime import VariantSession as VariantSession
    from byoc.runtime import bind_tensors as bind_tensors
    from byoc.runtime import find_fitting as find_fitting
    from byoc.runtime import load as load
    from byoc.runtime import open_stateful as open_stateful
    from byoc.samples import Preprocessing as Preprocessing
    from byoc.standalone import ExportedProgram as ExportedProgram
    from byoc.standalone import ProgramVerification as ProgramVerification
    from byoc.standalone import export_c as export_c
    from byoc.standalone import make_driver as make_driver
    from byoc.standalone import verify_program as verify_program
    from byoc.verification import Fault as Fault
    from byoc.verification import Generation as Generation
    from byoc.verification import Thresholds as Thresholds
    from byoc.verification import Verification as Verification
    from byoc.verification import bisect as bisect
    from byoc.verification import verify as verify
    from byoc.verification import verify_against as verify_against
    from byoc.verification import verify_generation as verify_generation
    from byoc.zoo import load_model as load_model
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
