"""Inputs that byoc makes suit every operator, whatever it is that its scalars, sizes and axes mean."""

import numpy as np
import pytest
from suite import Case, collect

from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.onnxrt import has_runtime
from byoc.samples import model_samples, sample_inputs
from byoc.verification import open_original

pytestmark = pytest.mark.skipif(not has_runtime(), reason="onnxruntime is not installed")

# Its bytes are those of a picture in a file.
UNSUITABLE = ("test_image_decoder_",)


def find_problem(case: Case) -> str | None:
    """Return why a case does not run on made inputs, empty if it does; None if on no inputs at all."""
    try:
        model = prepare_model(case.model, case.name)
        plain = open_original(model.proto, model)
        plain.run(case.data_sets[0][0])
    except InputError:
        return None
    try:
        # Where onnx.reference is the judge, onnxruntime cannot say whether inputs suit.
        plain.run(sample_inputs(model.index) if plain.judge else model_samples(model))
    except InputError as error:
        return f"{case.name}: {error}"
    return ""


def test_every_operator_runs_on_inputs_made_for_it() -> None:
    cases = [
        case
        for case in collect(costly=False)
        if case.kind == "node" and "_expanded" not in case.name and not case.name.startswith(UNSUITABLE)
    ]
    found = [find_problem(case) for case in cases]
    assert sum(problem == "" for problem in found) > 1200
    assert [problem for problem in found if problem] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("test_sequence_insert_at_back", list),
        ("test_optional_has_element_tensor_input", np.ndarray),
        ("test_string_concat", np.ndarray),
    ],
)
def test_inputs_that_are_no_numbers_are_made_as_well(name: str, kind: type) -> None:
    case = next(case for case in collect(costly=False) if case.name == name)
    made = model_samples(prepare_model(case.model, "m"))
    assert isinstance(next(iter(made.values())), kind)
