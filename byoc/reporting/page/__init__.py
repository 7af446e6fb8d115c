"""The page: a report as one HTML file that opens without a network; and as files for Model Explorer."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.reporting.page._model_explorer import make_explorer_files
    from byoc.reporting.page._overlay import draw_constants
    from byoc.reporting.page._page_file import (
        PageParts,
        make_diff_page,
        make_page,
        make_plan_page,
        read_trace,
        render_page,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
