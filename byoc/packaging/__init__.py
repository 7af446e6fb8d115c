"""Several models as one: packages for several devices, and models placed together on the same ones."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.packaging._package import package
    from byoc.packaging._together import PlacedTogether, partition_together
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
