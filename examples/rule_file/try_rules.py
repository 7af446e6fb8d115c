"""An accelerator by a rule file alone: check it, see what is refused, cut a model, change the costs.

python examples/rule_file/try_rules.py FOLDER
"""

import sys
from pathlib import Path

import byoc

HERE = Path(__file__).parent
MODEL = "zoo:squeezenet"


def main() -> None:
    """Check, explain, partition, and partition again with a faster link."""
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/rule_file/try_rules.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rules = HERE / "npu.yaml"

    (check,) = byoc.check_rules(rules)
    print(f"rules: {check.operators} operators, problems: {check.problems}")

    refused = byoc.explain(MODEL, rules=rules)
    share = refused.refused_operations / refused.operations
    print(f"refused: {len(refused.refusals)} nodes, {share:.1%} of the compute")

    result = byoc.partition(MODEL, rules, output=folder / "squeezenet.byoc")
    nodes, predicted = result.report.nodes, result.report.predicted
    print(f"on npu: {nodes.offloaded} of {nodes.total} nodes, {len(result.report.regions)} regions")
    print(f"predicted: {predicted.seconds * 1e3:.2f} ms, host alone {predicted.host_only * 1e3:.2f} ms")
    print(f"verified: {result.verification is not None and result.verification.passed}")

    costs = (HERE / "npu-costs.yaml").read_text(encoding="utf-8")
    faster = folder / "faster.yaml"
    faster.write_text(costs.replace("bandwidth: 4.0e+9", "bandwidth: 8.0e+9"), encoding="utf-8")
    report = byoc.partition(MODEL, rules, cost_model=faster).report
    print(f"with a link twice as fast: {report.predicted.seconds * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
