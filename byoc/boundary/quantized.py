"""Tidying the DequantizeLinear and QuantizeLinear of ours once regions are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from byoc.boundary.bound import Border
    from byoc.boundary.edit import Editing


def tidy(edit: Editing, borders: Sequence[Border]) -> None:
    """Remove our pairs that ended on the host, and move those at borders to where the target wants them."""
