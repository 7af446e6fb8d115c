/* What is computed element by element. */
#include "dla_kernels.h"
#include "dla_values.h"

#include <math.h>

dla_scaling dla_read_scaling(const dla_command *c, const uint8_t *memory, uint32_t channel) {
    dla_scaling s = c->scaling;
    uint64_t row = 0;
    if (!c->parameters.rows) {
        return s;
    }
    s.x_zero = read_row(&c->parameters, memory, row++, c->y.channels, channel);
    if (c->opcode == DLA_ADD || c->opcode == DLA_MUL) {
        s.other_zero = read_row(&c->parameters, memory, row++, c->y.channels, channel);
    }
    s.y_zero = read_row(&c->parameters, memory, row++, c->y.channels, channel);
    s.mantissa = (uint32_t)read_row(&c->parameters, memory, row++, c->y.channels, channel);
    if (c->opcode == DLA_ADD) {
        s.other_mantissa = (uint32_t)read_row(&c->parameters, memory, row++, c->y.channels, channel);
    }
    s.shift = (uint32_t)read_row(&c->parameters, memory, row++, c->y.channels, channel);
    s.low = (float)read_row(&c->parameters, memory, row++, c->y.channels, channel);
    s.high = (float)read_row(&c->parameters, memory, row, c->y.channels, channel);
    return s;
}

static const char *add_integers(uint32_t dtype, const dla_scaling *s, int64_t a, int64_t b, uint8_t *place) {
    int64_t one, other;
    if (!multiply(a - s->x_zero, s->mantissa, &one) || !multiply(b - s->other_zero, s->other_mantissa, &other) ||
        (other > 0 ? one > INT64_MAX - other : one < -INT64_MAX - other)) {
        return "a sum leaves the range of int64";
    }
    write_shifted(place, dtype, (double)shift_half_even(one + other, s->shift), s);
    return NULL;
}

static double limit_to_one(double x) {
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

double dla_evaluate_function(uint32_t kind, double x, float alpha, float beta) {
    volatile double product = alpha * x; /* rounded before a sum, also where a processor could do both at once */
    switch (kind) {
    case DLA_SIGMOID:
        return 1 / (1 + exp(-x));
    case DLA_TANH:
        return tanh(x);
    case DLA_EXP:
        return exp(x);
    case DLA_SQRT:
        return sqrt(x);
    case DLA_HARD_SIGMOID:
        return limit_to_one(product + beta);
    case DLA_HARD_SWISH:
        return x * limit_to_one(x / 6 + 0.5);
    case DLA_LEAKY_RELU:
        return x < 0 ? product : x;
    case DLA_ELU:
        return x < 0 ? alpha * expm1(x) : x;
    case DLA_ERF:
        return erf(x);
    case DLA_GELU:
        return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case DLA_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case DLA_RECIPROCAL:
        return 1 / x;
    case DLA_SWISH:
        return x / (1 + exp(-product));
    case DLA_HARD_GATE:
        return x * limit_to_one(product + beta);
    case DLA_NUMBER:
        return isnan(x) ? 0 : x;
    default: /* IDENTITY */
        return x;
    }
}

/* Return what SCALE makes of an element in float32: the real number of an activation, else the same number. */
static float scale_to_float(const dla_command *c, const dla_scaling *s, const uint8_t *x) {
    switch (c->x.dtype) {
    case DLA_FLOAT32:
        return read_float(x);
    case DLA_INT32:
        return (float)read_integer(x, DLA_INT32);
    default:
        return (float)ldexp((double)(read_integer(x, c->x.dtype) - s->x_zero) * s->mantissa, -(int)s->shift);
    }
}

static const char *execute_element(
    const dla_command *c, const dla_scaling *s, const uint8_t *x, const uint8_t *other, uint8_t *place
) {
    int floats = c->y.dtype == DLA_FLOAT32;
    switch (c->opcode) {
    case DLA_ADD:
        if (floats) {
            write_float(place, clamp_float(read_float(x) + read_float(other), s));
            return NULL;
        }
        return add_integers(
            c->y.dtype, s, read_integer(x, c->x.dtype), read_integer(other, c->other.dtype), place
        );
    case DLA_MUL:
        if (floats) {
            float product = read_float(x) * read_float(other);
            write_float(place, clamp_float(product, s));
            return NULL;
        } else {
            int64_t a = read_integer(x, c->x.dtype) - s->x_zero;
            int64_t b = read_integer(other, c->other.dtype) - s->other_zero;
            if (a && (b > INT32_MAX || b < -INT32_MAX || a > INT32_MAX || a < -INT32_MAX)) {
                return "a product leaves the range of int64";
            }
            return write_rescaled(place, c->y.dtype, a * b, s);
        }
    case DLA_SCALE:
        if (floats) {
            write_float(place, clamp_float(scale_to_float(c, s, x), s));
            return NULL;
        }
        if (c->x.dtype == DLA_FLOAT32) {
            double units = ldexp((double)read_float(x) * s->mantissa, -(int)s->shift);
            write_shifted(place, c->y.dtype, rint(units), s);
            return NULL;
        }
        return write_rescaled(place, c->y.dtype, read_integer(x, c->x.dtype) - s->x_zero, s);
    case DLA_TABLE:
        *place = other[(size_t)*x * c->other.channel_pitch];
        return NULL;
    default: /* FUNCTION */
        write_float(place, (float)dla_evaluate_function(c->kind, read_float(x), c->alpha, c->beta));
        return NULL;
    }
}

/* The place of what is read besides `x`: the other operand, or the table of a channel. */
static size_t find_other(const dla_command *c, uint32_t row, uint32_t col, uint32_t channel) {
    if (c->opcode == DLA_TABLE) {
        return find_element(&c->other, 0, c->other.cols == 1 ? 0 : channel, 0);
    }
    return c->other.rows ? find_broadcast(&c->other, row, col, channel) : 0;
}

const char *dla_execute_elements(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    for (uint32_t row = 0; row < c->y.rows; row++) {
        for (uint32_t col = 0; col < c->y.cols; col++) {
            for (uint32_t channel = 0; channel < c->y.channels; channel++) {
                const uint8_t *x = memory + find_broadcast(&c->x, row, col, channel);
                const uint8_t *other = memory + find_other(c, row, col, channel);
                const dla_scaling scaling = dla_read_scaling(c, memory, channel);
                if (scaling.shift > 62) {
                    return "a shift is not in [0, 62]";
                }
                const char *wrong = execute_element(
                    c, &scaling, x, other, to + find_element(result, row, col, channel)
                );
                if (wrong) {
                    return wrong;
                }
            }
        }
    }
    return NULL;
}
