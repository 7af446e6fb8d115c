"""What OpenVINO and a rule file say of models of one node."""

from collections.abc import Sequence
from dataclasses import replace

from helpers.asking import Answer
from helpers.one_node_models import OneNode
from helpers.rule_agreement import Judged, refusal
from oracle import ask

from byoc.rules import Target

# OpenVINO computes these right on some processors only: the answer on this one does not count.
_SOME_PROCESSORS = {
    "test_attention_4d_causal_padded_kv_bf16": "a query that sees no key is 0 only with AVX-512",
}
# What OpenVINO computes right of a test's values and wrong of others, as test_openvino_values shows.
_SOME_VALUES = {
    "_to_FLOAT16": "nothing is rounded to float16",
    "test_bitshift_": "shifts by the width of the type",
    "test_mod_mixed_sign_float": "remainders of floats",
}


def judge(cases: Sequence[OneNode], target: Target, workers: int = 2) -> list[Judged]:
    """Return what both say of each case; which values may come is what test_openvino_values asks for."""
    target = replace(target, values="assumed")
    answers = ask([case.question for case in cases], workers=workers)
    refusals = [refusal(case, target) for case in cases]
    return [
        Judged(case, _everywhere(case, answer, why), why)
        for case, answer, why in zip(cases, answers, refusals, strict=True)
    ]


def _everywhere(case: OneNode, answer: Answer, why: str) -> Answer:
    """Return the answer that holds on every processor, and of what is refused for all values."""
    reason = _SOME_PROCESSORS.get(case.name)
    if why:
        reason = reason or next((text for part, text in _SOME_VALUES.items() if part in case.name), None)
    return Answer("wrong numbers", reason) if answer and reason else answer
