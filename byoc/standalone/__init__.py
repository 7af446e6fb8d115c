"""Standalone programs: a model, or a bundle, as C source that needs no library but C's own."""

from byoc.standalone._export import ExportedProgram, ExportOptions, export_c
from byoc.standalone._model_driver import make_driver, write_model_driver
from byoc.standalone._verify_program import ProgramOutput, ProgramVerification, verify_program
