"""The conformance tests of `reference`, which everything else is compared with, by two rule files."""

from helpers.support import VANILLA

from byoc.testing import Claims, CodegenConformance


class TestReference(CodegenConformance):
    codegen = "reference"
    rules = str(VANILLA)
    claims = Claims(dynamic_batch=True)
    most_cases = 3
