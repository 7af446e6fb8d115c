/* A plug-in provider of ONNX Runtime for tests: it computes Relu and Neg of float32 on the processor.
 *
 * The environment variable SMALL_PROVIDER makes it misbehave: `absent` lists no device, `fails` gives an
 * error for a Neg that it claimed, `crashes` ends the process there, `waits` never returns from it,
 * `broken` makes no provider at all, and `named` calls itself Small, whatever it was registered as.
 */
#include "ort_abi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

typedef struct small_factory {
    OrtEpFactory base;
    const OrtApi *api;
    char name[64]; /* that under which it was registered */
} small_factory;

typedef struct small_provider {
    OrtEp base;
    const small_factory *factory;
} small_provider;

typedef struct small_node {
    OrtNodeComputeInfo base;
    const OrtApi *api;
    int is_neg;
} small_node;

static int behaves(const char *how) {
    const char *wanted = getenv("SMALL_PROVIDER");
    return wanted && strcmp(wanted, how) == 0;
}

static OrtStatus *fail(const OrtApi *api, const char *why) {
    return ort_create_status(api, ORT_EP_FAIL, why);
}

/* Functions of onnxruntime beyond those that byoc's own provider uses: the shape of a tensor. */
static OrtStatus *get_shape_info(
    const OrtApi *api, const OrtValue *value, OrtTensorTypeAndShapeInfo **info
) {
    return ORT_CALL(api, 65, OrtStatus *, const OrtValue *, OrtTensorTypeAndShapeInfo **)(value, info);
}

static void release_shape_info(const OrtApi *api, OrtTensorTypeAndShapeInfo *info) {
    ORT_CALL(api, 99, void, OrtTensorTypeAndShapeInfo *)(info);
}

static OrtStatus *create_state(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **state) {
    (void)info;
    (void)context;
    *state = NULL;
    return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) {
    (void)info;
    (void)state;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context) {
    const small_node *node = (const small_node *)info;
    const OrtApi *api = node->api;
    const OrtValue *input = NULL;
    OrtValue *output = NULL;
    OrtTensorTypeAndShapeInfo *described = NULL;
    int64_t shape[16];
    void *from = NULL, *to = NULL;
    size_t rank = 0, bytes = 0;
    (void)state;
    OrtStatus *status = ort_get_input(api, context, 0, &input);
    status = status ? status : get_shape_info(api, input, &described);
    status = status ? status : ort_rank(api, described, &rank);
    if (!status && rank > 16) {
        status = fail(api, "there are more than 16 dimensions");
    }
    status = status ? status : ort_shape(api, described, shape, rank);
    if (described) {
        release_shape_info(api, described);
    }
    status = status ? status : ort_get_output(api, context, 0, shape, rank, &output);
    status = status ? status : ort_tensor_data(api, (OrtValue *)input, &from);
    status = status ? status : ort_tensor_data(api, output, &to);
    status = status ? status : ort_tensor_bytes(api, input, &bytes);
    for (size_t i = 0; i < bytes / sizeof(float) && !status; i++) {
        float x = ((const float *)from)[i];
        ((float *)to)[i] = node->is_neg ? -x : x < 0 ? 0 : x;
    }
    return status;
}

static int has_operator(const OrtApi *api, const OrtNode *node, const char *expected) {
    const char *text = NULL;
    OrtStatus *status = ort_node_get_text(api, ORT_NODE_OPERATOR, node, &text);
    if (status) {
        ort_release_status(api, status);
        return 0;
    }
    return strcmp(text, expected) == 0;
}

static int reads_floats(const OrtApi *api, const OrtNode *node) {
    const OrtValueInfo *value = NULL;
    const OrtTypeInfo *type = NULL;
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    int element = 0;
    OrtStatus *status = ort_list_values(api, ORT_NODE_INPUTS, node, &value, 1);
    status = status ? status : ort_value_type(api, value, &type);
    status = status || !type ? status : ort_tensor_type(api, type, &tensor);
    status = status || !tensor ? status : ort_element_type(api, tensor, &element);
    if (status) {
        ort_release_status(api, status);
    }
    return element == 1; /* float32 */
}

static OrtStatus *get_capability(OrtEp *ep, const OrtGraph *graph, OrtEpGraphSupportInfo *info) {
    const OrtApi *api = ((const small_provider *)ep)->factory->api;
    size_t count = 0;
    OrtStatus *status = ort_node_count(api, graph, &count);
    const OrtNode **nodes = calloc(count + 1, sizeof *nodes);
    status = status ? status : ort_list_nodes(api, graph, nodes, count);
    for (size_t i = 0; i < count && !status; i++) {
        int known = has_operator(api, nodes[i], "Relu") || has_operator(api, nodes[i], "Neg");
        if (known && reads_floats(api, nodes[i])) {
            status = ort_claim_node(ort_get_ep_api(api), info, nodes[i]);
        }
    }
    free(nodes);
    return status;
}

static void release_infos(OrtEp *ep, OrtNodeComputeInfo **infos, size_t count) {
    (void)ep;
    for (size_t i = 0; i < count; i++) {
        free(infos[i]);
    }
}

static OrtStatus *compile(
    OrtEp *ep, const OrtGraph **graphs, const OrtNode **fused, size_t count, OrtNodeComputeInfo **infos,
    OrtNode **context_nodes
) {
    const OrtApi *api = ((const small_provider *)ep)->factory->api;
    (void)fused;
    (void)context_nodes; /* it writes no contexts */
    memset(infos, 0, count * sizeof *infos);
    for (size_t i = 0; i < count; i++) {
        const OrtNode *node = NULL;
        OrtStatus *status = ort_list_nodes(api, graphs[i], &node, 1);
        if (status) {
            return status;
        }
        small_node *made = calloc(1, sizeof *made);
        made->base = (OrtNodeComputeInfo){ORT_VERSION, create_state, compute, release_state};
        made->api = api;
        made->is_neg = has_operator(api, node, "Neg");
        infos[i] = &made->base;
        if (made->is_neg && behaves("crashes")) {
            abort();
        }
        if (made->is_neg && behaves("waits")) {
            sleep(3600);
        }
        if (made->is_neg && behaves("fails")) {
            release_infos(ep, infos, i + 1);
            memset(infos, 0, count * sizeof *infos);
            return fail(api, "the small provider is out of Neg");
        }
    }
    return NULL;
}

static const char *get_name(const OrtEp *ep) {
    return ((const small_provider *)ep)->factory->name;
}

static OrtStatus *create_ep(
    OrtEpFactory *factory, const OrtHardwareDevice *const *devices,
    const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options,
    const OrtLogger *logger, OrtEp **made
) {
    const small_factory *from = (const small_factory *)factory;
    (void)devices;
    (void)metadata;
    (void)count;
    (void)options;
    (void)logger;
    *made = NULL;
    if (behaves("broken")) {
        return fail(from->api, "the small provider has no licence");
    }
    small_provider *self = calloc(1, sizeof *self);
    self->base.version = ORT_VERSION;
    self->base.get_name = get_name;
    self->base.get_capability = get_capability;
    self->base.compile = compile;
    self->base.release_infos = release_infos;
    self->factory = from;
    *made = &self->base;
    return NULL;
}

static void release_ep(OrtEpFactory *factory, OrtEp *ep) {
    (void)factory;
    free(ep);
}

static OrtStatus *get_supported_devices(
    OrtEpFactory *factory, const OrtHardwareDevice *const *devices, size_t count, OrtEpDevice **made,
    size_t most, size_t *made_count
) {
    const OrtApi *api = ((const small_factory *)factory)->api;
    *made_count = 0;
    for (size_t i = 0; i < count && most && !behaves("absent"); i++) {
        if (ort_device_type(api, devices[i]) == ORT_DEVICE_CPU) {
            OrtStatus *status = ort_create_device(ort_get_ep_api(api), factory, devices[i], &made[0]);
            *made_count = status ? 0 : 1;
            return status;
        }
    }
    return NULL;
}

static const char *get_factory_name(const OrtEpFactory *factory) {
    return ((const small_factory *)factory)->name;
}

static const char *get_vendor(const OrtEpFactory *factory) {
    (void)factory;
    return "byoc's tests";
}

static uint32_t get_vendor_id(const OrtEpFactory *factory) {
    (void)factory;
    return 0;
}

static const char *get_version(const OrtEpFactory *factory) {
    (void)factory;
    return "1.0.0";
}

static OrtStatus *validate_compatibility(
    OrtEpFactory *factory, const OrtHardwareDevice *const *devices, size_t count, const char *info,
    int *answer
) {
    (void)factory;
    (void)devices;
    (void)count;
    (void)info;
    *answer = 0; /* it does not apply */
    return NULL;
}

static OrtStatus *create_allocator(
    OrtEpFactory *factory, const OrtMemoryInfo *info, const OrtKeyValuePairs *options,
    OrtAllocator **made
) {
    (void)factory;
    (void)info;
    (void)options;
    *made = NULL; /* onnxruntime's own */
    return NULL;
}

static void release_allocator(OrtEpFactory *factory, OrtAllocator *allocator) {
    (void)factory;
    (void)allocator;
}

static OrtStatus *create_data_transfer(OrtEpFactory *factory, OrtDataTransferImpl **made) {
    (void)factory;
    *made = NULL;
    return NULL;
}

static bool is_stream_aware(const OrtEpFactory *factory) {
    (void)factory;
    return false;
}

EXPORTED OrtStatus *CreateEpFactories(
    const char *registered_name, const OrtApiBase *base, const OrtLogger *logger,
    OrtEpFactory **factories, size_t most, size_t *count
);
EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory);

OrtStatus *CreateEpFactories(
    const char *registered_name, const OrtApiBase *base, const OrtLogger *logger,
    OrtEpFactory **factories, size_t most, size_t *count
) {
    (void)logger;
    *count = 0;
    small_factory *made = most ? calloc(1, sizeof *made) : NULL;
    if (made) {
        made->base = (OrtEpFactory){
            .version = ORT_VERSION,
            .get_name = get_factory_name,
            .get_vendor = get_vendor,
            .get_supported_devices = get_supported_devices,
            .create_ep = create_ep,
            .release_ep = release_ep,
            .get_vendor_id = get_vendor_id,
            .get_version = get_version,
            .validate_compatibility = validate_compatibility,
            .create_allocator = create_allocator,
            .release_allocator = release_allocator,
            .create_data_transfer = create_data_transfer,
            .is_stream_aware = is_stream_aware,
        };
        made->api = base->get_api(ORT_VERSION);
        strncpy(made->name, behaves("named") ? "Small" : registered_name, sizeof made->name - 1);
        factories[0] = &made->base;
        *count = 1;
    }
    return NULL;
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
    free(factory);
    return NULL;
}
