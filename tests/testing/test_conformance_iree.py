"""The conformance tests of `iree`."""

import pytest
from helpers.support import VANILLA

from byoc.testing import Claims, CodegenConformance

pytestmark = pytest.mark.iree
pytest.importorskip("iree.compiler")


class TestIREE(CodegenConformance):
    codegen = "iree"
    rules = str(VANILLA)
    claims = Claims(dynamic_batch=True)
    zoo = ()  # tests/codegens compiles networks
    most_cases = 1
