/* An execution provider of ONNX Runtime, as a plug-in, that runs byoc's regions by drivers in C.
 *
 * It takes the nodes com.microsoft.EPContext with `source` "byoc" of models that `byoc partition --emit
 * epcontext` writes. A node holds the description of its region (region_description.h), whose files are
 * in the bundle beside the model; a driver (byoc_driver.h) is found by the option `driver.CODEGEN`. It
 * holds no global state. Failures are sentences in an OrtStatus.
 *
 * This file has the two functions that onnxruntime looks up, and the factory that they make; provider.c
 * has the provider of a session.
 */
#include "compiled_region.h"
#include "provider.h"

#include <stdlib.h>
#include <string.h>

#define PROVIDER_VERSION "0.1.0"
#define EXPORTED __attribute__((visibility("default")))

static const char *const NO_MEMORY = "there is no memory left";

static const char *get_factory_name(const OrtEpFactory *factory) {
    return ((const provider_factory *)factory)->name;
}

static const char *get_vendor(const OrtEpFactory *factory) {
    (void)factory;
    return "byoc";
}

static uint32_t get_vendor_id(const OrtEpFactory *factory) {
    (void)factory;
    return 0;
}

static const char *get_version(const OrtEpFactory *factory) {
    (void)factory;
    return PROVIDER_VERSION;
}

/* Offer one device, the processor: onnxruntime's tensors lie in its memory, and drivers know their own.
 */
static OrtStatus *get_supported_devices(
    OrtEpFactory *factory, const OrtHardwareDevice *const *devices, size_t count, OrtEpDevice **made,
    size_t most, size_t *made_count
) {
    const OrtApi *api = ((const provider_factory *)factory)->api;
    *made_count = 0;
    for (size_t i = 0; i < count && most; i++) {
        if (ort_device_type(api, devices[i]) == ORT_DEVICE_CPU) {
            OrtStatus *status = ort_create_device(ort_get_ep_api(api), factory, devices[i], &made[0]);
            *made_count = status ? 0 : 1;
            return status;
        }
    }
    return NULL;
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

static OrtStatus *create_sync_stream(
    OrtEpFactory *factory, const OrtMemoryDevice *device, const OrtKeyValuePairs *options,
    OrtSyncStreamImpl **made
) {
    (void)factory;
    (void)device;
    (void)options;
    *made = NULL;
    return NULL;
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
    const OrtApi *api = base->get_api(ORT_VERSION);
    (void)logger;
    *count = 0;
    if (!api) {
        const OrtApi *older = base->get_api(1);
        return older ? make_failure(older, registered_name, "", "it takes onnxruntime 1.23 or later")
                     : NULL;
    }
    provider_factory *factory = most ? calloc(1, sizeof *factory) : NULL;
    char *name = factory ? copy_text(registered_name) : NULL;
    if (!name) {
        free(factory);
        return make_failure(api, registered_name, "", NO_MEMORY);
    }
    factory->base = (OrtEpFactory){
        ORT_VERSION,           get_factory_name,   get_vendor,
        get_supported_devices, create_ep,          release_ep,
        get_vendor_id,         get_version,        validate_compatibility,
        create_allocator,      release_allocator,  create_data_transfer,
        is_stream_aware,       create_sync_stream,
    };
    factory->api = api;
    factory->name = name;
    factories[0] = &factory->base;
    *count = 1;
    return NULL;
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
    free(((provider_factory *)factory)->name);
    free(factory);
    return NULL;
}
