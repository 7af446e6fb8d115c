"""Rule files: what an accelerator takes, read from YAML, checked against ONNX, applied to a model."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.rules._annotator import ASKED_RULE, Annotator, annotate_graph
    from byoc.rules._composite_library import LibraryComposite, format_clash, read_library
    from byoc.rules._graph_rules import (
        find_exceeded,
        find_unmatched_names,
        is_kept_whole,
        list_conditions,
    )
    from byoc.rules._impossible_rules import find_impossible_rules
    from byoc.rules._node_view import Attempt, Objection, is_for_want_of_sizes
    from byoc.rules._rule_lint import lint_rule_file
    from byoc.rules._rule_loading import (
        MISSING_OPERATOR,
        Target,
        drop_constraint,
        find_missing_plugins,
        load_rules,
        make_json_schema,
        operators_concerned,
        require_dtype,
        split_generation,
        write_quantized,
    )
    from byoc.rules._rule_schema import OpRule, RuleFile
    from byoc.rules._schema_values import (
        Arithmetic,
        ArithmeticClause,
        ArithmeticContract,
        QuantizedRule,
        QuantizedTensors,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
