"""Comparison of strategies: models times links times strategies, in one table."""

from byoc.compare.check import check_study
from byoc.compare.rows import Study
from byoc.compare.run import compare
from byoc.compare.summary import geometric_means

__all__ = ["Study", "check_study", "compare", "geometric_means"]
