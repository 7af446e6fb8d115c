"""Drivers: C libraries that run compiled regions without Python (`include/byoc_driver.h`)."""

from byoc.drivers._build_driver import build_driver, get_include_folder
from byoc.drivers._driver_library import DriverError, DriverLibrary, OpenedRegion
