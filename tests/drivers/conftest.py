"""The drivers of these tests, built once: the dla's, and those of codegens that tests make up."""

from pathlib import Path

import pytest
from drivers_of_tests import CHOSEN, DOUBLING, INTERFACE_1

from byoc.codegen import DriverSources, find_codegen
from byoc.codegen.drivers import build_driver


@pytest.fixture(scope="session")
def dla_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of the dla's driver."""
    return build_driver(find_codegen("dla").driver(), tmp_path_factory.mktemp("driver") / "dla.so")


@pytest.fixture(scope="session")
def doubling_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a driver that gives out twice what it is given, built before version 2."""
    sources = DriverSources("doubling", (DOUBLING,))
    library = tmp_path_factory.mktemp("driver") / "doubling.so"
    return build_driver(sources, library, flags=(f"-I{INTERFACE_1}", "-DONLY_VERSION_1"))


@pytest.fixture(scope="session")
def chosen_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a driver of version 2 that may lack functions."""
    sources = DriverSources("chosen", (CHOSEN,))
    return build_driver(sources, tmp_path_factory.mktemp("driver") / "chosen.so")
