/* Opening and sharing of handles. */
#include "region_handle.h"

#include <stdlib.h>

static const char *const NO_MEMORY = "there is no memory left";

static void free_each(void **blocks, size_t count) {
    for (size_t i = 0; blocks && i < count; i++) {
        free(blocks[i]);
    }
    free(blocks);
}

void close_handle(const compiled_region *region, region_handle *handle) {
    const region_description *described = &region->description;
    region->driver->close(handle->opened);
    free_each(handle->input_copies, described->input_count);
    free_each(handle->spare_outputs, described->output_count);
    free(handle->inputs);
    free(handle->outputs);
    free(handle->input_bindings);
    free(handle->output_bindings);
    free(handle->arena);
    free(handle);
}

/* Allocate what a call needs besides onnxruntime's tensors. Returns 0 without memory. */
static int allocate_call(const compiled_region *region, region_handle *handle) {
    const region_description *described = &region->description;
    size_t inputs = described->input_count + 1, outputs = described->output_count + 1; /* never none */
    handle->inputs = calloc(inputs, sizeof *handle->inputs);
    handle->outputs = calloc(outputs, sizeof *handle->outputs);
    handle->input_copies = calloc(inputs, sizeof *handle->input_copies);
    handle->spare_outputs = calloc(outputs, sizeof *handle->spare_outputs);
    handle->input_bindings = calloc(inputs, sizeof *handle->input_bindings);
    handle->output_bindings = calloc(outputs, sizeof *handle->output_bindings);
    if (!handle->inputs || !handle->outputs || !handle->input_copies || !handle->spare_outputs ||
        !handle->input_bindings || !handle->output_bindings) {
        return 0;
    }
    for (size_t i = 0; i < described->output_count; i++) {
        if (region->output_positions[i] == NOWHERE) {
            handle->spare_outputs[i] = allocate_aligned(described->outputs[i].bytes);
            if (!handle->spare_outputs[i]) {
                return 0;
            }
        }
    }
    return 1;
}

static OrtStatus *open_driver_region(const compiled_region *region, region_handle *handle) {
    const byoc_driver *driver = region->driver;
    byoc_region_info *info = &handle->info;
    size_t size = driver->arena_size(info);
    info->arena_bytes = size == SIZE_MAX ? 65536 : size; /* `open` says what is wrong */
    info->arena = handle->arena = allocate_aligned(info->arena_bytes);
    if (!handle->arena) {
        return fail_region(region, "", NO_MEMORY);
    }
    int answer = driver->open(info, &handle->opened);
    if (answer != BYOC_OK) {
        return fail_in_driver(region, answer, driver->error(handle->opened));
    }
    if (!handle->opened) {
        return fail_in_driver(region, BYOC_FAILED, "open answers that all is well, and gives nothing");
    }
    if (size == SIZE_MAX) {
        return fail_in_driver(region, BYOC_BAD_ARTIFACT, "arena_size refuses what open takes");
    }
    return allocate_call(region, handle) ? NULL : fail_region(region, "", NO_MEMORY);
}

byoc_region_info make_info(const compiled_region *region) {
    const region_description *described = &region->description;
    byoc_region_info info = {
        sizeof info,
        region->name,
        described->file_count,
        region->blobs,
        described->text_count,
        described->texts,
        described->input_count,
        described->inputs,
        described->output_count,
        described->outputs,
        NULL,
        0,
    };
    return info;
}

OrtStatus *open_handle(const compiled_region *region, region_handle **made) {
    region_handle *handle = calloc(1, sizeof *handle);
    *made = NULL;
    if (!handle) {
        return fail_region(region, "", NO_MEMORY);
    }
    handle->info = make_info(region);
    OrtStatus *status = open_driver_region(region, handle);
    if (status) {
        close_handle(region, handle);
        return status;
    }
    *made = handle;
    return NULL;
}

void put_back(compiled_region *region, region_handle *handle) {
    pthread_mutex_lock(&region->lock);
    handle->next = region->free_handles;
    region->free_handles = handle;
    pthread_mutex_unlock(&region->lock);
}

OrtStatus *take_handle(compiled_region *region, region_handle **taken) {
    pthread_mutex_lock(&region->lock);
    *taken = region->free_handles;
    if (*taken) {
        region->free_handles = (*taken)->next;
    }
    pthread_mutex_unlock(&region->lock);
    return *taken ? NULL : open_handle(region, taken);
}
