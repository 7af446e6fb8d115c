"""Messages for the user."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Note:
    """A message for the user. As a text, a warning begins with `warning: `, and a note is itself."""

    severity: Literal["note", "warning"]
    text: str

    def __str__(self) -> str:
        """Return the message as reports have it in JSON."""
        return self.text if self.severity == "note" else f"warning: {self.text}"

    @classmethod
    def parse(cls, message: "str | Note") -> "Note":
        """Return the note that a text is made from; the inverse of `str`."""
        text = str(message)
        warning = text.removeprefix("warning: ")
        return cls("note" if warning == text else "warning", warning)
