"""The command line of byoc."""

from __future__ import annotations

import sys
from pathlib import Path

from byoc._checkout import refuse_mixture

try:  # `byoc/__init__.py` may be the other project's here, and `byoc.errors` too
    refuse_mixture(Path(__file__).parents[1])
except ImportError as error:
    sys.exit(f"byoc: {error}")

from byoc.cli._main import EXAMPLES as EXAMPLES
from byoc.cli._main import GROUPS as GROUPS
from byoc.cli._main import VERBS as VERBS
from byoc.cli._main import load_verb as load_verb
from byoc.cli._main import main as main
