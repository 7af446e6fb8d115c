"""Conditions in YAML files, written in Google's Common Expression Language (CEL) over plain facts.

CEL has no loops, no assignments and no access to Python, so a file from an unknown source may hold
conditions. Its `all`, `exists` and the like iterate over lists; the number of steps of one evaluation is
limited, so that no condition takes long. A value that is not known is null or missing in the facts, and
a condition that needs it is unknown rather than true or false. Regular expressions run in linear time.

The language: https://github.com/google/cel-spec/blob/master/doc/langdef.md
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.support.expressions._evaluation import (
        Expression,
        MismatchError,
        NoValueError,
        NumberRange,
        StepLimitError,
        compile_expression,
        compile_regex,
        describe_kind,
        evaluate,
        make_range,
        matches,
    )
    from byoc.support.expressions._parser import (
        Literal,
        Member,
        Name,
        OperatorCall,
        find_paths,
        path_of,
        walk_tree,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
