"""An installed codegen."""

from noting_vendor import vendor  # noqa: F401 - a fixture
