"""Cuts models of the zoo in three ways and prints a table: `python tests/zoo_suite/run.py [NAME ...]`.

Without names, every model but those of over 20,000 nodes; what is not there is fetched. The exit code is
1 when a bundle does not do what its model does.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from zoo_ways import rows  # noqa: E402 - needs the path

from byoc import zoo  # noqa: E402
from byoc.errors import ByocError  # noqa: E402

_MAX_NODES = 20_000


def main(names: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    failed = 0
    chosen = names or [e.name for e in zoo.list_entries() if (e.nodes or 0) <= _MAX_NODES]
    sys.stdout.write(
        f"{'model':<22}{'placement':<15}{'nodes':>7}{'regions':>9}{'error':>10}{'seconds':>9}\n"
    )
    for name in chosen:
        try:
            for row in rows(name):
                sys.stdout.write(
                    f"{row.model:<22}{row.way:<15}{row.nodes:>7}{row.regions:>9}"
                    f"{row.error:>10.1e}{row.seconds:>9.1f}\n"
                )
                sys.stdout.flush()
        except ByocError as error:
            failed += 1
            sys.stdout.write(f"{name:<22}FAILED {error}\n")
    sys.stdout.write(f"{len(chosen) - failed} of {len(chosen)} models\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
