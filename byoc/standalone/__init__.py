"""Standalone programs: a model, or a bundle, as C source that needs no library but C's own."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.standalone._export import ExportedProgram
    from byoc.standalone._export_options import ExportOptions
    from byoc.standalone._model_driver import make_driver, write_model_driver
    from byoc.standalone._several_programs import export_c
    from byoc.standalone._verify_program import (
        ProgramVerification,
        list_programs,
        verify_program,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
