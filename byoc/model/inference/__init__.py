"""Types of tensors that follow from the file and the given dimensions; arithmetic on extents."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.model.inference._contrib_rules import CONTRIB_RULES, infer_by_schema, infer_contrib_types
    from byoc.model.inference._extents import (
        add_dims,
        bound_dim,
        ceil_divide_dims,
        evaluate_dim,
        fix_type,
        floor_divide_dims,
        is_dim_at_least,
        list_dim_names,
        max_dims,
        min_dims,
        multiply_dims,
        parse_dim,
        substitute_dim,
        subtract_dims,
    )
    from byoc.model.inference._moved_values import KnownNode, Rule
    from byoc.model.inference._shape_inference import (
        InferenceResult,
        KnownValues,
        clear_negative_dims,
        clear_output_shapes,
        count_inlined_nodes,
        infer_checked_types,
        infer_types,
    )
    from byoc.model.inference._window_shapes import check_nodes
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
