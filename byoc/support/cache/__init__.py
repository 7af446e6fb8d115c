"""A folder of results that took long to make: bounded, found by key, and the user's alone.

It knows nothing of models or codegens: a result is JSON and some bytes under the SHA-256 of all that it
depends on.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.support.cache._cache_folder import (
        Cache,
        CacheEntry,
        find_cache_folder,
        open_cache,
        open_user_cache,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
