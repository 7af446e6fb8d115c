"""Fixtures for plans: a folder to write rules and cost models into."""

from pathlib import Path

import pytest
from accelerators import Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Writes rule files and cost models into the test's folder."""
    return Files(tmp_path)
