"""Padding: inputs smaller than a variant's are filled up, where the graph proves that harmless."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.padding._padded_graph import gather_rows_by_place
    from byoc.padding._padding_rule import (
        EDGE,
        FirstValue,
        PaddedInput,
        PaddingDecision,
        PaddingRule,
        RowSplit,
        cut_outputs,
        find_unpadded_sizes,
        make_padded_shapes,
        pad_inputs,
    )
    from byoc.padding._padding_search import MOST_ROWS, decide_padding, find_row_split
    from byoc.padding._static_caches import (
        CACHE_LENGTH,
        find_growing_dims,
        list_cache_lengths,
        make_static,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
