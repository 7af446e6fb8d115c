"""The command line of byoc."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from byoc._doors import refuse_mixture

try:  # `byoc/__init__.py` may be the other project's here, and `byoc.errors` too
    refuse_mixture(Path(__file__).parents[1])
except ImportError as error:
    sys.exit(f"byoc: {error}")

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.cli._completion import answer_shell as answer_shell
    from byoc.cli._main import EXAMPLES as EXAMPLES
    from byoc.cli._main import GROUPS as GROUPS
    from byoc.cli._main import VERBS as VERBS
    from byoc.cli._main import load_verb as load_verb
else:
    __getattr__, __dir__, __all__ = open_door(__name__)


def main() -> None:
    """Run the command line and exit with the code that says whose fault it was.

    A shell that starts, or asks how to complete a line, is answered without the parser of the command
    line, whose import takes longer than a press of a key may.
    """
    if "_BYOC_COMPLETE" in os.environ or sys.argv[1:2] == ["completion"]:
        from byoc.cli._completion import serve_shell  # noqa: PLC0415 - see above

        if serve_shell(os.environ.get("_BYOC_COMPLETE"), sys.argv[1:]):
            return
    from byoc.cli._main import run_command_line  # noqa: PLC0415 - see above

    run_command_line()
