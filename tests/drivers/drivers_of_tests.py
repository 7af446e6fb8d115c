"""Drivers that tests make up."""

from pathlib import Path

DOUBLING = Path(__file__).with_name("doubling_driver.c")
"""The sources of a driver that gives out twice what it is given."""

CHOSEN = Path(__file__).with_name("chosen_driver.c")
"""The sources of a driver of version 2 that lacks a function which a test names."""

INTERFACE_1 = Path(__file__).with_name("interface_1")
"""A folder with `byoc_driver.h` as it was before there was a version 2."""
