"""Remedies for the reasons why nodes stay on the host, in one sentence each."""

import re
from collections.abc import Collection

_REMEDIES = (
    (r".*\((?P<sizes>--(?:dim|shape) [^()]*)\).*", "give {sizes}"),
    (r".*\((?P<what>state it [^()]*)\).*", "{what}"),
    (
        r".*\b(is not quantized|is no whole QDQ group)\b.*",
        "where the model is not quantized, `--data FOLDER` or `--calibration FILE` quantizes it",
    ),
    (
        r"(?P<operator>\S+) is not among the operators of (?P<target>\S+)",
        "if {target} runs {operator}, add `op: {operator}` to the `ops` of its rule file",
    ),
    (
        r".*(computes whole numbers exactly up to|instead of wrapping).*",
        "`--values assumed` offloads it on the condition that values stay inside",
    ),
    (
        r"supported, but the host is cheaper.*",
        "it would pay with more of its neighbours there, a faster link or a faster accelerator; "
        "`--strategy all-supported` offloads it all the same",
    ),
    (
        r".*is taken only inside a composite.*",
        "a pattern under `composites` in the rule file that matches here would take it",
    ),
    (
        r".*\b(shape|rank|size|extent|dimension)s?\b.*\b(not |un)known\b.*",
        "give the sizes of the model's inputs: `--dim NAME=SIZE` or `--shape INPUT=EXTENTS`",
    ),
    (
        r"(?P<operator>[\w.]+): .*",
        "if the accelerator can, widen its rule for {operator}: `byoc explain MODEL --op {operator}` "
        "names the constraint",
    ),
)
"""Patterns of reasons, and what to do; the first that fits counts."""


def describe_remedy(reason: str, targets: Collection[str]) -> str:
    """Return the remedy for a `reason` to stay on the host, empty where none is known.

    `targets` are the names of the accelerators. With several, a reason has a part for each.
    """
    for pattern, remedy in _REMEDIES if len(targets) == 1 else ():
        if found := re.fullmatch(pattern, reason, re.DOTALL):
            return remedy.format_map(found.groupdict())
    return ""
