"""Schemas of operators, from ONNX and from onnxruntime."""

import subprocess
import sys

import onnx
import pytest
from onnx import helper

from byoc.model.schemas import (
    describe_unknown_operator,
    find_operator,
    find_schemas,
    get_schema,
    list_onnx_operators,
    make_operator_name,
)


def run_python(code: str) -> str:
    """Return what Python prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_operator_of_onnx_has_the_schema_of_the_version() -> None:
    assert get_schema("Gelu", "", 19) is None
    assert get_schema("Gelu", "", 20) is not None
    conv = get_schema("Conv", "ai.onnx", 17)
    assert conv is not None
    assert conv.since_version == 11
    assert [(formal.name, formal.optional) for formal in conv.inputs] == [
        *(("X", False), ("W", False), ("B", True)),
    ]
    assert conv.attributes["group"].kind == "INT"
    default = conv.attributes["group"].default
    assert default is not None
    assert helper.get_attribute_value(default) == 1
    assert conv.attributes["strides"].default is None
    assert conv.get_allowed_dtypes("T") == {"float16", "float32", "float64"}


def test_dtypes_of_formal_parameters() -> None:
    reshape = get_schema("Reshape", "", 17)
    gather = get_schema("Gather", "", 17)
    assert reshape is not None
    assert gather is not None
    assert reshape.inputs[1].type_str == "tensor(int64)"
    assert reshape.inputs[1].dtypes == {"int64"}
    assert reshape.get_allowed_dtypes("tensor(int64)") == frozenset()
    assert gather.get_allowed_dtypes("Tind") == {"int32", "int64"}


def test_every_schema_of_onnx_is_read_in_full() -> None:
    for source in onnx.defs.get_all_schemas():
        schema = get_schema(source.name, source.domain, source.since_version)
        assert schema is not None
        assert schema.onnx_schema is not None
        assert [formal.name for formal in schema.inputs] == [formal.name for formal in source.inputs]
        assert {
            name: None if attribute.default is None else attribute.default.SerializeToString()
            for name, attribute in schema.attributes.items()
        } == {
            name: attribute.default_value.SerializeToString() if attribute.default_value.name else None
            for name, attribute in source.attributes.items()
        }
        assert {name for name, part in schema.attributes.items() if part.required} == {
            name for name, attribute in source.attributes.items() if attribute.required
        }


def test_an_operator_that_only_onnxruntime_registers() -> None:
    pytest.importorskip("onnxruntime")
    attention = get_schema("GroupQueryAttention", "com.microsoft", 1)
    assert attention is not None
    assert attention.onnx_schema is None
    formals = attention.formals
    assert (formals["past_key"].type_str, formals["past_key"].optional) == ("T_CACHE", True)
    assert formals["seqlens_k"].dtypes == {"int32"}
    assert attention.attributes["num_heads"].required
    window = attention.attributes["local_window_size"].default
    assert window is not None
    assert helper.get_attribute_value(window) == -1
    norm = get_schema("SimplifiedLayerNormalization", "", 21)
    assert norm is not None
    assert [formal.name for formal in norm.inputs] == ["X", "scale"]
    assert get_schema("Affine", "", 17) is None  # deprecated since operator set 10
    assert get_schema("NoSuch", "com.microsoft", 1) is None


def test_dtypes_apply_to_what_is_computed_with() -> None:
    pytest.importorskip("onnxruntime")
    gather = get_schema("Gather", "", 17)
    attention = get_schema("GroupQueryAttention", "com.microsoft", 1)
    assert gather is not None
    assert attention is not None
    assert gather.is_computed("T", ["float32"])
    assert not gather.is_computed("Tind", ["float32"])
    assert not gather.is_computed("Tind", ["float32", "int32"])
    assert attention.is_computed("T_CACHE", ["float32"])
    assert not attention.is_computed("M", ["float32", "int32"])
    assert not attention.is_computed("tensor(int64)", ["float32"])


def test_versions_of_an_operator_together() -> None:
    assert [schema.since_version for schema in find_schemas("Relu")] == [1, 6, 13, 14]
    found = find_operator("Split")
    assert found is not None
    assert found.variadic == {"outputs", "outputs..."}  # as version 1 spells it
    assert found.attributes["split"] == {"INTS"}
    assert find_operator("com.acme.Split") is None


def test_names_of_operators() -> None:
    assert make_operator_name("Conv", "ai.onnx") == "Conv"
    assert make_operator_name("Gelu", "com.microsoft") == "com.microsoft.Gelu"
    assert "Conv" in list_onnx_operators()
    assert "com.microsoft.Gelu" not in list_onnx_operators()


def test_unknown_operators() -> None:
    pytest.importorskip("onnxruntime")
    assert describe_unknown_operator("Covn") == "ONNX has no operator 'Covn' (did you mean Conv?)"
    text = describe_unknown_operator("com.microsoft.GroupQueryAttentoin")
    assert text.startswith("onnxruntime ")
    assert text.endswith("(did you mean com.microsoft.GroupQueryAttention?)")
    assert describe_unknown_operator("com.microsoft.GroupQueryAttention") == ""
    assert describe_unknown_operator("SimplifiedLayerNormalization") == ""
    assert describe_unknown_operator("com.acme.Anything") == ""


def test_onnxruntime_is_imported_for_its_own_operators_alone() -> None:
    code = "import sys; from byoc.model.schemas import get_schema; get_schema({!r}, {!r}, 17); "
    told = "print('onnxruntime' in sys.modules)"
    assert run_python(code.format("Conv", "") + told) == "False"
    assert run_python(code.format("dla_0", "byoc.dla") + told) == "False"
    pytest.importorskip("onnxruntime")
    assert run_python(code.format("FastGelu", "com.microsoft") + told) == "True"


def test_without_onnxruntime_its_operators_have_no_schema() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None; "
        "from byoc.model.schemas import describe_unknown_operator, get_schema, has_runtime_schemas; "
        "print(get_schema('FastGelu', 'com.microsoft', 1), has_runtime_schemas(), "
        "repr(describe_unknown_operator('com.microsoft.FastGleu')), "
        "repr(describe_unknown_operator('SimplifiedLayerNormalization')))"
    )
    assert run_python(code) == "None False '' ''"
