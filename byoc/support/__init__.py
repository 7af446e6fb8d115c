"""Helpers that know nothing of models: progress, and fields that the command line sets."""

from byoc.support._declaration import (
    Declaration,
    Flag,
    Syntax,
    declaration_of,
    declare,
    keywords_of,
    take_keywords,
)
from byoc.support._progress import report_step, show_progress

__all__ = [
    "Declaration",
    "Flag",
    "Syntax",
    "declaration_of",
    "declare",
    "keywords_of",
    "report_step",
    "show_progress",
    "take_keywords",
]
