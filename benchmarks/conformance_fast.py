"""Processor time of the conformance kit's fast set, for 20 operators of a rule file.

python benchmarks/conformance_fast.py c:dla openvino:openvino-cpu
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from byoc.rules import load_rules

OPERATORS = 20
_TEST = """
from byoc.testing import Claims, CodegenConformance

class TestFast(CodegenConformance):
    codegen, rules, operators = {codegen!r}, {rules!r}, {operators!r}
    claims = Claims(deterministic=False)
"""


def measure(codegen: str, rules: str) -> tuple[float, int, str]:
    """Return the processor seconds of all processes, the number of operators, and pytest's last line."""
    named = dict.fromkeys(op for rule in load_rules(rules).rules.ops for op in rule.op)
    operators = list(named)[:OPERATORS]
    with tempfile.TemporaryDirectory() as folder:
        test = Path(folder) / "test_fast.py"
        test.write_text(_TEST.format(codegen=codegen, rules=rules, operators=operators))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
            cwd=folder,
            env={**os.environ, "BYOC_CONFORMANCE": "fast"},
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, len(operators), done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    for pair in sys.argv[1:]:
        codegen, _, rules = pair.partition(":")
        seconds, count, said = measure(codegen, rules)
        print(f"{codegen} with {rules}: {count} operators, {seconds:.1f} s of processor time; {said}")
