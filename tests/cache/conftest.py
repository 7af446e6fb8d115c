"""An empty cache, and an installed codegen."""

from pathlib import Path

import pytest
from helpers.noting_vendor import vendor  # noqa: F401 - a fixture

from byoc.support.cache import Cache, open_cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return an empty cache."""
    return open_cache(tmp_path / "cache")
