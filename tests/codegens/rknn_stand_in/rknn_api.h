/* A stand-in for the header of Rockchip's runtime, for tests: the declarations that byoc's driver uses, under the
 * names and with the meaning that the public documentation of librknnrt gives them. Their numbers and layouts are
 * those of rknnrt.c beside this file, and need not be the vendor's: a driver is compiled with the vendor's header. */
#ifndef RKNN_API_H
#define RKNN_API_H

#include <stdint.h>

#define RKNN_MAX_DIMS 16
#define RKNN_SUCC 0
#define RKNN_ERR_FAIL (-1)

typedef uint64_t rknn_context;
typedef enum { RKNN_TENSOR_FLOAT32, RKNN_TENSOR_FLOAT16, RKNN_TENSOR_INT8 } rknn_tensor_type;
typedef enum { RKNN_TENSOR_NCHW, RKNN_TENSOR_NHWC, RKNN_TENSOR_UNDEFINED = 3 } rknn_tensor_format;
typedef enum { RKNN_TENSOR_QNT_NONE, RKNN_TENSOR_QNT_DFP, RKNN_TENSOR_QNT_AFFINE_ASYMMETRIC } rknn_tensor_qnt_type;
typedef enum { RKNN_QUERY_IN_OUT_NUM, RKNN_QUERY_INPUT_ATTR, RKNN_QUERY_OUTPUT_ATTR } rknn_query_cmd;
typedef enum {
    RKNN_NPU_CORE_AUTO = 0,
    RKNN_NPU_CORE_0 = 1,
    RKNN_NPU_CORE_1 = 2,
    RKNN_NPU_CORE_2 = 4,
    RKNN_NPU_CORE_0_1 = 3,
    RKNN_NPU_CORE_0_1_2 = 7
} rknn_core_mask;

typedef struct {
    uint32_t n_input, n_output;
} rknn_input_output_num;

typedef struct {
    uint32_t index, n_dims, dims[RKNN_MAX_DIMS], n_elems;
    rknn_tensor_format fmt;
    rknn_tensor_type type;
    rknn_tensor_qnt_type qnt_type;
    int32_t zp;
    float scale;
} rknn_tensor_attr;

typedef struct {
    uint32_t index;
    void *buf;
    uint32_t size;
    uint8_t pass_through;
    rknn_tensor_type type;
    rknn_tensor_format fmt;
} rknn_input;

typedef struct {
    uint8_t want_float, is_prealloc;
    uint32_t index;
    void *buf;
    uint32_t size;
} rknn_output;

typedef struct rknn_init_extend rknn_init_extend;
typedef struct rknn_run_extend rknn_run_extend;
typedef struct rknn_output_extend rknn_output_extend;

int rknn_init(rknn_context *context, void *model, uint32_t size, uint32_t flag, rknn_init_extend *extend);
int rknn_query(rknn_context context, rknn_query_cmd command, void *info, uint32_t size);
int rknn_set_core_mask(rknn_context context, rknn_core_mask mask);
int rknn_inputs_set(rknn_context context, uint32_t count, rknn_input inputs[]);
int rknn_run(rknn_context context, rknn_run_extend *extend);
int rknn_outputs_get(rknn_context context, uint32_t count, rknn_output outputs[], rknn_output_extend *extend);
int rknn_outputs_release(rknn_context context, uint32_t count, rknn_output outputs[]);
int rknn_destroy(rknn_context context);

#endif
