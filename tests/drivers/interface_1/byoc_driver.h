/* byoc_driver.h: the interface between a program that runs a compiled model and the driver of an accelerator.
 *
 * The program holds a bundle: for each region its artifact (files that the codegen made), and the region's
 * inputs and outputs in the order of the bundle's manifest. The driver executes the artifact. A driver is a
 * table of functions, `byoc_driver`. It is linked into the program under the name `byoc_driver_NAME`, or it is
 * a shared library whose only needed symbol is `byoc_get_driver`.
 *
 * Rules for both sides:
 * - C99. No C++, no exceptions, no signals, no long jumps across the interface.
 * - Memory that one side allocates the other never frees. The program owns everything in `byoc_region_info`,
 *   the arena included, and keeps it unchanged until `close`. A driver that needs memory takes it from the
 *   arena; for what lies outside (device buffers, handles of a kernel module) it allocates and frees itself.
 * - One region is not reentrant: the program calls its functions one at a time. Two regions are independent,
 *   also two of the same artifact, and may run on two threads.
 * - Tensors at `run` are dense, row-major, in the machine's byte order, and aligned to their element. Types of
 *   less than a byte are packed as ONNX packs them. Artifacts are little-endian on every machine.
 * - A driver reads artifacts as data from a stranger: it checks what it reads before it uses it, and answers
 *   BYOC_BAD_ARTIFACT instead of reading or writing where it must not.
 * - Structures grow at their end. Each that may grow begins with its size, as its maker knew it, and nothing
 *   behind that size is read.
 */
#ifndef BYOC_DRIVER_H
#define BYOC_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. It changes when a structure or a rule changes in another way than by growth. */
#define BYOC_ABI_VERSION 1u

/* Bytes to which `arena` and the data of each blob are aligned. */
#define BYOC_ALIGNMENT 64u

/* What functions answer. Every other number is a failure, too. */
enum {
    BYOC_OK = 0,
    BYOC_INCOMPATIBLE = 1, /* the artifact is for another device, or another version of the driver */
    BYOC_BAD_ARTIFACT = 2, /* the artifact is damaged, or is not this codegen's */
    BYOC_BAD_ARGUMENT = 3, /* the program broke a rule of this interface */
    BYOC_FAILED = 4        /* the device failed, or the computation left the range of its numbers */
};

/* Types of elements, numbered as in ONNX's TensorProto.DataType. Others of ONNX's numbers may occur. */
enum {
    BYOC_FLOAT32 = 1,
    BYOC_UINT8 = 2,
    BYOC_INT8 = 3,
    BYOC_UINT16 = 4,
    BYOC_INT16 = 5,
    BYOC_INT32 = 6,
    BYOC_INT64 = 7,
    BYOC_BOOL = 9,
    BYOC_FLOAT16 = 10,
    BYOC_FLOAT64 = 11,
    BYOC_UINT32 = 12,
    BYOC_UINT64 = 13,
    BYOC_BFLOAT16 = 16
};

/* A file of the artifact. */
typedef struct byoc_blob {
    const char *name; /* as the codegen named it: "program.bin" */
    const void *data; /* aligned to BYOC_ALIGNMENT */
    size_t bytes;
} byoc_blob;

/* A text of the artifact's metadata. */
typedef struct byoc_text {
    const char *name;
    const char *text;
} byoc_text;

/* An input or an output of a region, in the form in which it crosses the boundary (layout, quantization). */
typedef struct byoc_tensor {
    const char *name;
    int32_t dtype; /* ONNX's number */
    int32_t rank;
    const int64_t *shape; /* `rank` extents, all known */
    size_t bytes;
} byoc_tensor;

/* A region, as the program knows it. All arrays are in the order of the bundle's manifest. */
typedef struct byoc_region_info {
    size_t struct_size; /* sizeof(byoc_region_info) where the program was compiled */
    const char *region; /* its name, for messages */
    size_t blob_count;
    const byoc_blob *blobs;
    size_t text_count;
    const byoc_text *texts;
    size_t input_count;
    const byoc_tensor *inputs;
    size_t output_count;
    const byoc_tensor *outputs;
    void *arena; /* `arena_bytes` bytes, aligned; NULL before `open` */
    size_t arena_bytes;
} byoc_region_info;

/* A region that a driver has opened. Only the driver knows what is in it. */
typedef struct byoc_region byoc_region;

/* A driver. No function may be NULL. */
typedef struct byoc_driver {
    size_t struct_size;   /* sizeof(byoc_driver) where the driver was compiled */
    uint32_t abi_version; /* BYOC_ABI_VERSION there */
    const char *name;     /* the codegen's: "dla" */

    /* Answer whether this machine can run the artifact. Unless BYOC_OK, `*why` is set to a sentence without
     * a full stop, which stays valid as long as the driver is loaded. `info->arena` is not used. */
    int (*compatible)(const byoc_region_info *info, const char **why);

    /* Return the bytes of the arena that `open` needs, also 0; SIZE_MAX if the artifact is wrong. */
    size_t (*arena_size)(const byoc_region_info *info);

    /* Open a region. Unless BYOC_OK, `*region` is NULL, or a region that `error` and `close` alone take. */
    int (*open)(const byoc_region_info *info, byoc_region **region);

    /* Run a region. `inputs[i]` and `outputs[i]` point to the tensors of `info->inputs[i]` and
     * `info->outputs[i]`, of `bytes` bytes each. Outputs overlap neither each other nor inputs. After a
     * failure outputs hold anything, and the region may be run again. */
    int (*run)(byoc_region *region, const void *const *inputs, void *const *outputs);

    /* Close a region; NULL is allowed. */
    void (*close)(byoc_region *region);

    /* Return a sentence on the last failure of `open` or `run`, empty if there was none, without a full
     * stop; NULL is allowed. It is valid until the next call with the region. */
    const char *(*error)(const byoc_region *region);
} byoc_driver;

/* The entry point of a driver in a shared library: its table, or NULL if it has none for the version of the
 * interface that the program was compiled for. */
const byoc_driver *byoc_get_driver(uint32_t abi_version);

#ifdef __cplusplus
}
#endif

#endif
