"""For the site, byoc's dataclasses are those of the standard library, which griffe alone knows."""

from typing import Any

import griffe

_OURS, _PLAIN = "byoc._dataclasses.", "dataclasses."


class LateDataclasses(griffe.Extension):
    """Has names of `byoc._dataclasses` lead to those of `dataclasses`, as type checkers see them."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give the class the label that the site shows beside the name of a dataclass."""
        if any(each.callable_path == f"{_OURS}dataclass" for each in cls.decorators):
            cls.labels.add("dataclass")

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Change what the module imports, before the dataclasses of its package are read."""
        for member in mod.members.values():
            if isinstance(member, griffe.Alias) and member.target_path.startswith(_OURS):
                member.target_path = _PLAIN + member.target_path.removeprefix(_OURS)
