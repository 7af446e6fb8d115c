"""Reports on memory plans: a table, a document for programs, pictures."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.memory.report._memory_picture import draw_plan, render_svg
    from byoc.memory.report._memory_report import (
        STRIPED,
        STRIPED_COUNTS,
        MemoryOptions,
        MemoryReport,
        ReportRow,
        build_memory_document,
        describe_conventions,
        draw_striped,
        plan_report,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
