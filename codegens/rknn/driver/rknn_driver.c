/* The driver of Rockchip's NPUs: it runs a region's .rknn file by the chip's runtime, librknnrt.
 *
 * Compile it with the folder of the runtime's header rknn_api.h among the include folders, and link it with
 * rknnrt. What is said here of the runtime is in Rockchip's "RKNPU User Guide, RKNN SDK", chapters on
 * `rknn_inputs_set` and `rknn_outputs_get`.
 *
 * The region's state and its inputs as the runtime wants them lie in the arena. The runtime allocates the
 * memories of the NPU itself, and frees them in `rknn_destroy`.
 */
#include "byoc_driver.h"
#include "rknn_api.h"

#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 160

struct byoc_region {
    const byoc_region_info *info;
    rknn_context context;
    int is_open; /* whether `context` is to be destroyed */
    rknn_input *inputs;
    rknn_output *outputs;
    rknn_tensor_attr *attributes; /* of the inputs */
    char message[MESSAGE_BYTES];
};

static size_t align(size_t bytes) {
    return (bytes + BYOC_ALIGNMENT - 1) / BYOC_ALIGNMENT * BYOC_ALIGNMENT;
}

static const byoc_blob *find_file(const byoc_region_info *info) {
    for (size_t i = 0; i < info->blob_count; i++) {
        if (strcmp(info->blobs[i].name, "region.rknn") == 0) {
            return &info->blobs[i];
        }
    }
    return NULL;
}

static size_t count_elements(const byoc_tensor *tensor) {
    size_t count = 1;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        count *= (size_t)tensor->shape[axis];
    }
    return count;
}

/* Return the bytes of an input as it is given to the runtime: float16 as it is, all else in float32. */
static size_t count_staged_bytes(const byoc_tensor *tensor) {
    return tensor->dtype == BYOC_FLOAT16 ? tensor->bytes : count_elements(tensor) * sizeof(float);
}

/* Return a sentence on the first tensor that cannot cross, NULL where all can. */
static const char *check_tensors(const byoc_region_info *info) {
    for (size_t i = 0; i < info->input_count + info->output_count; i++) {
        const byoc_tensor *tensor = i < info->input_count ? &info->inputs[i] : &info->outputs[i - info->input_count];
        size_t width = tensor->dtype == BYOC_INT8 ? 1 : tensor->dtype == BYOC_FLOAT16 ? 2 : sizeof(float);
        if (tensor->dtype != BYOC_FLOAT32 && tensor->dtype != BYOC_FLOAT16 && tensor->dtype != BYOC_INT8) {
            return "a tensor is neither float32, float16 nor int8";
        }
        if (tensor->rank < 0 || tensor->rank > RKNN_MAX_DIMS) {
            return "a tensor has more dimensions than the runtime knows";
        }
        if (tensor->bytes > UINT32_MAX / sizeof(float) || tensor->bytes != count_elements(tensor) * width) {
            return "a tensor has another size than its shape says";
        }
    }
    return NULL;
}

static int check_compatible(const byoc_region_info *info, const char **why) {
    const byoc_blob *file = find_file(info);
    *why = "";
    if (!file || file->bytes < 4 || file->bytes > UINT32_MAX || memcmp(file->data, "RKNN", 4) != 0) {
        *why = "the artifact has no region.rknn that is an RKNN file";
        return BYOC_BAD_ARTIFACT;
    }
    const char *wrong = check_tensors(info);
    if (wrong) {
        *why = wrong;
        return BYOC_INCOMPATIBLE;
    }
    return BYOC_OK;
}

static size_t count_state_bytes(const byoc_region_info *info) {
    return align(sizeof(byoc_region)) + align(info->input_count * sizeof(rknn_input)) +
           align(info->output_count * sizeof(rknn_output)) + align(info->input_count * sizeof(rknn_tensor_attr));
}

static size_t get_arena_size(const byoc_region_info *info) {
    const char *why;
    if (info->struct_size < sizeof *info || check_compatible(info, &why) != BYOC_OK) {
        return SIZE_MAX;
    }
    size_t total = count_state_bytes(info);
    for (size_t i = 0; i < info->input_count; i++) {
        total += align(count_staged_bytes(&info->inputs[i]));
    }
    return total;
}

/* Keep a sentence on a call of the runtime that failed, and return the status. */
static int fail(byoc_region *region, int status, const char *what, int code) {
    snprintf(region->message, sizeof region->message, "%s: %d", what, code);
    return status;
}

/* Ask the runtime about an input or output, and hold it to the tensor of the bundle. */
static int read_attribute(byoc_region *region, rknn_query_cmd command, size_t number, rknn_tensor_attr *attribute) {
    const byoc_region_info *info = region->info;
    int is_input = command == RKNN_QUERY_INPUT_ATTR;
    const byoc_tensor *tensor = is_input ? &info->inputs[number] : &info->outputs[number];
    memset(attribute, 0, sizeof *attribute);
    attribute->index = (uint32_t)number;
    int code = rknn_query(region->context, command, attribute, sizeof *attribute);
    if (code < 0) {
        return fail(region, BYOC_FAILED, "rknn_query fails at a tensor", code);
    }
    if (attribute->n_elems != count_elements(tensor)) {
        return fail(region, BYOC_BAD_ARTIFACT, "region.rknn is of another region: elements of a tensor",
                    (int)attribute->n_elems);
    }
    /* Integers of an output come as the runtime has them, so there they must be the bundle's. */
    rknn_tensor_type narrow = tensor->dtype == BYOC_INT8 ? RKNN_TENSOR_INT8 : RKNN_TENSOR_FLOAT16;
    if (!is_input && tensor->dtype != BYOC_FLOAT32 && attribute->type != narrow) {
        return fail(region, BYOC_BAD_ARTIFACT, "region.rknn has another type of an output", (int)attribute->type);
    }
    return BYOC_OK;
}

static int choose_cores(byoc_region *region) {
    static const struct {
        const char *name;
        rknn_core_mask mask;
    } choices[] = {
        {"0", RKNN_NPU_CORE_0},     {"1", RKNN_NPU_CORE_1},         {"2", RKNN_NPU_CORE_2},
        {"0_1", RKNN_NPU_CORE_0_1}, {"0_1_2", RKNN_NPU_CORE_0_1_2},
    };
    for (size_t i = 0; i < region->info->text_count; i++) {
        if (strcmp(region->info->texts[i].name, "cores") != 0) {
            continue;
        }
        for (size_t k = 0; k < sizeof choices / sizeof *choices; k++) {
            if (strcmp(region->info->texts[i].text, choices[k].name) == 0) {
                int code = rknn_set_core_mask(region->context, choices[k].mask);
                return code < 0 ? fail(region, BYOC_FAILED, "rknn_set_core_mask fails", code) : BYOC_OK;
            }
        }
    }
    return BYOC_OK; /* "auto": the runtime chooses, also on chips of one core, which have no mask */
}

static int load_file(byoc_region *region) {
    const byoc_region_info *info = region->info;
    const byoc_blob *file = find_file(info);
    rknn_input_output_num count;
    rknn_tensor_attr output;
    /* The runtime's signature has no const; it copies the file unless it is told otherwise. */
    int code = rknn_init(&region->context, (void *)(uintptr_t)file->data, (uint32_t)file->bytes, 0, NULL);
    if (code < 0) {
        return fail(region, BYOC_FAILED, "rknn_init fails", code);
    }
    region->is_open = 1;
    code = rknn_query(region->context, RKNN_QUERY_IN_OUT_NUM, &count, sizeof count);
    if (code < 0) {
        return fail(region, BYOC_FAILED, "rknn_query fails", code);
    }
    if (count.n_input != info->input_count || count.n_output != info->output_count) {
        return fail(region, BYOC_BAD_ARTIFACT, "region.rknn is of another region: inputs", (int)count.n_input);
    }
    int status = BYOC_OK;
    for (size_t i = 0; i < info->input_count && status == BYOC_OK; i++) {
        status = read_attribute(region, RKNN_QUERY_INPUT_ATTR, i, &region->attributes[i]);
    }
    for (size_t i = 0; i < info->output_count && status == BYOC_OK; i++) {
        status = read_attribute(region, RKNN_QUERY_OUTPUT_ATTR, i, &output);
    }
    return status == BYOC_OK ? choose_cores(region) : status;
}

/* Describe to the runtime what each run hands over: the staged inputs, and room for the outputs. */
static void describe_tensors(byoc_region *region, uint8_t *staged) {
    const byoc_region_info *info = region->info;
    for (size_t i = 0; i < info->input_count; i++) {
        rknn_input *input = &region->inputs[i];
        input->index = (uint32_t)i;
        input->buf = staged;
        input->size = (uint32_t)count_staged_bytes(&info->inputs[i]);
        input->pass_through = 0;
        input->type = info->inputs[i].dtype == BYOC_FLOAT16 ? RKNN_TENSOR_FLOAT16 : RKNN_TENSOR_FLOAT32;
        input->fmt = region->attributes[i].fmt;
        staged += align(input->size);
    }
    for (size_t i = 0; i < info->output_count; i++) {
        rknn_output *output = &region->outputs[i];
        output->index = (uint32_t)i;
        output->is_prealloc = 1;
        output->want_float = info->outputs[i].dtype == BYOC_FLOAT32;
        output->size = (uint32_t)info->outputs[i].bytes;
    }
}

static int open_region(const byoc_region_info *info, byoc_region **region) {
    *region = NULL;
    if (info->struct_size < sizeof *info || !info->arena || (uintptr_t)info->arena % BYOC_ALIGNMENT) {
        return BYOC_BAD_ARGUMENT;
    }
    size_t needed = get_arena_size(info);
    if (needed == SIZE_MAX) {
        return BYOC_BAD_ARTIFACT;
    }
    if (info->arena_bytes < needed) {
        return BYOC_BAD_ARGUMENT;
    }
    uint8_t *memory = info->arena;
    byoc_region *opened = info->arena;
    memset(memory, 0, count_state_bytes(info));
    memory += align(sizeof *opened);
    opened->info = info;
    opened->inputs = (rknn_input *)(void *)memory;
    memory += align(info->input_count * sizeof *opened->inputs);
    opened->outputs = (rknn_output *)(void *)memory;
    memory += align(info->output_count * sizeof *opened->outputs);
    opened->attributes = (rknn_tensor_attr *)(void *)memory;
    memory += align(info->input_count * sizeof *opened->attributes);
    *region = opened;
    int status = load_file(opened);
    if (status == BYOC_OK) {
        describe_tensors(opened, memory);
    }
    return status;
}

/* Write an input as the runtime wants it. An image that the runtime has as NHWC is transposed, since it takes
 * no other; an integer becomes the number that it stands for, of which the runtime makes the same integer. */
static void stage_input(const byoc_tensor *tensor, const rknn_tensor_attr *attribute, const void *from, void *to) {
    size_t channels = 1, area = 1, images = count_elements(tensor);
    float scale = attribute->qnt_type == RKNN_TENSOR_QNT_NONE ? 1.0f : attribute->scale;
    int zero_point = attribute->qnt_type == RKNN_TENSOR_QNT_NONE ? 0 : attribute->zp;
    if (tensor->rank == 4 && attribute->fmt == RKNN_TENSOR_NHWC) {
        images = (size_t)tensor->shape[0];
        channels = (size_t)tensor->shape[1];
        area = (size_t)tensor->shape[2] * (size_t)tensor->shape[3];
    }
    for (size_t image = 0; image < images; image++) {
        for (size_t channel = 0; channel < channels; channel++) {
            for (size_t pixel = 0; pixel < area; pixel++) {
                size_t source = (image * channels + channel) * area + pixel;
                size_t place = (image * area + pixel) * channels + channel;
                if (tensor->dtype == BYOC_FLOAT16) {
                    ((uint16_t *)to)[place] = ((const uint16_t *)from)[source];
                } else if (tensor->dtype == BYOC_INT8) {
                    ((float *)to)[place] = (float)(((const int8_t *)from)[source] - zero_point) * scale;
                } else {
                    ((float *)to)[place] = ((const float *)from)[source];
                }
            }
        }
    }
}

static int run_region(byoc_region *region, const void *const *inputs, void *const *outputs) {
    const byoc_region_info *info = region->info;
    region->message[0] = 0;
    for (size_t i = 0; i < info->input_count; i++) {
        stage_input(&info->inputs[i], &region->attributes[i], inputs[i], region->inputs[i].buf);
    }
    int code = rknn_inputs_set(region->context, (uint32_t)info->input_count, region->inputs);
    if (code < 0) {
        return fail(region, BYOC_FAILED, "rknn_inputs_set fails", code);
    }
    code = rknn_run(region->context, NULL);
    if (code < 0) {
        return fail(region, BYOC_FAILED, "rknn_run fails", code);
    }
    for (size_t i = 0; i < info->output_count; i++) {
        region->outputs[i].buf = outputs[i];
    }
    code = rknn_outputs_get(region->context, (uint32_t)info->output_count, region->outputs, NULL);
    if (code < 0) {
        return fail(region, BYOC_FAILED, "rknn_outputs_get fails", code);
    }
    code = rknn_outputs_release(region->context, (uint32_t)info->output_count, region->outputs);
    return code < 0 ? fail(region, BYOC_FAILED, "rknn_outputs_release fails", code) : BYOC_OK;
}

static void close_region(byoc_region *region) {
    if (region && region->is_open) {
        rknn_destroy(region->context);
        region->is_open = 0;
    }
}

static const char *get_error(const byoc_region *region) {
    return region ? region->message : "";
}

extern const byoc_driver byoc_driver_rknn;
const byoc_driver byoc_driver_rknn = {
    sizeof(byoc_driver), BYOC_ABI_VERSION, "rknn", check_compatible, get_arena_size,
    open_region, run_region, close_region, get_error,
};

/* A program that links several drivers takes their tables by name, so there each is without an entry point. */
#ifndef BYOC_LINKED
const byoc_driver *byoc_get_driver(uint32_t abi_version) {
    return abi_version == BYOC_ABI_VERSION ? &byoc_driver_rknn : NULL;
}
#endif
