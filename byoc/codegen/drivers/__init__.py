"""Drivers: C libraries that run compiled regions without Python (`include/byoc_driver.h`)."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.codegen.drivers._driver_library import (
        DeviceTensor,
        DriverBuffer,
        DriverCounters,
        DriverError,
        DriverEvent,
        DriverLibrary,
        DriverVersions,
        OpenedRegion,
        build_driver,
        get_include_folder,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
