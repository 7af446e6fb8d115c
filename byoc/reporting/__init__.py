"""Reports: the decision as a document and as text, and explanations of refused nodes."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.reporting._decision_document import make_decision_document, report_placed_nodes
    from byoc.reporting._estimates import format_conditions, format_promises
    from byoc.reporting._explain import Explanation, compute_gains, explain
    from byoc.reporting._explanation_document import make_explanation_document, print_explanation
    from byoc.reporting._memory_plans import describe_convention, plan_memory
    from byoc.reporting._remedies import RemedyFinder
    from byoc.reporting._report_document import (
        collect_plan_notes,
        count_offloaded,
        describe_chosen_sizes,
        make_report,
    )
    from byoc.reporting._report_summary import format_effect, summarize_report
    from byoc.reporting._report_text import (
        BRIEF,
        SCREEN,
        WHOLE,
        OutputQuality,
        ReportSize,
        list_output_qualities,
        list_quality_warnings,
        print_report,
        print_reports,
    )
    from byoc.reporting._requirements import (
        ExplainOptions,
        MemoryPlanOptions,
        Requirements,
        check_requirements,
        list_missed,
        select_required,
    )
    from byoc.reporting._rule_check import RuleCheck, check_rules
    from byoc.reporting._verification_document import (
        JUnitCase,
        JUnitSuite,
        RegionErrorReport,
        make_error_rows,
        make_fault_report,
        make_full_verification_report,
        make_generation_report,
        make_generation_suite,
        make_position_rows,
        make_report_suite,
        make_sequence_rows,
        make_verification_suite,
        write_junit,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
