"""Reports on memory plans: a table, a document for programs, pictures."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.memory.report._memory_document import build_memory_document, describe_conventions
    from byoc.memory.report._memory_picture import draw_plan
    from byoc.memory.report._memory_report import (
        STRIPED,
        STRIPED_COUNTS,
        MemoryOptions,
        MemoryReport,
        ReportRow,
        plan_report,
    )
    from byoc.memory.report._striped_report import draw_striped
    from byoc.memory.report._svg import render_svg
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
