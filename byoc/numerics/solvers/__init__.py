"""Solvers that several rooms share: mixed integer programs (HiGHS), and minimum cuts."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.numerics.solvers._milp_builder import MilpBuilder, MilpSolution
    from byoc.numerics.solvers._minimum_cut import SINK, SOURCE, find_minimum_cut
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
