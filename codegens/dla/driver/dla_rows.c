/* What is computed of whole rows, pixels and tensors: matrix products, normalizations, limits and levels. */
#include "dla_kernels.h"
#include "dla_values.h"

#include <math.h>

#define LANES 16

static float multiply_floats(
    const dla_command *c, const uint8_t *memory, uint32_t row, uint32_t col, uint32_t channel
) {
    const uint8_t *a = memory + find_element(&c->x, row, col, 0);
    const uint8_t *b = memory + find_element(&c->other, row, 0, channel);
    float sum = 0;
    for (uint32_t k = 0; k < c->x.channels; k++) {
        sum += read_float(a + (size_t)k * c->x.channel_pitch) * read_float(b + (size_t)k * c->other.pixel_pitch);
    }
    return sum;
}

/* The zero points are checked, so that no sum of up to 2**32 products leaves int64. */
static int64_t multiply_integers(
    const dla_command *c, const uint8_t *memory, uint32_t row, uint32_t col, uint32_t channel
) {
    const uint8_t *a = memory + find_element(&c->x, row, col, 0);
    const uint8_t *b = memory + find_element(&c->other, row, 0, channel);
    int64_t sum = 0;
    for (uint32_t k = 0; k < c->x.channels; k++) {
        int64_t one = read_integer(a + (size_t)k * c->x.channel_pitch, c->x.dtype) - c->scaling.x_zero;
        sum += one * (read_integer(b + (size_t)k * c->other.pixel_pitch, c->other.dtype) - c->scaling.other_zero);
    }
    return sum;
}

const char *dla_execute_matmul(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    for (uint32_t row = 0; row < c->y.rows; row++) {
        for (uint32_t col = 0; col < c->y.cols; col++) {
            for (uint32_t channel = 0; channel < c->y.channels; channel++) {
                uint8_t *place = to + find_element(result, row, col, channel);
                if (c->y.dtype == DLA_FLOAT32) {
                    write_float(place, clamp_float(multiply_floats(c, memory, row, col, channel), &c->scaling));
                    continue;
                }
                int64_t sum = multiply_integers(c, memory, row, col, channel);
                if (sum <= INT32_MIN || sum > INT32_MAX) {
                    return "a sum leaves the range of int32";
                }
                const char *wrong = write_rescaled(place, c->y.dtype, sum, &c->scaling);
                if (wrong) {
                    return wrong;
                }
            }
        }
    }
    return NULL;
}

/* The channels of one pixel, in `x` and in the result, which may be the same bytes. */
typedef struct pixel {
    const uint8_t *x;
    uint8_t *y;
    size_t x_pitch, y_pitch;
    uint32_t count;
} pixel;

/* Return the sum of lanes. A sum of thousands of numbers in one lane would be off by many roundings. */
static float add_lanes(const float sums[LANES]) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) {
        sum += sums[lane];
    }
    return sum;
}

static void compute_softmax(const pixel *p) {
    float most = -INFINITY, sums[LANES] = {0};
    for (uint32_t k = 0; k < p->count; k++) {
        float value = read_float(p->x + k * p->x_pitch);
        most = value > most || value != value ? value : most;
    }
    for (uint32_t k = 0; k < p->count; k++) {
        float value = expf(read_float(p->x + k * p->x_pitch) - most);
        write_float(p->y + k * p->y_pitch, value);
        sums[k % LANES] += value;
    }
    const float sum = add_lanes(sums);
    for (uint32_t k = 0; k < p->count; k++) {
        write_float(p->y + k * p->y_pitch, read_float(p->y + k * p->y_pitch) / sum);
    }
}

static float read_factor(const uint8_t *memory, const dla_box *factor, uint32_t channel, float absent) {
    return factor->rows ? read_float(memory + find_element(factor, 0, 0, channel)) : absent;
}

static void normalize_pixel(const dla_command *c, const uint8_t *memory, const pixel *p) {
    float sums[LANES] = {0}, squares[LANES] = {0};
    for (uint32_t k = 0; c->kind == DLA_LAYER && k < p->count; k++) {
        sums[k % LANES] += read_float(p->x + k * p->x_pitch);
    }
    const float mean = add_lanes(sums) / (float)p->count;
    for (uint32_t k = 0; k < p->count; k++) {
        float distance = read_float(p->x + k * p->x_pitch) - mean;
        squares[k % LANES] += distance * distance;
    }
    const float deviation = sqrtf(add_lanes(squares) / (float)p->count + c->alpha);
    for (uint32_t k = 0; k < p->count; k++) {
        float value = (read_float(p->x + k * p->x_pitch) - mean) / deviation;
        value = value * read_factor(memory, &c->other, k, 1) + read_factor(memory, &c->parameters, k, 0);
        write_float(p->y + k * p->y_pitch, value);
    }
}

void dla_execute_normalize(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    for (uint32_t row = 0; row < c->y.rows; row++) {
        for (uint32_t col = 0; col < c->y.cols; col++) {
            const pixel p = {
                memory + find_element(&c->x, row, col, 0), to + find_element(result, row, col, 0),
                c->x.channel_pitch, result->channel_pitch, c->y.channels,
            };
            if (c->kind == DLA_SOFTMAX) {
                compute_softmax(&p);
            } else {
                normalize_pixel(c, memory, &p);
            }
        }
    }
}

#define LEVELS 255.0f /* the greatest uint8, which DynamicQuantizeLinear makes of the greatest number */

void dla_execute_minmax(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    float low = 0, high = 0;
    if (c->other.rows) {
        low = fminf(low, read_float(memory + find_element(&c->other, 0, 0, 0)));
        high = fmaxf(high, read_float(memory + find_element(&c->other, 0, 0, 1)));
    }
    for (uint32_t row = 0; row < c->x.rows; row++) {
        for (uint32_t col = 0; col < c->x.cols; col++) {
            for (uint32_t channel = 0; channel < c->x.channels; channel++) {
                float value = read_float(memory + find_element(&c->x, row, col, channel));
                low = value < low ? value : low;
                high = value > high ? value : high;
            }
        }
    }
    write_float(to + find_element(result, 0, 0, 0), low);
    write_float(to + find_element(result, 0, 0, 1), high);
}

/* Limit a number to those of uint8; of what is no number, 0. */
static float limit_level(float value) {
    return fminf(fmaxf(value, 0), LEVELS);
}

dla_levels dla_find_levels(const uint8_t *memory, const dla_box *limits) {
    float low = read_float(memory + find_element(limits, 0, 0, 0));
    float high = read_float(memory + find_element(limits, 0, 0, 1));
    dla_levels found = {(high - low) / LEVELS, 0};
    if (found.scale == 0) {
        found.scale = 1;
    }
    found.zero = limit_level(rintf(-low / found.scale));
    return found;
}

void dla_execute_quantize(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    const dla_levels levels = dla_find_levels(memory, &c->other);
    for (uint32_t row = 0; row < c->y.rows; row++) {
        for (uint32_t col = 0; col < c->y.cols; col++) {
            for (uint32_t channel = 0; channel < c->y.channels; channel++) {
                float x = read_float(memory + find_element(&c->x, row, col, channel));
                uint8_t *place = to + find_element(result, row, col, channel);
                float level = limit_level(rintf(x / levels.scale) + levels.zero) - levels.zero;
                if (c->y.dtype == DLA_INT16) {
                    write_integer(place, DLA_INT16, (int64_t)level);
                } else {
                    write_float(place, level * levels.scale);
                }
            }
        }
    }
}
