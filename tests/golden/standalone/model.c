/* net: the steps of the model in order. See model.h.
 *
 * The plan of the arena has 4224 bytes, which no plan can beat.
 */
#include "model.h"

#include "kernels.h"
#include "nodes.h"
#include <math.h>
#include <string.h>

#ifdef MODEL_PROFILE
#define STEP(kind) model_profile(kind)
#else
#define STEP(kind)
#endif
#define AT(offset) ((void *)(arena + (offset)))
/* Without const: an array of const elements is no const object, to which a const void pointer could point. */
#define WEIGHT(offset) ((void *)(weights + (offset)))
#define IS_TRUE(truth) (*(const unsigned char *)(truth) != 0)

static const int64_t model_inputs_shape_0[] = {1, 2, 6, 6};
const model_tensor model_inputs[] = {
    {"x", 1, 4, model_inputs_shape_0, 72, 288},
    {NULL, 0, 0, NULL, 0, 0},
};
static const int64_t model_outputs_shape_0[] = {1, 3, 6, 6};
const model_tensor model_outputs[] = {
    {"y", 1, 4, model_outputs_shape_0, 108, 432},
    {NULL, 0, 0, NULL, 0, 0},
};
const model_noise model_noises[] = {
    {0, 0, 0},
};

static const kernel_conv conv_0 = {1, 1, 2, 3, 6, 6, 6, 6, {3, 3, 1, 1, 1, 1, 1, 1}, {0, 0.0f, INFINITY}};
static const kernel_rows rows_1 = {1, 108};

/* The first bytes of the SHA-256 of all weights behind the header. */
static const unsigned char identity[8] = {148, 230, 102, 194, 249, 227, 110, 53};

static int check(model *opened, const void *weights, size_t weight_bytes) {
    const unsigned char *bytes = weights;
    uint32_t mark;
    opened->error = "the weights are not a file of weights";
    if (!weights || (uintptr_t)weights % 64 || weight_bytes < 64 || memcmp(bytes, "BYOCWGHT", 8) != 0) {
        return 1;
    }
    memcpy(&mark, bytes + 8, sizeof mark);
    if (mark != 0x01020304) {
        opened->error = "the weights are in another byte order than this machine's (export-c --byte-order)";
        return 1;
    }
    if (weight_bytes != MODEL_WEIGHT_BYTES || memcmp(bytes + 24, identity, sizeof identity) != 0) {
        opened->error = "the weights are those of another model";
        return 1;
    }
    opened->error = "";
    return 0;
}

int model_check(const void *weights, size_t weight_bytes) {
    unsigned char digest[32];
    model probe;
    if (check(&probe, weights, weight_bytes)) {
        return 1;
    }
    kernel_digest((const unsigned char *)weights + 64, weight_bytes - 64, digest);
    return memcmp(digest, identity, sizeof identity) != 0;
}

size_t model_arena_bytes(const void *weights, size_t weight_bytes) {
    model probe;
    return check(&probe, weights, weight_bytes) ? 0 : MODEL_PLAN_BYTES;
}

int model_open(model *opened, const void *weights, size_t weight_bytes, void *arena, size_t arena_bytes) {
    if (check(opened, weights, weight_bytes)) {
        return 1;
    }
    if (!arena || (uintptr_t)arena % 64 || arena_bytes < MODEL_PLAN_BYTES) {
        opened->error = "the arena is smaller than model_arena_bytes says, or not aligned to 64 bytes";
        return 1;
    }
    opened->weights = weights;
    opened->arena = arena;
    return 0;
}

size_t model_own_bytes(const void *weights, size_t weight_bytes) {
    model probe;
    return check(&probe, weights, weight_bytes) ? SIZE_MAX : 0;
}

int model_open_shared(model *opened, const void *weights, size_t weight_bytes, void *shared, void *own,
                      size_t own_bytes) {
    (void)own;
    (void)own_bytes;
    return model_open(opened, weights, weight_bytes, shared, MODEL_PLAN_BYTES);
}

int model_fits(model *probe, const void *weights, size_t weight_bytes) {
    return !check(probe, weights, weight_bytes);
}

void model_close(model *opened) {
    opened->arena = NULL;
}

int model_run(model *opened, const void *const *inputs, void *const *outputs) {
    const unsigned char *const weights = opened->weights;
    unsigned char *const arena = opened->arena;
    (void)weights;
    (void)arena;
    (void)inputs;
    memcpy(AT(3904), inputs[0], 288);
    /* 0: Conv 'a' + Relu 'b' */
    STEP("Conv");
    kernel_convolve(&conv_0, AT(3904), WEIGHT(64), NULL, AT(3456), AT(0), KERNEL_WHOLE);
    /* 1: Sigmoid 'c' */
    STEP("Sigmoid");
    kernel_sigmoid(&rows_1, AT(3456), AT(0));
    /* 2: Add 'y' */
    STEP("Add");
    node0_add(AT(3456), AT(0), AT(3456));
    memcpy(outputs[0], AT(3456), 432);
    STEP(NULL);
    return 0;
}

const char *model_error(const model *opened) {
    return opened->error;
}
