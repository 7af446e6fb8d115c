"""Solvers that several rooms share: mixed integer programs (HiGHS), and minimum cuts."""

from byoc.numerics.solvers._milp_builder import MilpBuilder, MilpSolution
from byoc.numerics.solvers._minimum_cut import SINK, SOURCE, find_minimum_cut
