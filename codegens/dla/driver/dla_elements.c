/* What is computed element by element. */
#include "dla_kernels.h"
#include "dla_values.h"

#include <math.h>

static const char *add_integers(const dla_command *c, int64_t a, int64_t b, uint8_t *place) {
    int64_t one, other;
    if (!multiply(a - c->x_zero, c->mantissa, &one) || !multiply(b - c->other_zero, c->other_mantissa, &other) ||
        (other > 0 ? one > INT64_MAX - other : one < -INT64_MAX - other)) {
        return "a sum leaves the range of int64";
    }
    write_shifted(place, shift_half_even(one + other, c->shift), c);
    return NULL;
}

static float evaluate_function(const dla_command *c, float x) {
    float alpha = c->low, beta = c->high, inner;
    switch (c->kind) {
    case DLA_SIGMOID:
        return 1 / (1 + expf(-x));
    case DLA_TANH:
        return tanhf(x);
    case DLA_EXP:
        return expf(x);
    case DLA_SQRT:
        return sqrtf(x);
    case DLA_HARD_SIGMOID:
        inner = alpha * x + beta;
        return inner < 0 ? 0 : inner > 1 ? 1 : inner;
    case DLA_HARD_SWISH:
        inner = x / 6 + 0.5f;
        return x * (inner < 0 ? 0 : inner > 1 ? 1 : inner);
    case DLA_LEAKY_RELU:
        return x < 0 ? alpha * x : x;
    case DLA_ELU:
        return x < 0 ? alpha * (expf(x) - 1) : x;
    case DLA_ERF:
        return erff(x);
    case DLA_GELU:
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    case DLA_GELU_TANH:
        return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case DLA_RECIPROCAL:
        return 1 / x;
    default: /* SWISH */
        return x / (1 + expf(-alpha * x));
    }
}

static const char *execute_element(
    const dla_command *c, const uint8_t *x, const uint8_t *other, const uint8_t *table, uint8_t *place
) {
    int floats = c->y.dtype == DLA_FLOAT32;
    switch (c->opcode) {
    case DLA_ADD:
        if (floats) {
            write_float(place, clamp_float(read_float(x) + read_float(other), c));
            return NULL;
        }
        return add_integers(c, read_integer(x, c->x.dtype), read_integer(other, c->other.dtype), place);
    case DLA_MUL:
        if (floats) {
            float product = read_float(x) * read_float(other);
            write_float(place, clamp_float(product, c));
            return NULL;
        } else {
            int64_t a = read_integer(x, c->x.dtype) - c->x_zero;
            int64_t b = read_integer(other, c->other.dtype) - c->other_zero;
            if (a && (b > INT32_MAX || b < -INT32_MAX || a > INT32_MAX || a < -INT32_MAX)) {
                return "a product leaves the range of int64";
            }
            return write_rescaled(place, a * b, c);
        }
    case DLA_SCALE:
        if (floats) {
            float value = c->x.dtype == DLA_INT32 ? (float)read_integer(x, DLA_INT32) : read_float(x);
            write_float(place, clamp_float(value, c));
            return NULL;
        }
        return write_rescaled(place, read_integer(x, c->x.dtype) - c->x_zero, c);
    case DLA_TABLE:
        *place = table[(size_t)*x * c->other.channel_pitch];
        return NULL;
    default: /* FUNCTION */
        write_float(place, evaluate_function(c, read_float(x)));
        return NULL;
    }
}

const char *dla_execute_elements(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    int binary = c->opcode == DLA_ADD || c->opcode == DLA_MUL;
    const uint8_t *table = c->opcode == DLA_TABLE ? memory + find_element(&c->other, 0, 0, 0) : NULL;
    for (uint32_t row = 0; row < c->y.rows; row++) {
        for (uint32_t col = 0; col < c->y.cols; col++) {
            for (uint32_t channel = 0; channel < c->y.channels; channel++) {
                const uint8_t *x = memory + find_broadcast(&c->x, row, col, channel);
                const uint8_t *other = binary ? memory + find_broadcast(&c->other, row, col, channel) : NULL;
                const char *wrong = execute_element(c, x, other, table, to + find_element(result, row, col, channel));
                if (wrong) {
                    return wrong;
                }
            }
        }
    }
    return NULL;
}
