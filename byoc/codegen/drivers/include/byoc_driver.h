/* byoc_driver.h: the interface between a program that runs a compiled model and the driver of an accelerator.
 *
 * The program holds a bundle: for each region its artifact (files that the codegen made), and the region's
 * inputs and outputs in the order of the bundle's manifest. The driver executes the artifact. A driver is a
 * table of functions, `byoc_driver`. It is linked into the program under the name `byoc_driver_NAME`, or it is
 * a shared library whose only needed symbol is `byoc_get_driver`.
 *
 * There are two versions. Version 1, `byoc_driver`, is all that a driver needs: open a region, run it, close it.
 * Version 2, `byoc_driver_2`, begins with the table of version 1 and adds functions, each of which may be NULL.
 * A program asks whether a function is there (BYOC_HAS), and does the simple thing where it is not. So a program
 * runs drivers of both versions, and a driver of version 2 serves old programs by a table of version 1.
 *
 * Rules for both sides:
 * - C99. No C++, no exceptions, no signals, no long jumps across the interface.
 * - Memory that one side allocates the other never frees. The program owns everything in `byoc_region_info`,
 *   the arena included, and keeps it unchanged until `close`. A driver that needs memory takes it from the
 *   arena; for what lies outside (device buffers, handles of a kernel module) it allocates and frees itself.
 * - One region is not reentrant: the program calls its functions one at a time, `cancel` excepted. Two regions
 *   are independent, also two of the same artifact, and may run on two threads.
 * - Tensors at `run` are dense, row-major, in the machine's byte order, and aligned to their element. Types of
 *   less than a byte are packed as ONNX packs them. Artifacts are little-endian on every machine.
 * - A driver reads artifacts as data from a stranger: it checks what it reads before it uses it, and answers
 *   BYOC_BAD_ARTIFACT instead of reading or writing where it must not.
 * - A program checks the answers of a driver: the table's version and functions, statuses, handles, sizes. It cannot
 *   check, and so has to trust, that a driver writes inside of outputs, arena and buffers alone, that a run which
 *   `wait` ended has ended, that texts end with a zero, and that addresses other than NULL are those of what they say.
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

/* The versions of this interface: of `byoc_driver`, and of `byoc_driver_2`. A version changes when a structure or a
 * rule changes in another way than by growth. */
#define BYOC_ABI_VERSION 1u
#define BYOC_ABI_VERSION_2 2u

/* Bytes to which `arena` and the data of each blob are aligned. */
#define BYOC_ALIGNMENT 64u

/* What functions answer. Every other number is a failure, too. */
enum {
    BYOC_OK = 0,
    BYOC_INCOMPATIBLE = 1, /* the artifact is for another device, or another version of the driver */
    BYOC_BAD_ARTIFACT = 2, /* the artifact is damaged, or is not this codegen's */
    BYOC_BAD_ARGUMENT = 3, /* the program broke a rule of this interface */
    BYOC_FAILED = 4,       /* the device failed, or the computation left the range of its numbers */
    BYOC_BUSY = 5,         /* of `wait` alone: the run has not ended yet */
    BYOC_CANCELLED = 6     /* of `wait` and `done`: the run ended early, since the program asked for it */
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

/* A text of the artifact's metadata, or an option. */
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

/* A driver of version 1. No function may be NULL. */
typedef struct byoc_driver {
    size_t struct_size;   /* sizeof(byoc_driver) where the driver was compiled; of version 2 sizeof(byoc_driver_2) */
    uint32_t abi_version; /* BYOC_ABI_VERSION there; of version 2 BYOC_ABI_VERSION_2 */
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

/* Version 2: what follows. */

/* Memory that a driver knows by a handle. Regions of the driver read inputs from it and write outputs to it, so that
 * a tensor passes from one region to the next without the program's memory. A buffer holds a tensor as `run` takes
 * it: dense, row-major, in the machine's byte order. */
typedef struct byoc_buffer byoc_buffer;

/* Where the memory of a buffer comes from. */
enum {
    BYOC_DEVICE_MEMORY = 0,  /* the driver allocates it on the device, and frees it in `close_buffer` */
    BYOC_PROGRAM_MEMORY = 1, /* `memory` of the program, which the device is to reach; kept until `close_buffer` */
    BYOC_SHARED_MEMORY = 2   /* `descriptor`, which the program keeps open until `close_buffer` */
};

/* A buffer that is to be opened. */
typedef struct byoc_buffer_info {
    size_t struct_size; /* sizeof(byoc_buffer_info) where the program was compiled */
    int32_t kind;       /* BYOC_DEVICE_MEMORY, ... */
    size_t bytes;
    void *memory;       /* of BYOC_PROGRAM_MEMORY, aligned to BYOC_ALIGNMENT; else NULL */
    int64_t descriptor; /* of BYOC_SHARED_MEMORY: a file descriptor, such as of a dma-buf; else -1 */
} byoc_buffer_info;

/* Where an input or an output of a run lies: in the program's memory, or in a buffer. */
typedef struct byoc_binding {
    void *data;          /* as `run` takes it, NULL where there is a buffer; inputs are only read */
    byoc_buffer *buffer; /* a buffer of the same driver, NULL where there is `data` */
    size_t offset;       /* of the tensor in the buffer, a multiple of BYOC_ALIGNMENT */
} byoc_binding;

/* A run that is to be submitted. The program keeps it, and all that it points to, until `wait` says how it ended. */
typedef struct byoc_call {
    size_t struct_size;           /* sizeof(byoc_call) where the program was compiled */
    const byoc_binding *inputs;   /* of each of `info->inputs` */
    const byoc_binding *outputs;  /* of each of `info->outputs`; they overlap neither each other nor inputs */
    size_t option_count;          /* options of this run, which go before those of `open_with` */
    const byoc_text *options;
    /* Called once when the run has ended, with what `wait` answers, on any thread, perhaps inside `submit`; NULL for
     * none. It is short, and calls no function of the driver: `wait` is called all the same, elsewhere. */
    void (*done)(void *user, int answer);
    void *user;
} byoc_call;

/* What a region has done since it was opened. Bytes are those of inputs and outputs. */
typedef struct byoc_counters {
    size_t struct_size; /* sizeof(byoc_counters) where the program was compiled; the driver fills in no more */
    uint64_t runs;      /* that ended well */
    uint64_t bytes_from_program, bytes_to_program; /* copied from and to the program's memory */
    uint64_t bytes_on_device;                      /* copied from and to buffers in other memory than the program's */
    uint64_t busy_ns;                              /* nanoseconds that the device worked */
} byoc_counters;

/* A layer of the last run. */
typedef struct byoc_event {
    const char *layer; /* its name, as the compiler has it */
    size_t node_count;
    const char *const *nodes;       /* the names of the model's nodes that it computes */
    uint64_t start_ns, duration_ns; /* nanoseconds from the beginning of the run, and that it took */
} byoc_event;

/* Versions, as texts whose numbers are separated by dots: "7", "1.4.2". NULL where there is none, or any will do. */
typedef struct byoc_versions {
    size_t struct_size;                            /* sizeof(byoc_versions) where the program was compiled */
    const char *driver;                            /* the driver's own */
    const char *firmware;                          /* of the device that is here */
    const char *oldest_firmware, *newest_firmware; /* with which the driver works, or the artifact */
    const char *oldest_artifact, *newest_artifact; /* which the driver runs; of an artifact twice its own */
} byoc_versions;

/* A driver of version 2: the functions of version 1, and others that may be NULL each. Those with the same remark are
 * there together or not at all. */
typedef struct byoc_driver_2 {
    byoc_driver base;

    /* Open a region as `open` does, with options. Names mean the same for each driver that has them: `cores`, a decimal
     * mask of the cores that may run it; `priority`, low, normal or high; `clock`, percent of the highest; `events`, 1
     * if `list_events` is to have the layers. Others are the driver's own. An option that it does not have, or a value
     * that it does not take, is BYOC_BAD_ARGUMENT with a sentence. Without it there are no options. */
    int (*open_with)(
        const byoc_region_info *info, size_t option_count, const byoc_text *options, byoc_region **region
    );

    /* (runs) Begin a run, and return before it has ended, or when it has. Unless BYOC_OK nothing was begun, and `error`
     * says why. A region has one run at a time: until `wait` says how it ended, `wait` and `cancel` alone are called.
     * More runs at once are those of more regions, also of the same artifact; a driver may share what it keeps for
     * regions whose blobs have the same addresses. The program submits a run when what it reads has been made. */
    int (*submit)(byoc_region *region, const byoc_call *call);

    /* (runs) Wait for the end of the run, at most so many nanoseconds, UINT64_MAX for any time. Returns as `run` does,
     * or BYOC_BUSY where it has not ended, or BYOC_CANCELLED. Outputs in the program's memory can be read then. */
    int (*wait)(byoc_region *region, uint64_t most_ns);

    /* Ask a run to end early; `wait` says whether it did. It is called on any thread when `submit` has returned,
     * also while another thread is in `wait`, and does nothing where nothing runs. */
    void (*cancel)(byoc_region *region);

    /* (buffers) Open a buffer. Unless BYOC_OK `*buffer` is NULL, and `*why` a sentence as in `compatible`. Buffers are
     * of the driver, not of a region. They need `submit`, since `run` takes addresses. BYOC_INCOMPATIBLE is the answer
     * to a kind of memory that the device cannot reach. */
    int (*open_buffer)(const byoc_buffer_info *info, byoc_buffer **buffer, const char **why);

    /* (buffers) Copy bytes to a buffer, or from it. BYOC_BAD_ARGUMENT where they are not all inside it. */
    int (*write_buffer)(byoc_buffer *buffer, size_t offset, const void *from, size_t bytes);
    int (*read_buffer)(byoc_buffer *buffer, size_t offset, void *to, size_t bytes);

    /* (buffers) Close a buffer, which no run uses any more; NULL is allowed. */
    void (*close_buffer)(byoc_buffer *buffer);

    /* Read the counters of a region, while nothing runs in it. */
    int (*read_counters)(const byoc_region *region, byoc_counters *counters);

    /* List the layers of the last run, in the order in which they began; none unless it had the option `events`. The
     * driver owns the list, which is valid until the next call with the region. BYOC_INCOMPATIBLE where the artifact has
     * no names of layers. */
    int (*list_events)(const byoc_region *region, const byoc_event **events, size_t *count);

    /* Tell versions before there is a device: those that the driver runs, or where `info` is not NULL those that its
     * artifact needs. `compatible` says whether it runs here. */
    int (*read_versions)(const byoc_region_info *info, byoc_versions *versions);
} byoc_driver_2;

/* Whether a driver, a `const byoc_driver *`, has a function of version 2, and that table. */
#define BYOC_HAS(driver, function)                                                                        \
    ((driver)->abi_version >= BYOC_ABI_VERSION_2 &&                                                       \
     (driver)->struct_size >= offsetof(byoc_driver_2, function) + sizeof(BYOC_TABLE_2(driver)->function) && \
     BYOC_TABLE_2(driver)->function)
#define BYOC_TABLE_2(driver) ((const byoc_driver_2 *)(const void *)(driver))

/* The entry point of a driver in a shared library: its table, or NULL if it has none of the version that is asked for.
 * A program asks for the newest version that it knows, then for older ones. A table of version 2 is asked for by its
 * first member: `&table.base`. */
const byoc_driver *byoc_get_driver(uint32_t abi_version);

#ifdef __cplusplus
}
#endif

#endif
