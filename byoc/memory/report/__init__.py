"""Reports on memory plans: a table, a document for programs, pictures."""

from byoc.memory.report.document import (
    MemoryDocument,
    conventions_document,
    memory_document,
)
from byoc.memory.report.picture import Box, Line, Picture, Span, lives, picture
from byoc.memory.report.report import STRIPED, STRIPED_COUNTS, Asked, MemoryReport, Row, memory_report
from byoc.memory.report.striped import Striped, striped_picture
from byoc.memory.report.svg import svg

__all__ = [
    "STRIPED",
    "STRIPED_COUNTS",
    "Asked",
    "Box",
    "Line",
    "MemoryDocument",
    "MemoryReport",
    "Picture",
    "Row",
    "Span",
    "Striped",
    "conventions_document",
    "lives",
    "memory_document",
    "memory_report",
    "picture",
    "striped_picture",
    "svg",
]
