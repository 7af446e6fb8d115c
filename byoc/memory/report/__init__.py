"""Reports on memory plans: a table, a document for programs, pictures."""

from byoc.memory.report.document import (
    MemoryDocument,
    describe_conventions,
    build_memory_document,
)
from byoc.memory.report.picture import PictureBox, PictureLine, MemoryPicture, PictureSpan, find_shown_ranges, draw_plan
from byoc.memory.report.report import STRIPED, STRIPED_COUNTS, MemoryOptions, MemoryReport, ReportRow, plan_report
from byoc.memory.report.striped import StripedModel, draw_striped
from byoc.memory.report.svg import render_svg

__all__ = [
    "STRIPED",
    "STRIPED_COUNTS",
    "MemoryOptions",
    "PictureBox",
    "PictureLine",
    "MemoryDocument",
    "MemoryReport",
    "MemoryPicture",
    "ReportRow",
    "PictureSpan",
    "StripedModel",
    "describe_conventions",
    "find_shown_ranges",
    "build_memory_document",
    "plan_report",
    "draw_plan",
    "draw_striped",
    "render_svg",
]
