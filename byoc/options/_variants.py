"""The variants of a bundle, as the options name them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from byoc import codegen, model
from byoc.errors import InputError


def list_variants(
    variants: Mapping[str, Mapping[str, int | str]],
    buckets: Mapping[str, Sequence[int]],
    dims: Mapping[str, int | str],
) -> tuple[model.Variant, ...]:
    """Return the variants that are asked for, those of `buckets` last; without any, one without a name.

    `dims` are the dimensions that all variants share. Raises InputError for a name that none can have,
    two that differ in case alone, a dimension that is given for all, too, and buckets of two dimensions.
    """
    found = [model.Variant(name, own) for name, own in variants.items()]
    found += _list_buckets(buckets)
    for each in found:
        if not re.fullmatch(model.VARIANT_NAME, each.name) or not codegen.is_plain_name(each.name):
            raise InputError(
                f"variant '{each.name}': a name is a letter, and then at most 39 letters, digits or "
                "underscores"
            )
        twice = next((name for name in each.dims if name in dims), None)
        if twice is not None:
            raise InputError(f"variant {each}: dimension {twice}={dims[twice]} is given for all")
    same = codegen.find_same_paths(each.name for each in found)
    if same is not None:
        raise InputError(f"variants {same[0]} and {same[1]} cannot be told apart on every system")
    if len({each.name for each in found}) < len(found):
        names = [each.name for each in found]
        raise InputError(f"variant {next(n for n in names if names.count(n) > 1)} is given twice")
    return tuple(found) or (model.ONLY_VARIANT,)


def _list_buckets(buckets: Mapping[str, Sequence[int]]) -> Iterator[model.Variant]:
    """Yield a variant for each size of a dimension, called after both."""
    if len(buckets) > 1:
        raise InputError(f"buckets of {' and '.join(buckets)}: one dimension can have buckets")
    for name, sizes in buckets.items():
        plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        for size in sizes:
            yield model.Variant(f"{plain}_{size}", {name: size})
