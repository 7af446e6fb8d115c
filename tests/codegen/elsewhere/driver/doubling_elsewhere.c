/* The driver of the codegen `doubling-elsewhere`, which lives in another Python: each output is twice the input. */
#include "byoc_driver.h"

#include <string.h>

struct byoc_region {
    size_t count;
};

static int check_compatible(const byoc_region_info *info, const char **why) {
    int fits = info->blob_count == 1 && info->blobs[0].bytes == 3 && !memcmp(info->blobs[0].data, "add", 3);
    *why = fits ? "" : "code.bin is not of this codegen";
    return fits ? BYOC_OK : BYOC_INCOMPATIBLE;
}

static size_t get_arena_size(const byoc_region_info *info) {
    (void)info;
    return sizeof(byoc_region);
}

static int open_region(const byoc_region_info *info, byoc_region **region) {
    *region = info->arena;
    (*region)->count = info->outputs[0].bytes / sizeof(float);
    return BYOC_OK;
}

static int run_region(byoc_region *region, const void *const *inputs, void *const *outputs) {
    for (size_t i = 0; i < region->count; i++) {
        ((float *)outputs[0])[i] = 2.0f * ((const float *)inputs[0])[i];
    }
    return BYOC_OK;
}

static void close_region(byoc_region *region) {
    (void)region;
}

static const char *get_error(const byoc_region *region) {
    (void)region;
    return "";
}

extern const byoc_driver byoc_driver_doubling_elsewhere;
const byoc_driver byoc_driver_doubling_elsewhere = {
    sizeof(byoc_driver), BYOC_ABI_VERSION, "doubling-elsewhere", check_compatible, get_arena_size,
    open_region,         run_region,       close_region,         get_error,
};

const byoc_driver *byoc_get_driver(uint32_t abi_version);
const byoc_driver *byoc_get_driver(uint32_t abi_version) {
    return abi_version == BYOC_ABI_VERSION ? &byoc_driver_doubling_elsewhere : NULL;
}
