"""The structures of `include/byoc_driver.h` for ctypes; the header describes them."""

import ctypes as c

ABI_VERSION = 1
ALIGNMENT = 64
STATUSES = ("ok", "incompatible", "bad artifact", "bad argument", "failed")
"""The meaning of what a driver's functions answer, by number."""
WRONG_SIZE = c.c_size_t(-1).value


class Blob(c.Structure):
    """`byoc_blob`."""

    _fields_ = (("name", c.c_char_p), ("data", c.c_void_p), ("bytes", c.c_size_t))


class Text(c.Structure):
    """`byoc_text`."""

    _fields_ = (("name", c.c_char_p), ("text", c.c_char_p))


class TensorInfo(c.Structure):
    """`byoc_tensor`."""

    _fields_ = (
        ("name", c.c_char_p),
        ("dtype", c.c_int32),
        ("rank", c.c_int32),
        ("shape", c.POINTER(c.c_int64)),
        ("bytes", c.c_size_t),
    )


class RegionInfo(c.Structure):
    """`byoc_region_info`."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("region", c.c_char_p),
        ("blob_count", c.c_size_t),
        ("blobs", c.POINTER(Blob)),
        ("text_count", c.c_size_t),
        ("texts", c.POINTER(Text)),
        ("input_count", c.c_size_t),
        ("inputs", c.POINTER(TensorInfo)),
        ("output_count", c.c_size_t),
        ("outputs", c.POINTER(TensorInfo)),
        ("arena", c.c_void_p),
        ("arena_bytes", c.c_size_t),
    )


_INFO = c.POINTER(RegionInfo)
_POINTERS = c.POINTER(c.c_void_p)


class DriverTable(c.Structure):
    """`byoc_driver`."""

    _fields_ = (
        ("struct_size", c.c_size_t),
        ("abi_version", c.c_uint32),
        ("name", c.c_char_p),
        ("compatible", c.CFUNCTYPE(c.c_int, _INFO, c.POINTER(c.c_char_p))),
        ("arena_size", c.CFUNCTYPE(c.c_size_t, _INFO)),
        ("open", c.CFUNCTYPE(c.c_int, _INFO, c.POINTER(c.c_void_p))),
        ("run", c.CFUNCTYPE(c.c_int, c.c_void_p, _POINTERS, _POINTERS)),
        ("close", c.CFUNCTYPE(None, c.c_void_p)),
        ("error", c.CFUNCTYPE(c.c_char_p, c.c_void_p)),
    )
