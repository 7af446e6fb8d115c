"""Asks OpenVINO of every one-node model: `python tests/openvino_rules/run.py [RULES] [WORKERS]`.

RULES is a rule file, `openvino-cpu` unless given. Prints how often both agree and every disagreement;
the exit code is 1 when the goal is missed. The test takes one case in three, and none of large weights.
"""

import sys
import time
from collections.abc import Sequence
from math import inf
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from agreement import judge  # noqa: E402 - needs the path
from helpers.one_node_models import attribute_tests, light_nodes, operator_tests  # noqa: E402
from helpers.rule_agreement import goal_missed, table  # noqa: E402
from onnxruntime_nodes import contrib_nodes  # noqa: E402
from oracle import openvino_version  # noqa: E402

from byoc.rules import load_rules  # noqa: E402


def main(arguments: Sequence[str]) -> int:
    """Ask everything, print, and return the exit code."""
    start = time.monotonic()
    name, workers = [*arguments, *("openvino-cpu", "2")[len(arguments) :]][:2]
    target = load_rules(name)
    sys.stdout.write(f"{name} and OpenVINO {openvino_version() or 'that is not installed'}\n")
    sample = [*operator_tests(), *attribute_tests(), *light_nodes(most_bytes=inf), *contrib_nodes()]
    judged = judge(sample, target, int(workers))
    for line in table(judged, "OpenVINO"):
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{time.monotonic() - start:.0f} s\n")
    return int(bool(goal_missed(judged)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
