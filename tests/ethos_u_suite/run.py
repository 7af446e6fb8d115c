"""Asks Vela of every model: `python tests/ethos_u_suite/run.py [RULES] [ACCELERATOR] [STORE]`.

RULES is a rule file, `ethos-u55` unless given, which may name a generation; STORE a file for Vela's
answers, so that they are asked once. With `--held-out SEED COUNT` behind these, that many models are
drawn at random instead, with `--sample COUNT` so many of the suite's. Prints how often both agree and
every disagreement; the exit code is 1 when the goal is missed. The test takes a few of them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from held_out_cases import make_held_out_cases
from vela_agreement import find_missed_goal, judge, write_table
from vela_cases import make_cases

from byoc.rules import load_rules


def main(arguments: Sequence[str]) -> int:
    """Ask everything, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", nargs="?", default="ethos-u55")
    parser.add_argument("accelerator", nargs="?", default="ethos-u55-256")
    parser.add_argument("store", nargs="?", type=Path)
    parser.add_argument("--held-out", nargs=2, type=int, metavar=("SEED", "COUNT"))
    parser.add_argument("--sample", type=int, metavar="COUNT")
    given = parser.parse_args(arguments)
    cases = make_held_out_cases(*given.held_out) if given.held_out else make_cases()
    if given.sample is not None:
        cases = Random(0).sample(cases, given.sample)
    judged = judge(cases, load_rules(given.rules), given.accelerator, given.store)
    for line in write_table(judged):
        sys.stdout.write(f"{line}\n")
    missed = find_missed_goal(judged)
    sys.stdout.write(f"{missed or 'the goal is reached'}\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
