/* A driver of version 2 whose device and version a test sets: STUB_VERSION and STUB_CHIP of the environment, behind the
 * name of the codegen, which the test compiles in. It computes the larger of twice its input and zero. */
#include "byoc_driver.h"

#include <stdlib.h>
#include <string.h>

struct byoc_region {
    const byoc_region_info *info;
};

static const char *find_text(const byoc_region_info *info, const char *name) {
    for (size_t i = 0; i < info->text_count; i++) {
        if (strcmp(info->texts[i].name, name) == 0) {
            return info->texts[i].text;
        }
    }
    return "";
}

static int compatible(const byoc_region_info *info, const char **why) {
    const char *chip = getenv(STUB_NAME "_chip");
    *why = "it is for another chip";
    return chip && strcmp(find_text(info, "chip"), chip) != 0 ? BYOC_INCOMPATIBLE : BYOC_OK;
}

static size_t arena_size(const byoc_region_info *info) {
    (void)info;
    return STUB_BYTES;
}

static int open_region(const byoc_region_info *info, byoc_region **region) {
    *region = info->arena;
    (*region)->info = info;
    return getenv(STUB_NAME "_broken") ? BYOC_FAILED : BYOC_OK;
}

static int run(byoc_region *region, const void *const *inputs, void *const *outputs) {
    const float *from = inputs[0];
    float *to = outputs[0];
    for (size_t i = 0; i < region->info->outputs[0].bytes / sizeof *to; i++) {
        to[i] = from[i] > 0 ? 2 * from[i] : 0;
    }
    return BYOC_OK;
}

static void close_region(byoc_region *region) {
    (void)region;
}

static const char *get_error(const byoc_region *region) {
    return region ? "the device is broken" : "";
}

static int read_versions(const byoc_region_info *info, byoc_versions *versions) {
    const char *version = getenv(STUB_NAME "_version");
    versions->driver = version ? version : "2";
    versions->oldest_artifact = info ? find_text(info, "driver") : "1";
    versions->newest_artifact = info ? find_text(info, "driver") : versions->driver;
    return BYOC_OK;
}

const byoc_driver *byoc_get_driver(uint32_t abi_version) {
    static byoc_driver_2 table = {
        {sizeof(byoc_driver_2), BYOC_ABI_VERSION_2, STUB_NAME, compatible, arena_size, open_region, run, close_region,
         get_error},
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, read_versions,
    };
    table.base.name = getenv(STUB_NAME "_is_nameless") ? NULL : STUB_NAME;
    return abi_version == BYOC_ABI_VERSION_2 && !getenv(STUB_NAME "_is_new") ? &table.base : NULL;
}
