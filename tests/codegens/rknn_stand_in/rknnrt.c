/* A stand-in for librknnrt in tests: it computes Relu, and is as particular as the runtime is.
 *
 * A file is "RKNN", the type of the tensors, zero point, scale, rank and extents (toolkit/rknn/api.py writes it). An
 * image enters as NHWC and leaves as NCHW; integers are made of floats by the scale of the input. */
#include "rknn_api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t type, zero_point;
    float scale;
    uint32_t rank, extents[RKNN_MAX_DIMS], elements;
    rknn_core_mask cores;
    float *values; /* what was set, in the order of NCHW; integers are whole numbers here */
} network;

static network *find(rknn_context context) {
    return (network *)(uintptr_t)context;
}

int rknn_init(rknn_context *context, void *model, uint32_t size, uint32_t flag, rknn_init_extend *extend) {
    network *made = calloc(1, sizeof *made);
    (void)extend;
    *context = (rknn_context)(uintptr_t)made;
    if (!made || flag || size < 20) {
        free(made);
        return -6;
    }
    memcpy(&made->type, (uint8_t *)model + 4, 16);
    if (made->rank > RKNN_MAX_DIMS || size != 20 + 4 * made->rank) {
        free(made);
        return -6;
    }
    memcpy(made->extents, (uint8_t *)model + 20, 4 * made->rank);
    made->elements = 1;
    for (uint32_t i = 0; i < made->rank; i++) {
        made->elements *= made->extents[i];
    }
    made->values = calloc(made->elements, sizeof *made->values);
    return made->values ? RKNN_SUCC : -4;
}

int rknn_query(rknn_context context, rknn_query_cmd command, void *info, uint32_t size) {
    network *of = find(context);
    if (command == RKNN_QUERY_IN_OUT_NUM) {
        rknn_input_output_num count = {1, 1};
        memcpy(info, &count, size);
        return RKNN_SUCC;
    }
    rknn_tensor_attr *told = info;
    told->n_dims = of->rank;
    told->n_elems = of->elements;
    told->type = (rknn_tensor_type)of->type;
    told->qnt_type = of->type == RKNN_TENSOR_INT8 ? RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC : RKNN_TENSOR_QNT_NONE;
    told->zp = of->zero_point;
    told->scale = of->scale;
    told->fmt = of->rank != 4 ? RKNN_TENSOR_UNDEFINED : command == RKNN_QUERY_INPUT_ATTR ? RKNN_TENSOR_NHWC : RKNN_TENSOR_NCHW;
    return size == sizeof *told ? RKNN_SUCC : RKNN_ERR_FAIL;
}

int rknn_set_core_mask(rknn_context context, rknn_core_mask mask) {
    find(context)->cores = mask;
    return mask == RKNN_NPU_CORE_2 ? RKNN_ERR_FAIL : RKNN_SUCC; /* this chip has two */
}

int rknn_inputs_set(rknn_context context, uint32_t count, rknn_input inputs[]) {
    network *of = find(context);
    const float *given = inputs[0].buf;
    uint32_t channels = of->rank == 4 ? of->extents[1] : 1;
    uint32_t area = of->rank == 4 ? of->extents[2] * of->extents[3] : 1;
    if (count != 1 || inputs[0].type != RKNN_TENSOR_FLOAT32 || inputs[0].size != of->elements * sizeof *given ||
        (of->rank == 4 && inputs[0].fmt != RKNN_TENSOR_NHWC) || inputs[0].pass_through) {
        return -8;
    }
    for (uint32_t i = 0; i < of->elements; i++) {
        uint32_t image = i / (channels * area), channel = i / area % channels, pixel = i % area;
        float value = of->rank == 4 ? given[(image * area + pixel) * channels + channel] : given[i];
        if (of->type == RKNN_TENSOR_INT8) {
            value = fmaxf(-128.0f, fminf(127.0f, roundf(value / of->scale) + (float)of->zero_point));
        }
        of->values[i] = value;
    }
    return RKNN_SUCC;
}

int rknn_run(rknn_context context, rknn_run_extend *extend) {
    network *of = find(context);
    (void)extend;
    for (uint32_t i = 0; i < of->elements; i++) {
        if (of->values[i] == 666.0f) {
            return RKNN_ERR_FAIL; /* for the test of a run that fails */
        }
        of->values[i] = fmaxf(of->values[i], of->type == RKNN_TENSOR_INT8 ? (float)of->zero_point : 0.0f);
    }
    return RKNN_SUCC;
}

int rknn_outputs_get(rknn_context context, uint32_t count, rknn_output outputs[], rknn_output_extend *extend) {
    network *of = find(context);
    (void)extend;
    if (count != 1 || !outputs[0].is_prealloc || outputs[0].want_float != (of->type == RKNN_TENSOR_FLOAT32)) {
        return -9;
    }
    for (uint32_t i = 0; i < of->elements; i++) {
        if (outputs[0].want_float) {
            ((float *)outputs[0].buf)[i] = of->values[i];
        } else {
            ((int8_t *)outputs[0].buf)[i] = (int8_t)of->values[i];
        }
    }
    return RKNN_SUCC;
}

int rknn_outputs_release(rknn_context context, uint32_t count, rknn_output outputs[]) {
    (void)context;
    (void)outputs;
    return count == 1 ? RKNN_SUCC : RKNN_ERR_FAIL;
}

int rknn_destroy(rknn_context context) {
    free(find(context)->values);
    free(find(context));
    return RKNN_SUCC;
}
