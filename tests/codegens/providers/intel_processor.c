/* A plug-in provider of ONNX Runtime for tests: that of another library, which sees Intel's processor.
 *
 * The library of OpenVINO's provider lists its CPU device on processors of Intel alone, though OpenVINO
 * computes on others as well. This one loads the library that the environment variable BYOC_TESTS_PROVIDER
 * names, and gives it a table of onnxruntime's functions in which each device is made by Intel.
 */
#include "ort_abi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

enum { VENDOR_ID_POSITION = 308, INTEL = 0x8086 };
enum { MOST_ENTRIES = 600 }; /* more than any version has: the table goes on in onnxruntime's own data */

typedef OrtStatus *(*create_factories)(
    const char *, const OrtApiBase *, const OrtLogger *, OrtEpFactory **, size_t, size_t *
);
typedef OrtStatus *(*release_factory)(OrtEpFactory *);

static const OrtApiBase *own_base;
static OrtEntry entries[MOST_ENTRIES];

EXPORTED OrtStatus *CreateEpFactories(
    const char *name, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories,
    size_t most, size_t *count
);
EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory);

static uint32_t get_vendor_id(const OrtHardwareDevice *device) {
    (void)device;
    return INTEL;
}

static const OrtApi *get_api(uint32_t version) {
    const OrtApi *api = own_base->get_api(version);
    if (!api) {
        return NULL;
    }
    memcpy(entries, api->entries, sizeof entries);
    entries[VENDOR_ID_POSITION] = (OrtEntry)get_vendor_id;
    return (const OrtApi *)entries;
}

static void *find(const char *name) {
    const char *library = getenv("BYOC_TESTS_PROVIDER");
    void *opened = library ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL;
    return opened ? dlsym(opened, name) : NULL;
}

OrtStatus *CreateEpFactories(
    const char *name, const OrtApiBase *base, const OrtLogger *logger, OrtEpFactory **factories,
    size_t most, size_t *count
) {
    static OrtApiBase changed;
    void *found = find("CreateEpFactories");
    own_base = base;
    changed = (OrtApiBase){get_api, base->get_version};
    *count = 0;
    return found ? ((create_factories)found)(name, &changed, logger, factories, most, count)
                 : ort_create_status(base->get_api(1), ORT_EP_FAIL, "BYOC_TESTS_PROVIDER: no library");
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
    return ((release_factory)find("ReleaseEpFactory"))(factory);
}
