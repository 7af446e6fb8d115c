"""Print the lengths of the text files of Python's standard library, in tokens, for `byoc buckets`.

A token is up to eight letters or digits, or another character, as a plain tokenizer cuts text:
`python benchmarks/text_lengths.py > lengths.txt`.
"""

import re
import sysconfig
from collections import Counter
from pathlib import Path

_TOKEN = re.compile(r"\w{1,8}|[^\w\s]")
_LONGEST = 4096


def count_lengths() -> Counter[int]:
    """Return how often each length of a text occurs, up to 4,096 tokens."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    texts = (path for kind in ("*.py", "*.txt") for path in folder.rglob(kind))
    own = (path for path in texts if "site-packages" not in path.parts)
    lengths = (len(_TOKEN.findall(path.read_text(encoding="utf-8", errors="replace"))) for path in own)
    return Counter(length for length in lengths if 1 <= length <= _LONGEST)


if __name__ == "__main__":
    for length, count in sorted(count_lengths().items()):
        print(length, count)
