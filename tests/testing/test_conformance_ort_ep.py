"""The conformance tests of `ort_ep` with a provider that tests build, which takes two operators."""

from pathlib import Path
from typing import ClassVar

from helpers.plugin_providers import build_small_provider

from byoc.testing import Claims, CodegenConformance


class TestSmallProvider(CodegenConformance):
    codegen = "ort_ep"
    rules = str(Path(__file__).with_name("small_provider.yaml"))
    options: ClassVar = {"library": str(build_small_provider())}
    claims = Claims(dynamic_batch=True)
    zoo = ()
    skips: ClassVar = {"test_stamp": "it writes no contexts, and a region without one fits everywhere"}
