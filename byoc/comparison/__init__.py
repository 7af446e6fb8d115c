"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""

from byoc.comparison._autotune import fastest
from byoc.comparison._process_pool import compare
from byoc.comparison._strategy_summary import summarize_strategies
from byoc.comparison._study import ROW_KEYS, TOTAL, StrategyRow, Study, check_study
