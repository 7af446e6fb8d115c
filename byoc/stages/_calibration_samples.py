"""The user's samples: to verify on, and as they reach regions, for codegens that calibrate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from byoc.bundle import MODEL_FILE
from byoc.model import read_model_file
from byoc.onnxrt import has_runtime
from byoc.samples import MAX_SAMPLES, NO_PREPROCESSING, find_samples
from byoc.support import report_step
from byoc.verification import record_region_inputs

if TYPE_CHECKING:
    from byoc.codegen import Region
    from byoc.samples import Sample
    from byoc.stages._state import Emitting, Prepared


def attach_samples(regions: Sequence[Region], state: Emitting, folder: Path) -> Sequence[Region]:
    """Return regions with what reaches them of the user's samples, in files of a folder.

    Only those of codegens that calibrate have some. Raises InputError when the model does not run.
    """
    wanted = {
        target
        for target, compiler in state.setup.compilers.items()
        if getattr(compiler.codegen, "calibrates", False)
    }
    own = [region for region in regions if region.target in wanted and region.inputs]
    samples = read_user_samples(state) if own and has_runtime() else ()
    if not samples:
        return regions
    report_step("run the samples")
    proto = read_model_file(state.weights.folder / state.request.variant.name_file(MODEL_FILE))
    names = {region.name: [each.name for each in region.inputs] for region in own}
    files: dict[str, Path] = {}
    given = [sample.inputs for sample in samples]
    for name, rows in record_region_inputs(proto, state.weights.folder, names, given):
        files[name] = folder / f"{name}.npz"
        np.savez(files[name], *(array for row in rows for array in row))
    return [replace(region, samples_file=files.get(region.name)) for region in regions]


def read_user_samples(state: Prepared, most: int = MAX_SAMPLES) -> Sequence[Sample]:
    """Return the samples to verify on, or else some of those that ranges were measured on."""
    precision = state.request.options.precision
    if state.loaded.samples or precision.data is None:
        return state.loaded.samples
    images = precision.images or NO_PREPROCESSING
    source = find_samples(precision.data, state.loaded.original, images, most)
    return () if source.random else tuple(islice(source.read_from(0), most))
