"""Reading of files that may come from elsewhere: only as many bytes as are allowed."""

from pathlib import Path
from typing import IO

from byoc.errors import InputError

_BLOCK = 1 << 20


def read_limited(file: IO[bytes], limit: int) -> bytes:
    """Read a file in blocks; stop after more than `limit` bytes: the result tells if it is larger.

    Unlike `file.read(limit)` it asks for no more memory than the file has bytes.
    """
    blocks, left = [], limit + 1
    while left > 0 and (block := file.read(min(left, _BLOCK))):
        blocks.append(block)
        left -= len(block)
    return b"".join(blocks)


def is_utf8(text: str) -> bool:
    """Return whether text can be written as UTF-8; the name of a file need not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_text(path: Path, limit: int) -> str:
    """Read a text file in UTF-8 of at most `limit` bytes. Raises InputError with a sentence."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, limit)
        if len(content) <= limit:
            return content.decode("utf-8")
        reason = f"it has more than {limit} bytes"
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        reason = error.strerror or str(error)
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    raise InputError(f"{path}: cannot be read: {reason}")
