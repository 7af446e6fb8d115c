/* What the provider uses of ONNX Runtime's C interface, version 23, which onnxruntime 1.23 and later
 * have.
 *
 * onnxruntime's packages for Python have no headers, so the entries are declared here. Its table of
 * functions is an array of pointers that only grows, and each function keeps its position in it for
 * good; the same holds for the structures that a plug-in fills in. The tests load the provider into the
 * oldest and the newest onnxruntime that the project supports, and reach every entry.
 *
 * The interface is documented at onnxruntime.ai/docs/api/c, plug-ins at
 * onnxruntime.ai/docs/execution-providers/plugin-ep-libraries. A function that can fail returns NULL, or
 * a status that its caller has to release.
 */
#ifndef BYOC_ORT_ABI_H
#define BYOC_ORT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORT_VERSION 23u

enum { ORT_INVALID_ARGUMENT = 2, ORT_EP_FAIL = 11 }; /* codes of a status */
enum { ORT_ATTRIBUTE_INT = 1, ORT_ATTRIBUTE_STRING = 5 };
enum { ORT_DEVICE_CPU = 0 };

typedef struct OrtStatus OrtStatus;
typedef struct OrtLogger OrtLogger;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtMemoryDevice OrtMemoryDevice;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtDataTransferImpl OrtDataTransferImpl;
typedef struct OrtSyncStreamImpl OrtSyncStreamImpl;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtValue OrtValue;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtNodeFusionOptions OrtNodeFusionOptions;

/* The tables of functions, as onnxruntime gives them. */
typedef void (*OrtEntry)(void);
typedef struct OrtApi {
    OrtEntry entries[393];
} OrtApi;
typedef struct OrtEpApi {
    OrtEntry entries[4];
} OrtEpApi;
typedef struct OrtApiBase {
    const OrtApi *(*get_api)(uint32_t version); /* NULL for a version that it does not have */
    const char *(*get_version)(void);
} OrtApiBase;

/* How a compiled node is run: a structure that the provider fills in. */
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;
struct OrtNodeComputeInfo {
    uint32_t version;
    OrtStatus *(*create_state)(OrtNodeComputeInfo *, OrtNodeComputeContext *, void **state);
    OrtStatus *(*compute)(OrtNodeComputeInfo *, void *state, OrtKernelContext *);
    void (*release_state)(OrtNodeComputeInfo *, void *state);
};

/* An execution provider of one session. Functions from `get_layout` on may be NULL. */
typedef struct OrtEp OrtEp;
struct OrtEp {
    uint32_t version;
    const char *(*get_name)(const OrtEp *);
    OrtStatus *(*get_capability)(OrtEp *, const OrtGraph *, OrtEpGraphSupportInfo *);
    OrtStatus *(*compile)(
        OrtEp *, const OrtGraph **graphs, const OrtNode **fused, size_t count,
        OrtNodeComputeInfo **infos, OrtNode **context_nodes
    );
    void (*release_infos)(OrtEp *, OrtNodeComputeInfo **infos, size_t count);
    OrtEntry get_layout, should_convert_layout, set_dynamic_options, on_run_start, on_run_end;
    OrtEntry create_allocator, create_sync_stream, get_compatibility_info;
};

/* What makes providers: one for each library that is registered. */
typedef struct OrtEpFactory OrtEpFactory;
struct OrtEpFactory {
    uint32_t version;
    const char *(*get_name)(const OrtEpFactory *);
    const char *(*get_vendor)(const OrtEpFactory *);
    OrtStatus *(*get_supported_devices)(
        OrtEpFactory *, const OrtHardwareDevice *const *devices, size_t count, OrtEpDevice **made,
        size_t most, size_t *made_count
    );
    OrtStatus *(*create_ep)(
        OrtEpFactory *, const OrtHardwareDevice *const *devices, const OrtKeyValuePairs *const *metadata,
        size_t count, const OrtSessionOptions *, const OrtLogger *, OrtEp **
    );
    void (*release_ep)(OrtEpFactory *, OrtEp *);
    uint32_t (*get_vendor_id)(const OrtEpFactory *);
    const char *(*get_version)(const OrtEpFactory *);
    OrtStatus *(*validate_compatibility)(
        OrtEpFactory *, const OrtHardwareDevice *const *devices, size_t count, const char *info,
        int *answer
    );
    OrtStatus *(*create_allocator)(
        OrtEpFactory *, const OrtMemoryInfo *, const OrtKeyValuePairs *options, OrtAllocator **
    );
    void (*release_allocator)(OrtEpFactory *, OrtAllocator *);
    OrtStatus *(*create_data_transfer)(OrtEpFactory *, OrtDataTransferImpl **);
    bool (*is_stream_aware)(const OrtEpFactory *);
    OrtStatus *(*create_sync_stream)(
        OrtEpFactory *, const OrtMemoryDevice *, const OrtKeyValuePairs *options, OrtSyncStreamImpl **
    );
};

/* Call the function at a position of a table. */
#define ORT_CALL(table, position, result, ...) ((result (*)(__VA_ARGS__))(table)->entries[position])

static inline OrtStatus *ort_create_status(const OrtApi *api, int code, const char *message) {
    return ORT_CALL(api, 0, OrtStatus *, int, const char *)(code, message);
}

static inline void ort_release_status(const OrtApi *api, OrtStatus *status) {
    ORT_CALL(api, 93, void, OrtStatus *)(status);
}

/* The bytes of a tensor, to be written (also where it is read: the function for constants is a later
 * one). */
static inline OrtStatus *ort_tensor_data(const OrtApi *api, OrtValue *value, void **data) {
    return ORT_CALL(api, 51, OrtStatus *, OrtValue *, void **)(value, data);
}

static inline OrtStatus *ort_tensor_bytes(const OrtApi *api, const OrtValue *value, size_t *bytes) {
    return ORT_CALL(api, 318, OrtStatus *, const OrtValue *, size_t *)(value, bytes);
}

/* The type of a tensor; `*tensor` is NULL for what is no tensor, and belongs to `type`. */
static inline OrtStatus *ort_tensor_type(
    const OrtApi *api, const OrtTypeInfo *type, const OrtTensorTypeAndShapeInfo **tensor
) {
    return ORT_CALL(api, 55, OrtStatus *, const OrtTypeInfo *, const OrtTensorTypeAndShapeInfo **)(
        type, tensor
    );
}

static inline OrtStatus *ort_element_type(
    const OrtApi *api, const OrtTensorTypeAndShapeInfo *tensor, int *type
) {
    return ORT_CALL(api, 60, OrtStatus *, const OrtTensorTypeAndShapeInfo *, int *)(tensor, type);
}

static inline OrtStatus *ort_rank(
    const OrtApi *api, const OrtTensorTypeAndShapeInfo *tensor, size_t *rank
) {
    return ORT_CALL(api, 61, OrtStatus *, const OrtTensorTypeAndShapeInfo *, size_t *)(tensor, rank);
}

/* The extents of a tensor, -1 for one that is not known. */
static inline OrtStatus *ort_shape(
    const OrtApi *api, const OrtTensorTypeAndShapeInfo *tensor, int64_t *shape, size_t rank
) {
    return ORT_CALL(api, 62, OrtStatus *, const OrtTensorTypeAndShapeInfo *, int64_t *, size_t)(
        tensor, shape, rank
    );
}

static inline OrtStatus *ort_get_input(
    const OrtApi *api, const OrtKernelContext *context, size_t number, const OrtValue **value
) {
    return ORT_CALL(api, 90, OrtStatus *, const OrtKernelContext *, size_t, const OrtValue **)(
        context, number, value
    );
}

static inline OrtStatus *ort_get_output(
    const OrtApi *api, OrtKernelContext *context, size_t number, const int64_t *shape, size_t rank,
    OrtValue **value
) {
    return ORT_CALL(
        api, 91, OrtStatus *, OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **
    )(
        context, number, shape, rank, value
    );
}

/* The settings of a session, which the caller has to release. */
static inline OrtStatus *ort_get_settings(
    const OrtApi *api, const OrtSessionOptions *options, OrtKeyValuePairs **pairs
) {
    return ORT_CALL(api, 379, OrtStatus *, const OrtSessionOptions *, OrtKeyValuePairs **)(
        options, pairs
    );
}

static inline void ort_list_pairs(
    const OrtApi *api, const OrtKeyValuePairs *pairs, const char *const **keys,
    const char *const **values, size_t *count
) {
    ORT_CALL(
        api, 298, void, const OrtKeyValuePairs *, const char *const **, const char *const **, size_t *
    )(
        pairs, keys, values, count
    );
}

static inline void ort_release_pairs(const OrtApi *api, OrtKeyValuePairs *pairs) {
    ORT_CALL(api, 300, void, OrtKeyValuePairs *)(pairs);
}

static inline OrtStatus *ort_read_attribute(
    const OrtApi *api, const OrtOpAttr *attribute, int type, void *data, size_t bytes, size_t *needed
) {
    return ORT_CALL(api, 272, OrtStatus *, const OrtOpAttr *, int, void *, size_t, size_t *)(
        attribute, type, data, bytes, needed
    );
}

static inline OrtStatus *ort_value_name(
    const OrtApi *api, const OrtValueInfo *value, const char **name
) {
    return ORT_CALL(api, 289, OrtStatus *, const OrtValueInfo *, const char **)(value, name);
}

static inline OrtStatus *ort_value_type(
    const OrtApi *api, const OrtValueInfo *value, const OrtTypeInfo **type
) {
    return ORT_CALL(api, 290, OrtStatus *, const OrtValueInfo *, const OrtTypeInfo **)(value, type);
}

static inline int ort_device_type(const OrtApi *api, const OrtHardwareDevice *device) {
    return ORT_CALL(api, 307, int, const OrtHardwareDevice *)(device);
}

static inline const OrtEpApi *ort_get_ep_api(const OrtApi *api) {
    return ORT_CALL(api, 317, const OrtEpApi *, void)();
}

/* The path of the model's file, empty for a model that was given as bytes. */
static inline OrtStatus *ort_model_path(const OrtApi *api, const OrtGraph *graph, const char **path) {
    return ORT_CALL(api, 334, OrtStatus *, const OrtGraph *, const char **)(graph, path);
}

/* The outputs of a graph: their number, and the list. */
static inline OrtStatus *ort_count_outputs(const OrtApi *api, const OrtGraph *graph, size_t *count) {
    return ORT_CALL(api, 340, OrtStatus *, const OrtGraph *, size_t *)(graph, count);
}

static inline OrtStatus *ort_list_outputs(
    const OrtApi *api, const OrtGraph *graph, const OrtValueInfo **values, size_t count
) {
    return ORT_CALL(api, 341, OrtStatus *, const OrtGraph *, const OrtValueInfo **, size_t)(
        graph, values, count
    );
}

static inline OrtStatus *ort_node_count(const OrtApi *api, const OrtGraph *graph, size_t *count) {
    return ORT_CALL(api, 344, OrtStatus *, const OrtGraph *, size_t *)(graph, count);
}

static inline OrtStatus *ort_list_nodes(
    const OrtApi *api, const OrtGraph *graph, const OrtNode **nodes, size_t count
) {
    return ORT_CALL(api, 345, OrtStatus *, const OrtGraph *, const OrtNode **, size_t)(
        graph, nodes, count
    );
}

/* Texts of a node: its name, operator and domain. */
typedef enum ort_node_text {
    ORT_NODE_NAME = 349,
    ORT_NODE_OPERATOR = 350,
    ORT_NODE_DOMAIN = 351
} ort_node_text;

static inline OrtStatus *ort_node_get_text(
    const OrtApi *api, ort_node_text which, const OrtNode *node, const char **text
) {
    return ORT_CALL(api, which, OrtStatus *, const OrtNode *, const char **)(node, text);
}

/* A node's inputs, outputs, or what its bodies read of the graph around it: their number stands at one
 * position, the list at the next. */
typedef enum ort_node_side {
    ORT_NODE_INPUTS = 353,
    ORT_NODE_OUTPUTS = 355,
    ORT_NODE_IMPLICIT_INPUTS = 357
} ort_node_side;

static inline OrtStatus *ort_count_values(
    const OrtApi *api, ort_node_side side, const OrtNode *node, size_t *count
) {
    return ORT_CALL(api, side, OrtStatus *, const OrtNode *, size_t *)(node, count);
}

static inline OrtStatus *ort_list_values(
    const OrtApi *api, ort_node_side side, const OrtNode *node, const OrtValueInfo **values, size_t count
) {
    return ORT_CALL(api, side + 1, OrtStatus *, const OrtNode *, const OrtValueInfo **, size_t)(
        node, values, count
    );
}

/* An attribute of a node: a status, or NULL in `*attribute`, where there is none. */
static inline OrtStatus *ort_find_attribute(
    const OrtApi *api, const OrtNode *node, const char *name, const OrtOpAttr **attribute
) {
    return ORT_CALL(api, 361, OrtStatus *, const OrtNode *, const char *, const OrtOpAttr **)(
        node, name, attribute
    );
}

/* Functions of the table for plug-ins. */
static inline OrtStatus *ort_create_device(
    const OrtEpApi *api, OrtEpFactory *factory, const OrtHardwareDevice *device, OrtEpDevice **made
) {
    return ORT_CALL(
        api, 0, OrtStatus *, OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *,
        const OrtKeyValuePairs *, OrtEpDevice **
    )(
        factory, device, NULL, NULL, made
    );
}

static inline OrtStatus *ort_claim_node(
    const OrtEpApi *api, OrtEpGraphSupportInfo *info, const OrtNode *node
) {
    return ORT_CALL(
        api, 2, OrtStatus *, OrtEpGraphSupportInfo *, const OrtNode *const *, size_t,
        const OrtNodeFusionOptions *
    )(
        info, &node, 1, NULL
    );
}

#endif
