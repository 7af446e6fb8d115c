"""Helpers that know nothing of models: progress, and fields that the command line sets."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.support._declaration import (
        DIMS_FLAG,
        SHAPES_FLAG,
        Flag,
        Panel,
        Syntax,
        check_minimum,
        check_type,
        check_types,
        declaration_of,
        declare,
        declare_field,
        keywords_of,
        take_keywords,
    )
    from byoc.support._plugin_options import (
        SIZE_UNITS,
        Bytes,
        NoOptions,
        Option,
        OptionDescription,
        find_executing_options,
        find_option_problems,
        format_options,
        list_options,
        list_plugin_options,
        make_with_options,
        parse_size,
        read_options,
        read_stored_options,
        select_options,
    )
    from byoc.support._plugins import (
        ANNOTATIONS,
        BYOC_DISTRIBUTION,
        CHECKS,
        CODEGENS,
        COST_MODELS,
        COSTS,
        OPERATORS,
        PASSES,
        STRATEGIES,
        LocatedError,
        PluginFile,
        UnsuitablePluginError,
        allow_named,
        describe_failure,
        find_beside,
        find_entry_points,
        find_extended_file,
        find_file,
        find_files,
        find_installed_file,
        get_distribution,
        get_first_sentence,
        is_file,
        is_installed_name,
        list_installed,
        load_function,
        load_plugin,
        locate_error,
        read_byoc_version,
        read_name_and_version,
        read_requirements,
    )
    from byoc.support._process import (
        build_shared_library,
        collect_rarely,
        describe_exit,
        end_with_parent,
        name_signal,
        return_free_memory,
        split_command,
    )
    from byoc.support._progress import (
        Note,
        format_part,
        hide_steps,
        report_each,
        report_step,
        show_progress,
    )
    from byoc.support._workspace import (
        check_output,
        clone_file,
        find_inside,
        find_user_folder,
        is_utf8,
        make_temporary_folder,
        open_workspace,
        read_limited,
        remove_leftovers,
        remove_temporary_folder,
        replace_path,
        require_inside,
        resolve_path,
        write_atomically,
        write_text,
    )
    from byoc.support._yamlfile import (
        StrictModel,
        dump_json,
        dump_yaml,
        find_line,
        format_short,
        make_file_error,
        read_mapping,
        read_yaml,
        validate_content,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
