"""Errors that byoc raises on purpose, the text of others for messages, and verdicts.

Everything that a user can cause is an `InputError`: one clear sentence that names the file or option and
the location in it. Any other exception that escapes is a defect of byoc.
"""

import re
import signal
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from unicodedata import category

from byoc._dataclasses import dataclass, field, replace


class ByocError(Exception):
    """The base of all errors that byoc raises on purpose, with a line for each thing that is wrong.

    The lines are printable whatever names they quote: a line break in a name is shown as `\\n`.
    """

    def __init__(self, *lines: object) -> None:
        """Make the error of its lines."""
        super().__init__(*(escape_unprintable(str(line)) for line in lines))

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the message."""
        return self.args

    def __str__(self) -> str:
        """Return the lines as one text."""
        return "\n".join(self.lines)


class InputError(ByocError):
    """The model, the rule file, a plug-in or an option is wrong; the message says which."""


class PluginFailedError(InputError):
    """A plug-in failed where nothing can be done without it; the message says which."""


class RequirementError(ByocError):
    """A result misses what the caller required of it; each line names a requirement and the value."""


class MissingRuntimeError(ByocError):
    """A step needs a runtime that is not installed; the message says how to get it."""


_TRACEBACK = "Traceback (most recent call last)"
_MAX_CHARACTERS = 500  # of a foreign error in a sentence of ours
# The exit codes of the command line when a signal stops it.
_STOP_CODES = {128 + number for number in (signal.SIGTERM, getattr(signal, "SIGHUP", 1))}


def describe_error(error: BaseException) -> str:
    """Format an exception of other code in one line: its type and its text, cut if it is long."""
    text, kind = get_error_text(error), shorten_text(type(error).__name__, _MAX_CHARACTERS)
    return f"{kind}: {text}" if text else kind


def get_error_text(error: BaseException) -> str:
    """Return the text of an exception of other code in one line, cut if it is long.

    Of a traceback in it that is the last line, which says what went wrong.
    """
    try:
        return shorten_text(find_message(str(error)), _MAX_CHARACTERS)
    except Exception:  # its __str__ can fail, too
        return ""


def find_message(text: str) -> str:
    """Return the last line of a traceback in a text of other code, else the text.

    Tool chains hand on the tracebacks of their parts, often with a prefix before each line
    (`E build: Traceback (most recent call last):`).
    """
    text = str.__str__(text)  # the methods of a subclass are not trusted
    before, mark, after = text.rpartition(_TRACEBACK)
    if not mark:
        return text
    prefix = before.rpartition("\n")[2]
    lines = [line.removeprefix(prefix) for line in after.splitlines()[1:]]
    # Frames are indented; then come the exception and, indented as its author likes, more of its text.
    said = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
    return said[0] if said else " ".join(before.split()) or mark


def shorten_text(text: str, max_characters: int) -> str:
    """Return a text on one line, cut to `most` characters.

    Characters that are not printable (lone surrogates, control characters, those that change the
    direction of text) are escaped: messages go to terminals, models and manifests.
    """
    text = str.__str__(text)  # the methods of a subclass are not trusted
    line = escape_unprintable(" ".join(text[: 2 * max_characters].split()))
    return (
        line
        if len(line) <= max_characters and len(text) <= 2 * max_characters
        else f"{line[: max_characters - 3]}..."
    )


# Joiners are invisible, and needed inside of words of some scripts and of emoji: not beside ASCII.
_JOINERS = re.compile("(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")


def escape_unprintable(text: str) -> str:
    """Make a text of others printable on one line: `\\x1b`, `\\n`, `\\u202e` for what is not.

    That is control characters, line breaks, marks that turn the direction of writing, invisible
    characters, lone surrogates and what Unicode has not assigned. Letters of every script stay, and so
    do spaces and emoji.
    """
    if text.isprintable():
        return text
    joiners = {found.start() for found in _JOINERS.finditer(text)}
    return "".join(
        c if c.isprintable() or at in joiners or category(c) == "Zs" else ascii(c)[1:-1]
        for at, c in enumerate(text)
    )


def must_propagate(error: BaseException) -> bool:
    """Return whether an exception from a plug-in is not its failure: byoc's own error, or a stop."""
    code = error.code if isinstance(error, SystemExit) else None
    stops = isinstance(code, int) and code in _STOP_CODES
    return stops or isinstance(error, (ByocError, KeyboardInterrupt))


def suggest_nearest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean NEAREST?)` if a known name is close to `name`, else an empty text."""
    matches = _find_closest(name, tuple(sorted(known)))
    return f" (did you mean {matches[0]}?)" if matches else ""


@lru_cache
def _find_closest(name: str, known: tuple[str, ...]) -> list[str]:
    same = [other for other in known if other.lower() == name.lower()]
    return same[:1] or get_close_matches(name, known, n=1, cutoff=0.6)


class CauseKind(StrEnum):
    """A cause that keeps a node off a device."""

    OPERATOR = "operator"
    """no rule of the target's file is for its operator"""
    CONSTRAINT = "constraint"
    """it does not meet a constraint of the rule file"""
    SIZE = "size"
    """an extent is open, and flags can give it"""
    TYPE = "type"
    """something is not known, and no flag of the command line gives it"""
    QUANTIZATION = "quantization"
    """the rule is for quantized operators, and it is none"""
    VALUES = "values"
    """whole numbers may leave what the target's arithmetic promises"""
    HOST = "host"
    """the rule file keeps it on the host"""
    COMPOSITE = "composite"
    """it is taken inside a composite only"""
    LIMIT = "limit"
    """a hard limit of the rule file, a key of `limits`"""
    CODEGEN = "codegen"
    """the codegen refused it"""
    COST = "cost"
    """it is supported, and the placement has it on the host"""
    GIVEN = "given"
    """it is supported, and the placement that this plan follows has it on the host"""
    CONVERSION = "conversion"
    """byoc put it there, to bring a tensor into the form that nodes beside it take"""
    OTHER = "other"
    """what only a sentence says"""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a device does not take a node, as data; `str` gives the sentence for people.

    `text` is the sentence, and `names` are the nodes and tensors that it quotes. `constraint` is the key
    in the rule file that refuses, with the file's name before it if inherited; `value` is what the node
    has or needs there, and `allowed` what the target takes. `flags` are those of the command line that
    settle it, `advice` what else does, in words. `target` is the accelerator, where several are asked.
    What is not known is empty.
    """

    kind: CauseKind
    text: str
    operator: str = ""
    constraint: str = ""
    value: str = ""
    allowed: str = ""
    flags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    advice: str = ""
    target: str = ""

    def __str__(self) -> str:
        """Return the sentence."""
        return self.text

    @property
    def general_text(self) -> str:
        """The sentence without the names of nodes and tensors, which differ from node to node."""
        text = self.text
        for name in self.names:
            text = text.replace(f" '{name}'", " '...'")
        return text


@dataclass(frozen=True, slots=True)
class Verdict:
    """Falsy if there are reasons against; these are sentences for the user, the most severe first.

    `own_cpu` is True of what a compiler takes, and leaves to a CPU of the device's own. `causes` are the
    reasons as data; there are none of reasons that are sentences alone, as those of a codegen.
    """

    reasons: tuple[str, ...] = ()
    own_cpu: bool = False
    causes: tuple[Cause, ...] = field(default=(), compare=False)

    def __bool__(self) -> bool:
        """Return whether there is no reason against."""
        return not self.reasons

    def __str__(self) -> str:
        """Return `yes`, or all reasons in one line."""
        return "; ".join(self.reasons) or "yes"


YES = Verdict()
ON_OWN_CPU = Verdict(own_cpu=True)


def refuse(*reasons: str | Cause) -> Verdict:
    """Make a refusal with the given reasons, which are causes where there is more than a sentence."""
    causes = tuple(
        reason if isinstance(reason, Cause) else Cause(CauseKind.OTHER, reason) for reason in reasons
    )
    return Verdict(tuple(map(str, reasons)), causes=causes)


def join_verdicts(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the refusal with the reasons of all, each once; a yes if there are none."""
    found = (list_causes(verdict) for verdict in verdicts)
    return refuse(*{cause.text: cause for causes in found for cause in causes}.values())


def join_targets(verdicts: Sequence[tuple[str, Verdict]]) -> Verdict:
    """Return the refusal of several accelerators, each with its name: a sentence for each."""
    return Verdict(
        tuple(f"{target}: {verdict}" for target, verdict in verdicts),
        causes=tuple(
            replace(cause, target=target)
            for target, verdict in verdicts
            for cause in list_causes(verdict)
        ),
    )


def list_causes(verdict: Verdict) -> tuple[Cause, ...]:
    """Return the reasons of a verdict as data; of those that are sentences alone, `other` causes."""
    return verdict.causes if verdict.causes or verdict else refuse(*verdict.reasons).causes
