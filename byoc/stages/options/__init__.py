"""The choices of a user, each declared once: for Python, the command line and the manifest alike.

The keyword arguments of `byoc.partition` and `byoc.fastest`, the flags of `byoc partition`,
`byoc compare` and `byoc tasks`, and what the manifest records as `asked` are all derived from the
fields here.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.stages.options._partition_options import (
        Options,
        PackageOptions,
        RoundOptions,
        record_options,
    )
    from byoc.stages.options._plan_options import (
        DEFAULT_HOST_COSTS,
        DEFAULT_STRATEGY,
        VARIANT_RULES,
        PlanOptions,
        UnitOptions,
        VariantValue,
        list_files,
        list_names,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
