"""Drivers that tests make up."""

from pathlib import Path

from byoc.codegen import Artifact, DriverSources, NoOptions, Region

DOUBLING = Path(__file__).with_name("doubling_driver.c")
"""The sources of a driver that gives out twice what it is given."""

CHOSEN = Path(__file__).with_name("chosen_driver.c")
"""The sources of a driver of version 2 that lacks a function which a test names."""

INTERFACE_1 = Path(__file__).with_name("interface_1")
"""A folder with `byoc_driver.h` as it was before there was a version 2."""

HOSTILE = Path(__file__).with_name("hostile_driver.c")
"""The sources of a driver of version 2 that tells the lie which a test names."""


class Hostile:
    """A codegen whose driver lies."""

    name = "hostile"
    api = 2
    Options = NoOptions

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        return Artifact({"code.bin": b"fine"})

    def driver(self) -> DriverSources:
        return DriverSources("hostile", (HOSTILE,), abi=2)
