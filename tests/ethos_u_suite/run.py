"""Asks Vela of every model: `python tests/ethos_u_suite/run.py [RULES] [ACCELERATOR] [STORE]`.

RULES is a rule file, `ethos-u55` unless given, which may name a generation; STORE a file for Vela's
answers, so that they are asked once. Prints how often both agree and every disagreement;
the exit code is 1 when the goal is missed. The test takes a few of them.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from vela_agreement import find_missed_goal, judge, write_table
from vela_cases import make_cases

from byoc.rules import load_rules


def main(arguments: Sequence[str]) -> int:
    """Ask everything, print, and return the exit code."""
    rules, accelerator, store = [*arguments, *("ethos-u55", "ethos-u55-256", "")[len(arguments) :]][:3]
    judged = judge(make_cases(), load_rules(rules), accelerator, Path(store) if store else None)
    for line in write_table(judged):
        sys.stdout.write(f"{line}\n")
    missed = find_missed_goal(judged)
    sys.stdout.write(f"{missed or 'the goal is reached'}\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
