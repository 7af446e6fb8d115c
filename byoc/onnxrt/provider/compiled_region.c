/* Opening and running of regions. */
#include "compiled_region.h"

#include "region_handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const NO_MEMORY = "there is no memory left";

OrtStatus *make_failure(const OrtApi *api, const char *name, const char *what, const char *why) {
    char message[MESSAGE_BYTES];
    snprintf(message, sizeof message, "byoc: %s: %s%s%s", name, what, *what ? ": " : "", why);
    return ort_create_status(api, ORT_EP_FAIL, message);
}

OrtStatus *fail_region(const compiled_region *region, const char *what, const char *why) {
    return make_failure(region->api, region->name, what, why);
}

OrtStatus *fail_in_driver(const compiled_region *region, int answer, const char *why) {
    static const char *const meanings[] = {
        "ok", "incompatible", "bad artifact", "bad argument", "failed", "busy", "cancelled"
    };
    char what[MESSAGE_BYTES / 2];
    snprintf(what, sizeof what, "driver %s", region->driver->name);
    if (!why || !*why) {
        why = answer >= 0 && answer < 7 ? meanings[answer] : "an unknown failure";
    }
    return fail_region(region, what, why);
}

/* Return an input where the driver may read it: in place, or as a copy that is aligned. */
static const void *align_input(const byoc_tensor *tensor, void *data, void **copy) {
    size_t size = get_element_size(tensor->dtype);
    size = size > 8 ? 8 : size; /* a complex number is aligned as its halves are */
    if (!data || (uintptr_t)data % size == 0) {
        return data;
    }
    if (!*copy && !(*copy = allocate_aligned(tensor->bytes))) {
        return NULL;
    }
    return memcpy(*copy, data, tensor->bytes);
}

static OrtStatus *point_to_inputs(
    const compiled_region *region, const OrtKernelContext *context, region_handle *handle
) {
    const region_description *described = &region->description;
    for (size_t i = 0; i < described->input_count; i++) {
        const byoc_tensor *tensor = &described->inputs[i];
        const OrtValue *value = NULL;
        size_t bytes = 0;
        void *data = NULL;
        OrtStatus *status = ort_get_input(region->api, context, region->input_positions[i], &value);
        if (!status && !value) {
            return fail_region(region, tensor->name, "the input is not given");
        }
        status = status ? status : ort_tensor_bytes(region->api, value, &bytes);
        status = status ? status : ort_tensor_data(region->api, (OrtValue *)(uintptr_t)value, &data);
        if (status) {
            return status;
        }
        if (bytes != tensor->bytes) {
            char why[80];
            snprintf(
                why, sizeof why, "the input has %zu bytes, and the region takes %zu", bytes,
                tensor->bytes
            );
            return fail_region(region, tensor->name, why);
        }
        if (region->device && region->passed_inputs[i]) {
            handle->inputs[i] = data; /* by which the tensor is known; nothing need lie there */
            continue;
        }
        handle->inputs[i] = align_input(tensor, data, &handle->input_copies[i]);
        if (!handle->inputs[i] && bytes) {
            return fail_region(region, tensor->name, NO_MEMORY);
        }
    }
    return NULL;
}

/* Let a region's tensors pass on the device, where some do, and its driver can. */
void use_device(compiled_region *region, device_tensors *device) {
    const region_description *described = &region->description;
    int is_used = 0;
    for (size_t i = 0; i < described->input_count; i++) {
        is_used |= region->passed_inputs[i];
    }
    for (size_t i = 0; i < described->output_count; i++) {
        is_used |= region->output_readers[i] > 0;
    }
    region->device = is_used && can_pass_tensors(region->driver) ? device : NULL;
}

static OrtStatus *point_to_outputs(
    const compiled_region *region, OrtKernelContext *context, region_handle *handle
) {
    const region_description *described = &region->description;
    for (size_t i = 0; i < described->output_count; i++) {
        const byoc_tensor *tensor = &described->outputs[i];
        OrtValue *value = NULL;
        if (region->output_positions[i] == NOWHERE) {
            handle->outputs[i] = handle->spare_outputs[i];
            continue;
        }
        OrtStatus *status = ort_get_output(
            region->api, context, region->output_positions[i], tensor->shape, (size_t)tensor->rank,
            &value
        );
        status = status ? status : ort_tensor_data(region->api, value, &handle->outputs[i]);
        if (status) {
            return status;
        }
    }
    return NULL;
}

/* Bind the tensors of a call: in buffers those that pass on the device. */
static OrtStatus *bind_tensors(const compiled_region *region, region_handle *handle) {
    const region_description *described = &region->description;
    for (size_t i = 0; i < described->input_count; i++) {
        byoc_binding *bound = &handle->input_bindings[i];
        *bound = (byoc_binding){(void *)(uintptr_t)handle->inputs[i], NULL, 0};
        if (region->passed_inputs[i]) {
            if (!find_tensor(region->device, handle->inputs[i], &bound->buffer)) {
                return fail_region(
                    region, described->inputs[i].name,
                    "the region that makes it left it on the device, and onnxruntime put something "
                    "between the two; turn its optimizations off"
                );
            }
            bound->data = bound->buffer ? NULL : bound->data;
        }
    }
    for (size_t i = 0; i < described->output_count; i++) {
        byoc_binding *bound = &handle->output_bindings[i];
        *bound = (byoc_binding){handle->outputs[i], NULL, 0};
        if (region->output_readers[i]) { /* without memory on the device it passes as others do */
            bound->buffer = take_buffer(region->device, region->driver, described->outputs[i].bytes);
            bound->data = bound->buffer ? NULL : bound->data;
        }
    }
    return NULL;
}

/* Note the outputs that are on the device where the run went well, and end the reading of inputs. */
static OrtStatus *unbind_tensors(const compiled_region *region, region_handle *handle, int is_done) {
    const region_description *described = &region->description;
    OrtStatus *status = NULL;
    for (size_t i = 0; i < described->output_count; i++) {
        if (!region->output_readers[i]) {
            continue;
        }
        byoc_buffer *buffer = handle->output_bindings[i].buffer;
        handle->output_bindings[i].buffer = NULL;
        int is_noted = is_done && !status &&
                       note_tensor(
                           region->device, handle->outputs[i], buffer, region->output_readers[i]
                       );
        if (!is_noted) {
            give_buffer(region->device, buffer);
            status = is_done && !status ? fail_region(region, "", NO_MEMORY) : status;
        }
    }
    for (size_t i = 0; i < described->input_count; i++) {
        int is_first = 1; /* one tensor may be several inputs, and has been counted once */
        for (size_t k = 0; k < i; k++) {
            is_first &= !region->passed_inputs[k] || handle->inputs[k] != handle->inputs[i];
        }
        if (region->passed_inputs[i] && is_first) {
            end_reading(region->device, handle->inputs[i]);
        }
    }
    return status;
}

/* Run a region some of whose tensors pass on the device. */
static OrtStatus *run_on_device(const compiled_region *region, region_handle *handle) {
    const byoc_driver_2 *driver = BYOC_TABLE_2(region->driver);
    byoc_call call = {sizeof call, handle->input_bindings, handle->output_bindings, 0, NULL, NULL, NULL};
    OrtStatus *status = bind_tensors(region, handle);
    int answer = BYOC_FAILED;
    if (!status) {
        answer = driver->submit(handle->opened, &call);
        answer = answer == BYOC_OK ? driver->wait(handle->opened, UINT64_MAX) : answer;
    }
    if (!status && answer != BYOC_OK) {
        status = fail_in_driver(region, answer, region->driver->error(handle->opened));
    }
    OrtStatus *unbound = unbind_tensors(region, handle, answer == BYOC_OK);
    return status ? status : unbound;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context) {
    compiled_region *region = (compiled_region *)info;
    region_handle *handle;
    (void)state;
    OrtStatus *status = take_handle(region, &handle);
    if (status) {
        return status;
    }
    status = point_to_inputs(region, context, handle);
    status = status ? status : point_to_outputs(region, context, handle);
    if (!status && region->device) {
        status = run_on_device(region, handle);
    } else if (!status) {
        int answer = region->driver->run(handle->opened, handle->inputs, handle->outputs);
        if (answer != BYOC_OK) {
            status = fail_in_driver(region, answer, region->driver->error(handle->opened));
        }
    }
    put_back(region, handle);
    return status;
}

/* All that a call needs is in the region itself. */
static OrtStatus *create_state(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **state) {
    (void)context;
    *state = info;
    return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) {
    (void)info;
    (void)state;
}

OrtStatus *make_region(
    const OrtApi *api, const char *name, const uint8_t *bytes, size_t count, compiled_region **made
) {
    compiled_region *region = calloc(1, sizeof *region);
    *made = NULL;
    if (!region) {
        return make_failure(api, name, "", NO_MEMORY);
    }
    if (pthread_mutex_init(&region->lock, NULL)) {
        free(region);
        return make_failure(api, name, "", NO_MEMORY);
    }
    *made = region;
    region->base = (OrtNodeComputeInfo){ORT_VERSION, create_state, compute, release_state};
    region->api = api;
    const char *wrong = read_description(bytes, count, &region->description);
    if (wrong) {
        return make_failure(api, name, "", wrong);
    }
    const region_description *described = &region->description;
    name = *name ? name : described->region;
    region->name = malloc(strlen(name) + 1);
    region->blobs = calloc(described->file_count + 1, sizeof *region->blobs);
    region->input_positions = calloc(described->input_count + 1, sizeof *region->input_positions);
    region->output_positions = calloc(described->output_count + 1, sizeof *region->output_positions);
    region->passed_inputs = calloc(described->input_count + 1, sizeof *region->passed_inputs);
    region->output_readers = calloc(described->output_count + 1, sizeof *region->output_readers);
    if (!region->name || !region->blobs || !region->input_positions || !region->output_positions ||
        !region->passed_inputs || !region->output_readers) {
        return make_failure(api, name, "", NO_MEMORY);
    }
    strcpy(region->name, name);
    return NULL;
}

OrtStatus *open_compiled_region(compiled_region *region, int folder, const byoc_driver *driver) {
    const region_description *described = &region->description;
    for (size_t i = 0; i < described->file_count; i++) {
        const described_file *file = &described->files[i];
        void *content;
        const char *wrong = read_bundle_file(folder, file->path, file->bytes, file->digest, &content);
        if (wrong) {
            return fail_region(region, file->path, wrong);
        }
        region->blobs[i] = (byoc_blob){file->name, content, (size_t)file->bytes};
    }
    region_handle *handle;
    region->driver = driver;
    const char *why = "";
    byoc_region_info info = make_info(region);
    int answer = driver->compatible(&info, &why);
    if (answer != BYOC_OK) {
        return fail_in_driver(region, answer, why);
    }
    OrtStatus *status = open_handle(region, &handle);
    if (!status) {
        put_back(region, handle);
    }
    return status;
}

void release_region(compiled_region *region) {
    if (!region) {
        return;
    }
    while (region->free_handles) {
        region_handle *handle = region->free_handles;
        region->free_handles = handle->next;
        close_handle(region, handle);
    }
    for (size_t i = 0; region->blobs && i < region->description.file_count; i++) {
        free((void *)(uintptr_t)region->blobs[i].data);
    }
    free_description(&region->description);
    free(region->blobs);
    free(region->input_positions);
    free(region->output_positions);
    free(region->passed_inputs);
    free(region->output_readers);
    free(region->name);
    pthread_mutex_destroy(&region->lock);
    free(region);
}
