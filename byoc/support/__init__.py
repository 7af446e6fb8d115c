"""Helpers that know nothing of models: progress, and fields that the command line sets."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.support._c_compiler import build_shared_library, split_command
    from byoc.support._declaration import (
        DIMS_FLAG,
        SHAPES_FLAG,
        Flag,
        Panel,
        Syntax,
        declaration_of,
        declare,
        declare_field,
        keywords_of,
        take_keywords,
    )
    from byoc.support._distributions import (
        BYOC_DISTRIBUTION,
        read_byoc_version,
        read_name_and_version,
        read_requirements,
    )
    from byoc.support._exit_codes import describe_exit, name_signal
    from byoc.support._garbage import collect_rarely, return_free_memory
    from byoc.support._input import is_utf8, read_limited
    from byoc.support._note import Note
    from byoc.support._option_check import check_minimum, check_type, check_types
    from byoc.support._output import (
        check_output,
        clone_file,
        find_inside,
        require_inside,
        resolve_path,
        write_atomically,
        write_text,
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
        CHECKS,
        CODEGENS,
        COST_MODELS,
        COSTS,
        PASSES,
        STRATEGIES,
        PluginFile,
        UnsuitablePluginError,
        allow_named,
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
    )
    from byoc.support._process_life import end_with_parent
    from byoc.support._progress import format_part, report_each, report_step, show_progress
    from byoc.support._strict_model import StrictModel, dump_json, format_short, validate_content
    from byoc.support._user_folders import find_user_folder
    from byoc.support._vendor_code import LocatedError, describe_failure, locate_error
    from byoc.support._workspace import (
        make_temporary_folder,
        open_workspace,
        remove_leftovers,
        remove_temporary_folder,
        replace_path,
    )
    from byoc.support._yamlfile import dump_yaml, make_file_error, read_mapping, read_yaml
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
