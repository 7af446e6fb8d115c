/* The driver of a codegen that tests make up: each output is twice an input, as float32,
 * which is repeated where it is smaller.
 *
 * It fails where a test asks it to: an artifact of "open" or "run" is refused there, and a first input
 * of 13 ends a run. Two calls of one region at once end the process. */
#include "byoc_driver.h"
#if defined ONLY_VERSION_1 && defined BYOC_ABI_VERSION_2
#error "this is not the header of version 1"
#endif

#include <stdlib.h>
#include <string.h>

struct byoc_region {
    const byoc_region_info *info;
    int is_running;
    const char *message;
};

static int has_content(const byoc_region_info *info, const char *content) {
    size_t length = strlen(content);
    return info->blob_count && info->blobs[0].bytes == length &&
           !memcmp(info->blobs[0].data, content, length);
}

static int check_compatible(const byoc_region_info *info, const char **why) {
    *why = "the artifact is for another device";
    return has_content(info, "old") ? BYOC_INCOMPATIBLE : BYOC_OK;
}

static size_t get_arena_size(const byoc_region_info *info) {
    (void)info;
    return sizeof(byoc_region);
}

static int open_region(const byoc_region_info *info, byoc_region **region) {
    *region = info->arena;
    (*region)->info = info;
    (*region)->message = "the artifact cannot be opened";
    return has_content(info, "open") ? BYOC_BAD_ARTIFACT : BYOC_OK;
}

static int run_region(byoc_region *region, const void *const *inputs, void *const *outputs) {
    const byoc_region_info *info = region->info;
    if (region->is_running++) {
        abort();
    }
    int fails = info->input_count && info->inputs[0].bytes >= 4 && ((const float *)inputs[0])[0] == 13.0f;
    for (size_t i = 0; i < info->output_count && !fails; i++) {
        size_t from = i < info->input_count ? i : 0;
        size_t count = info->input_count ? info->inputs[from].bytes / sizeof(float) : 0;
        for (size_t k = 0; k < info->outputs[i].bytes / sizeof(float); k++) {
            ((float *)outputs[i])[k] = count ? 2.0f * ((const float *)inputs[from])[k % count] : 0.0f;
        }
    }
    region->is_running--;
    region->message = fails ? "the device is unlucky" : "";
    return fails ? BYOC_FAILED : BYOC_OK;
}

static void close_region(byoc_region *region) {
    (void)region;
}

static const char *get_error(const byoc_region *region) {
    return region ? region->message : "";
}

static const byoc_driver driver = {
    sizeof(byoc_driver), BYOC_ABI_VERSION, "doubling",   check_compatible, get_arena_size,
    open_region,         run_region,       close_region, get_error,
};

const byoc_driver *byoc_get_driver(uint32_t abi_version) {
    return abi_version == BYOC_ABI_VERSION ? &driver : NULL;
}
