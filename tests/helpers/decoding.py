"""Greedy decoding with a decoder of the zoo: a prompt, then tokens one by one, the cache fed back."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[dict[str, NDArray[Any]]], Arrays]

PROMPT = tuple(range(5, 69))
"""A prompt of the length that the zoo's static prefill takes."""


def plain(model: onnx.ModelProto) -> Run:
    """Return a function that runs a model in onnxruntime without optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    given = {value.name for value in session.get_inputs()}
    return lambda inputs: dict(
        zip(names, session.run(names, {n: a for n, a in inputs.items() if n in given}), strict=True)
    )


def decode(
    prefill: Run,
    step: Run,
    cache: Arrays,
    tokens: int,
    *,
    prompt: Sequence[int] = PROMPT,
    buffer: int = 0,
) -> tuple[list[int], list[NDArray[Any]]]:
    """Return the tokens that a decoder chooses after a prompt, and the logits of each choice.

    `prefill` reads the prompt, `step` one token at a time. The cache grows by what was read, or lies in
    a buffer of fixed length. `cache` is the empty one of the prefill: past_key_values.N.key and value.
    """
    ids, past, length = np.array([prompt]), dict(cache), 0
    chosen, logits = [], []
    for turn in range(tokens):
        start, length = length, length + ids.shape[1]
        total = buffer if buffer and turn else length
        inputs = {
            "input_ids": ids,
            "attention_mask": (np.arange(total) < length).astype(np.int64)[None],
            "position_ids": np.arange(start, length)[None],
            **past,
        }
        found = (step if turn else prefill)(inputs)
        past = {name: found[name.replace("past_key_values", "present")] for name in past}
        if buffer and not turn:
            past = {name: _pad(array, buffer) for name, array in past.items()}
        logits.append(found["logits"][0, -1])
        chosen.append(int(logits[-1].argmax()))
        ids = np.array([chosen[-1:]])
    return chosen, logits


def empty_cache(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the cache of a decoder that has read nothing."""
    caches = [value for value in model.graph.input if value.name.startswith("past_key_values")]
    extents = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in caches}
    return {
        each.name: np.zeros(
            (1, extents[each.name][1], 0, extents[each.name][3]),
            onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type),
        )
        for each in caches
    }


def _pad(array: NDArray[Any], length: int) -> NDArray[Any]:
    padding = [(0, 0), (0, 0), (0, length - array.shape[2]), (0, 0)]
    return np.pad(array, padding)
