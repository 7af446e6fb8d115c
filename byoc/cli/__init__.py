"""The command line of byoc."""

from __future__ import annotations

from byoc.cli._main import main
