"""Strategies side by side: models times links times strategies, in one table."""

from byoc.compare.rows import Study
from byoc.compare.run import compare
from byoc.compare.summary import geometric_means

__all__ = ["Study", "compare", "geometric_means"]
