"""Regions that compute in float16 or bfloat16: their tensors, constants and attributes of a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from byoc.boundary.bound import Border
    from byoc.boundary.edit import Editing


def cast(edit: Editing, borders: Sequence[Border]) -> None:
    """Cast what the regions that compute in float16 or bfloat16 read and write."""
