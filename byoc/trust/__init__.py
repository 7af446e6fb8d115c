"""The user's trust: the key of this machine, the keys of others, interpreters of codegens."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.trust._cryptography import SECRET_BYTES, DataCode
    from byoc.trust._machine_key import MachineKey, get_key_file, open_or_create_key, read_key
    from byoc.trust._settings import (
        InterpreterSettings,
        find_interpreter,
        get_settings_file,
        list_codegens,
        read_settings,
    )
    from byoc.trust._signature import (
        MAX_SIGNATURE_BYTES,
        SIGNATURE_FILE,
        SignedKind,
        is_key,
        make_signature,
    )
    from byoc.trust._trusted_keys import (
        add_trusted_key,
        get_trusted_keys_file,
        read_trusted_keys,
        remove_trusted_key,
    )
    from byoc.trust._verdict import Trust, judge_signature, remember_written
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
