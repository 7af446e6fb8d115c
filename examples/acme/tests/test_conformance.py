"""The conformance tests that byoc provides for every codegen."""

from byoc.testing import Claims, CodegenConformance


class TestAcme(CodegenConformance):
    codegen = "acme"
    rules = "acme"
    claims = Claims(dynamic_batch=True)
