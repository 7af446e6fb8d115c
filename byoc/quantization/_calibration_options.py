"""The choices of a calibration, for `byoc.calibrate` and the flags of `byoc calibrate` alike."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from byoc.model import DimensionOptions
from byoc.quantization._calibrators import CALIBRATORS
from byoc.samples import NO_PREPROCESSING, Inputs, Preprocessing
from byoc.support import Flag, Syntax, declare, declare_field

DEFAULT_METHOD = "minmax"


@dataclass(frozen=True)
class CalibrationOptions(DimensionOptions):
    """All choices of a calibration."""

    data: str | Path | Iterable[Inputs] = field(
        metadata=declare(
            "a folder of samples (arrays or images), the word `random`, or samples: arrays by the names "
            "of the inputs.",
            Flag(
                "A folder of .npy, .npz or image files; or random, for random samples.",
                metavar="FOLDER|random",
            ),
        )
    )
    output: str | Path | None = declare_field(
        None,
        "path of the `calibration.yaml` to write. The progress is kept beside it in a file with "
        "`.partial` added; after an interruption the same call continues from there, unless the "
        "samples are in memory.",
        Flag("Write the ranges here.", Syntax.PATH, ("--output", "-o"), required=True),
    )
    _: KW_ONLY
    method: str = declare_field(
        DEFAULT_METHOD,
        "`minmax`, `percentile`, `entropy` or `mse`.",
        Flag("How ranges are chosen.", choices=tuple(CALIBRATORS)),
    )
    percentile: float | None = declare_field(
        None,
        "per cent of the values inside the range, for the method `percentile`; 99.99 by default.",
        Flag(
            "For the method percentile: the per cent of values inside the range; 99.99 unless given.",
            Syntax.NUMBER,
        ),
    )
    bits: int | None = declare_field(
        None,
        "bits to quantize to, for the method `mse`; 8 by default.",
        Flag("For the method mse: the bits to quantize to; 8 unless given.", Syntax.INTEGER),
    )
    symmetric: bool = declare_field(
        False, "each range is symmetric around zero.", Flag("Ranges from -x to x.", Syntax.SWITCH)
    )
    samples: int | None = declare_field(
        None,
        "the greatest number of samples to use; for random data 32 by default.",
        Flag(
            "Use at most so many samples; all of a folder, or 32 random ones, unless given.",
            Syntax.INTEGER,
            minimum=1,
        ),
    )
    tensors: Sequence[str] | None = declare_field(
        None,
        "names of the tensors to calibrate; by default all float32 and float16 tensors of the main "
        "graph that are not constant.",
        Flag("Calibrate this one; all unless given.", Syntax.LIST, ("--tensor",), "NAME"),
    )
    images: Preprocessing = declare_field(
        NO_PREPROCESSING, "normalization of pixels, if the data is images."
    )
    progress: Callable[[str], None] | None = declare_field(
        None, "called with a line of text at each step."
    )
