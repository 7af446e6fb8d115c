"""Drivers that tests make up."""

from pathlib import Path

DOUBLING = Path(__file__).with_name("doubling_driver.c")
"""The sources of a driver that gives out twice what it is given."""
