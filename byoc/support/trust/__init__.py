"""The user's trust: the key of this machine, the keys of others, interpreters of codegens."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.support.trust._signature import (
        MAX_SIGNATURE_BYTES,
        SIGNATURE_FILE,
        InterpreterSettings,
        SignedKind,
        Trust,
        add_trusted_key,
        find_interpreter,
        get_key_file,
        get_settings_file,
        get_trusted_keys_file,
        is_key,
        judge_signature,
        list_codegens,
        make_signature,
        open_or_create_key,
        read_key,
        read_settings,
        read_trusted_keys,
        remember_written,
        remove_trusted_key,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
