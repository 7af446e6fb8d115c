"""Samples: inputs that a model runs with, made from what its inputs are, or read from files."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.samples._arrays import (
        ArrayForm,
        count_turns,
        describe_mismatch,
        fits_types,
        list_halves,
        list_special_values,
        read_map_values,
        read_npy,
        read_npz,
        restore_dtype,
        spread_values,
        write_npz,
    )
    from byoc.samples._image_inputs import NO_PREPROCESSING, Preprocessing
    from byoc.samples._input_sizes import explain_sizes
    from byoc.samples._input_values import (
        DecoderInputs,
        find_decoder_inputs,
        find_domains,
        sample_inputs,
    )
    from byoc.samples._sample_folder import MAX_SAMPLES, find_samples, read_samples
    from byoc.samples._sample_source import (
        Inputs,
        NoSampleError,
        Sample,
        SampleSource,
        hash_values,
        keeping_sessions,
        list_samples,
        model_samples,
        open_plain_session,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
