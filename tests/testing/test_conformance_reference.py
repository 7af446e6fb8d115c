"""The conformance tests of `reference`, which everything else is compared with, by two rule files."""

from byoc.testing import Claims, CodegenConformance


class TestReference(CodegenConformance):
    codegen = "reference"
    rules = "dla"
    claims = Claims(dynamic_batch=True)
    most_cases = 3
