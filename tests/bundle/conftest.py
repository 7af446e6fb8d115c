"""An installed codegen."""

from helpers.noting_vendor import vendor  # noqa: F401 - a fixture
