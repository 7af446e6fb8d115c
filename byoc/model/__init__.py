"""ONNX models: loading and checking them, an index of their graphs, layouts, outlining of regions."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.model._constants import (
        evaluate_constants,
        find_constant_value,
        fold_constants,
        get_constant_value,
        list_folded_reads,
    )
    from byoc.model._dimensions import (
        ONLY_VARIANT,
        VARIANT_NAME,
        DimensionOptions,
        Dimensions,
        PlannedSizes,
        Variant,
        read_recorded_dimensions,
    )
    from byoc.model._editable_graph import (
        EditableGraph,
        EditableModel,
        build_node,
        drop_named,
        rename_tensors,
        replace_names,
    )
    from byoc.model._graph_index import RANDOM_OPERATORS, GraphBody, GraphIndex
    from byoc.model._graph_parts import (
        COMPOSITE_KEY,
        BoundaryNames,
        Composite,
        CompositeLine,
        extract_call,
        extract_nodes,
        find_boundary,
        make_body_path,
        make_composite_functions,
        name_nodes,
        open_shapes,
        resolve_attributes,
        walk_graph_paths,
    )
    from byoc.model._heavy_weights import (
        HeavyWeights,
        inline_functions,
        read_without_heavy_weights,
        replace_weights,
    )
    from byoc.model._inference._extents import (
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
    from byoc.model._inference._shape_inference import (
        InferenceResult,
        KnownValues,
        clear_output_shapes,
        infer_types,
    )
    from byoc.model._inference._window_shapes import check_nodes
    from byoc.model._layouts import (
        IMAGE,
        WEIGHT,
        LayoutStep,
        TensorLayout,
        can_convert_layout,
        find_images,
        find_weights,
        make_layout_nodes,
        pack_operand,
        parse_layout,
    )
    from byoc.model._model_loading import Model, check_model, prepare_model, read_model_file
    from byoc.model._node_facts import (
        CLAMP_OPERATORS,
        QUANTIZED_FACTS,
        TENSOR_FACTS,
        VIEW_OPERATORS,
        TensorQuantization,
        collect_attribute_facts,
        collect_node_facts,
        collect_tensor_facts,
        filter_plain,
        get_input_quantization,
        get_output_quantization,
        list_plain_elements,
        may_be_float,
        unshare_dequantize,
    )
    from byoc.model._node_kinds import (
        CAST,
        FORM_CHANGE_KEY,
        LAYOUT,
        LAYOUT_KEY,
        PART_KEY,
        PURPOSE_KEY,
        QUANTIZE,
        TARGET_KEY,
        TENSOR_KEY,
        WEIGHT_KEY,
        NodeKind,
        NodeRecords,
        get_metadata,
        get_operator_name,
        get_purpose,
        get_stated_attributes,
        infer_body_input_types,
        is_dequantize,
        is_inserted,
        is_qdq_node,
        is_quantize,
        mark_inserted,
        set_metadata,
    )
    from byoc.model._open_dims import (
        find_type_origin,
        fix_dims,
        list_open_dims,
        name_extents,
        name_open_dims,
        type_certainly,
    )
    from byoc.model._operator_forms import (
        ConversionError,
        NodeCopies,
        convert_ir_version,
        convert_opset,
        has_function_body,
        make_body_model,
    )
    from byoc.model._outline import (
        MAX_IR,
        MIN_IR,
        GraphCuts,
        OutlineGroup,
        RegionCut,
        check_domains_unused,
        freeze_initializers,
        list_default_inputs,
        make_dense,
        make_variable,
        outline,
        set_ir_version,
    )
    from byoc.model._own_bodies import list_own_bodies
    from byoc.model._state_pairs import (
        StatePair,
        choose_state_pairs,
        find_state_pairs,
        match_state_patterns,
    )
    from byoc.model._tensor_data import (
        DTYPE_NUMBERS,
        DTYPES,
        FLOAT_DTYPES,
        Dim,
        ExternalData,
        TensorType,
        clear_shape,
        count_bits,
        count_bytes,
        embed_external_data,
        find_external_data,
        get_stated_types,
        is_large,
        make_native,
        rate_knowledge,
        read_array,
        read_raw_bytes,
        read_tensor_types,
        read_type,
        to_numpy_dtype,
        write_raw_bytes,
        write_type,
    )
    from byoc.model._vendor_operators import (
        count_vendor_bytes,
        count_vendor_operations,
        find_vendor_operator,
        state_function_defaults,
    )
    from byoc.model._walk import (
        NameAllocator,
        copy_without,
        describe_node,
        get_input,
        get_node_name,
        is_onnx,
        list_bodies,
        list_node_captures,
        list_own_names,
        list_reads,
        list_tensor_names,
        make_unique_name,
        set_attribute,
        walk_dims,
        walk_graphs,
        walk_nodes,
        walk_tensors,
        walk_value_infos,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
