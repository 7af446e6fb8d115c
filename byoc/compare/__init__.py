"""Comparison of strategies: models times links times strategies, in one table."""

from byoc.compare.check import check_study
from byoc.compare.rows import Study
from byoc.compare.run import compare
from byoc.compare.summary import summarize_strategies

__all__ = ["Study", "check_study", "compare", "summarize_strategies"]
