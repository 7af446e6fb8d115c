"""The command line of byoc."""

from byoc.cli._main import main
