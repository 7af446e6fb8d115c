"""Makes samples for random models with open dimensions: `python tests/samples_suite/run.py [COUNT]`.

Prints the models without samples, and the bundles that were not verified on several sizes. The exit code
is 1 when there are more than 2 % of the former, or any of the latter.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path[:0] = [str(Path(__file__).parents[1])]

from open_ways import find_bundle_problem, run_samples  # noqa: E402 - needs the path

from byoc.errors import ByocError  # noqa: E402

_COUNT = 200
_LARGEST_SHARE = 0.02


def main(count: int) -> int:
    """Try the models of so many seeds, and return the exit code."""
    without, wrong = 0, 0
    for seed in range(count):
        try:
            run_samples(seed)
        except ByocError as error:
            without += 1
            sys.stdout.write(f"{seed}: {error}\n")
            continue
        with TemporaryDirectory() as folder:
            try:
                problem = find_bundle_problem(seed, Path(folder))
            except ByocError as error:
                problem = f"refused: {error}"
        if problem:
            wrong += 1
            sys.stdout.write(f"{seed}: {problem}\n")
    sys.stdout.write(
        f"{count - without} of {count} models have samples that run; {wrong} bundles are not verified\n"
    )
    return int(without > _LARGEST_SHARE * count or wrong > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else _COUNT))
