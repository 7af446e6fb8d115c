/* Convolutions and pooling: what slides a window over a tile. */
#include "dla_kernels.h"
#include "dla_values.h"

#include <math.h>

#define WIDE ((int64_t)1 << 47) /* of the sums of int16 */

/* Eight sums at once, which a compiler turns into vectors without being allowed to reorder one sum. */
static float sum_products(const uint8_t *x, size_t pitch, const uint8_t *weights, uint32_t count) {
    float sums[8] = {0}, total = 0;
    uint32_t k = 0;
    if (pitch == 4) {
        for (; k + 8 <= count; k += 8) {
            for (uint32_t i = 0; i < 8; i++) {
                sums[i] += read_float(x + 4 * (k + i)) * read_float(weights + 4 * (k + i));
            }
        }
    }
    for (; k < count; k++) {
        total += read_float(x + k * pitch) * read_float(weights + (size_t)4 * k);
    }
    for (int i = 0; i < 8; i++) {
        total += sums[i];
    }
    return total;
}

/* The first kernel position that lies in the tile, and one past the last, for an output at `start`. */
static void find_inside(
    int64_t start, uint32_t dilation, uint32_t kernel, uint32_t size, uint32_t *first, uint32_t *end
) {
    uint32_t u = 0, last;
    if (start < 0) {
        uint64_t lacking = ((uint64_t)-start + dilation - 1) / dilation;
        u = lacking < kernel ? (uint32_t)lacking : kernel;
    }
    if (start >= (int64_t)size) {
        last = u;
    } else {
        uint64_t reach = (uint64_t)((int64_t)size - 1 - start) / dilation + 1;
        last = reach < kernel ? (uint32_t)reach : kernel;
    }
    *first = u;
    *end = last > u ? last : u;
}

/* An output position of a window: where its kernel begins in the tile, and which part of it lies inside. */
typedef struct window {
    int64_t row, col;
    uint32_t top, bottom, left, right;
} window;

static window find_window(const dla_command *c, uint32_t i, uint32_t j) {
    window w;
    w.row = (int64_t)i * c->strides.rows - c->pads[0];
    w.col = (int64_t)j * c->strides.cols - c->pads[1];
    find_inside(w.row, c->dilations.rows, c->kernel.rows, c->x.rows, &w.top, &w.bottom);
    find_inside(w.col, c->dilations.cols, c->kernel.cols, c->x.cols, &w.left, &w.right);
    return w;
}

static const uint8_t *find_tap(const dla_command *c, const uint8_t *memory, const window *w, uint32_t u, uint32_t v) {
    uint32_t row = (uint32_t)(w->row + (int64_t)u * c->dilations.rows);
    uint32_t col = (uint32_t)(w->col + (int64_t)v * c->dilations.cols);
    return memory + find_element(&c->x, row, col, 0);
}

static float convolve_float(const dla_command *c, const uint8_t *memory, const window *w, uint32_t o) {
    uint32_t depth = c->x.channels / c->groups, first = o / (c->y.channels / c->groups) * depth;
    const uint8_t *weights = memory + find_element(&c->other, 0, 0, 0);
    float total = 0;
    for (uint32_t u = w->top; u < w->bottom; u++) {
        for (uint32_t v = w->left; v < w->right; v++) {
            size_t at = (((size_t)o * c->kernel.rows + u) * c->kernel.cols + v) * depth;
            const uint8_t *x = find_tap(c, memory, w, u, v) + (size_t)first * c->x.channel_pitch;
            total += sum_products(x, c->x.channel_pitch, weights + 4 * at, depth);
        }
    }
    return total;
}

static int64_t convolve_integer(
    const dla_command *c, const uint8_t *memory, const window *w, uint32_t o, int32_t zero
) {
    uint32_t depth = c->x.channels / c->groups, first = o / (c->y.channels / c->groups) * depth;
    const uint8_t *weights = memory + find_element(&c->other, 0, 0, 0);
    int64_t total = 0; /* below 2**28 products of less than 2**40 */
    for (uint32_t u = w->top; u < w->bottom; u++) {
        for (uint32_t v = w->left; v < w->right; v++) {
            size_t at = (((size_t)o * c->kernel.rows + u) * c->kernel.cols + v) * depth;
            const uint8_t *x = find_tap(c, memory, w, u, v) + (size_t)first * c->x.channel_pitch;
            for (uint32_t k = 0; k < depth; k++) {
                int64_t value = read_integer(x + (size_t)k * c->x.channel_pitch, c->x.dtype) - zero;
                total += value * read_integer(weights + at + k, DLA_INT8);
            }
        }
    }
    return total;
}

/* The numbers of one output channel of a convolution of integers. */
typedef struct conv_channel {
    dla_scaling scaling;
    int32_t bias, mantissa, shift, y_mantissa, y_shift;
    float real_bias; /* of a CONV into float32 */
} conv_channel;

static conv_channel read_channel(const dla_command *c, const uint8_t *memory, uint32_t o) {
    conv_channel channel = {c->scaling, 0, 0, 0, 0, 0, 0};
    int32_t rows[9] = {0};
    if (!(c->kind & (DLA_FIRST | DLA_LAST))) {
        return channel; /* whose sums go on alone */
    }
    uint32_t count = dla_count_rows(c);
    for (uint32_t row = 0; row < count; row++) {
        rows[row] = read_row(&c->parameters, memory, row, c->y.channels, o);
    }
    channel.bias = rows[0];
    channel.mantissa = rows[1];
    channel.shift = rows[2];
    if (count == 9) {
        channel.scaling.x_zero = rows[3];
        memcpy(&channel.real_bias, &rows[4], sizeof channel.real_bias);
    }
    if (count == 9 && c->y.dtype != DLA_FLOAT32) {
        channel.scaling.y_zero = rows[4];
        channel.scaling.low = (float)rows[5];
        channel.scaling.high = (float)rows[6];
        channel.y_mantissa = rows[7];
        channel.y_shift = rows[8];
    }
    return channel;
}

static int is_real_shift(int32_t shift) {
    return shift >= -2000 && shift <= 2000;
}

/* Write the function of a sum, which is computed in real numbers. */
static const char *write_function(
    const dla_command *c, const uint8_t *residual, const conv_channel *channel, int64_t sum, uint8_t *place
) {
    if (!is_real_shift(channel->shift) || !is_real_shift(channel->y_shift)) {
        return "a shift is not in [-2000, 2000]";
    }
    double real = ldexp((double)sum * channel->mantissa, -channel->shift);
    if (residual) {
        real += (double)(read_integer(residual, c->residual.dtype) - c->residual_zero) * c->residual_scale;
    }
    double made = dla_evaluate_function(c->function, real, c->alpha, c->beta) * channel->y_mantissa;
    write_shifted(place, c->y.dtype, rint(ldexp(made, -channel->y_shift)), &channel->scaling);
    return NULL;
}

/* Write the real number of a sum of integers that QUANTIZE made. */
static const char *write_real(
    const dla_command *c, const uint8_t *memory, const conv_channel *channel, int64_t sum, uint8_t *place
) {
    if (!is_real_shift(channel->shift)) {
        return "a shift is not in [-2000, 2000]";
    }
    const dla_levels levels = dla_find_levels(memory, &c->residual);
    volatile double scaled = ldexp((double)sum * channel->mantissa, -channel->shift) * levels.scale;
    float made = (float)dla_evaluate_function(c->function, scaled + channel->real_bias, c->alpha, c->beta);
    write_float(place, clamp_float(made, &c->scaling));
    return NULL;
}

static const char *convolve_element(
    const dla_command *c, const uint8_t *memory, const window *w, const uint8_t *before, const uint8_t *residual,
    uint32_t o, uint8_t *place
) {
    const conv_channel channel = read_channel(c, memory, o);
    const int is_wide = c->x.dtype == DLA_INT16;
    if (!dla_is_input_zero(c, channel.scaling.x_zero)) {
        return "its zero point is not one of its type";
    }
    int64_t sum = convolve_integer(c, memory, w, o, channel.scaling.x_zero);
    sum += before ? read_integer(before, is_wide ? DLA_INT64 : DLA_INT32) : channel.bias;
    if (is_wide ? sum < -WIDE || sum >= WIDE : sum < INT32_MIN || sum > INT32_MAX) {
        return is_wide ? "a sum leaves the range of 48 bits" : "a sum leaves the range of int32";
    }
    if (!(c->kind & DLA_LAST)) {
        write_integer(place, is_wide ? DLA_INT64 : DLA_INT32, sum);
        return NULL;
    }
    if (dla_is_dynamic(c)) {
        return write_real(c, memory, &channel, sum, place);
    }
    if (dla_has_output_stage(c)) {
        return write_function(c, residual, &channel, sum, place);
    }
    if (channel.shift < 0 || channel.shift > 62) {
        return "a shift is not in [0, 62]";
    }
    int64_t whole = shift_half_even(sum * channel.mantissa, (uint32_t)channel.shift);
    write_shifted(place, c->y.dtype, (double)whole, &channel.scaling);
    return NULL;
}

const char *dla_execute_conv(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    int floats = c->x.dtype == DLA_FLOAT32, first = c->kind & DLA_FIRST, last = c->kind & DLA_LAST;
    for (uint32_t i = 0; i < c->y.rows; i++) {
        for (uint32_t j = 0; j < c->y.cols; j++) {
            window w = find_window(c, i, j);
            for (uint32_t o = 0; o < c->y.channels; o++) {
                uint8_t *place = to + find_element(result, i, j, o);
                const uint8_t *before = first ? NULL : memory + find_element(&c->accumulator, i, j, o);
                const uint8_t *residual = NULL;
                if (last && c->residual.rows && !dla_is_dynamic(c)) {
                    residual = memory + find_element(&c->residual, i, j, o);
                }
                if (!floats) {
                    const char *wrong = convolve_element(c, memory, &w, before, residual, o, place);
                    if (wrong) {
                        return wrong;
                    }
                    continue;
                }
                float sum = convolve_float(c, memory, &w, o);
                if (before) {
                    sum += read_float(before);
                } else if (c->parameters.rows) {
                    sum += read_float(memory + find_element(&c->parameters, 0, 0, o));
                }
                if (residual) {
                    sum += read_float(residual);
                }
                if (last) {
                    sum = (float)dla_evaluate_function(c->function, sum, c->alpha, c->beta);
                    sum = clamp_float(sum, &c->scaling);
                }
                write_float(place, sum);
            }
        }
    }
    return NULL;
}

/* How many positions of a window along one axis count in an average: those in [low, high) of the tile. */
static int64_t count_positions(int64_t start, uint32_t dilation, uint32_t kernel, int64_t low, int64_t high) {
    int64_t count = 0;
    for (uint32_t u = 0; u < kernel; u++) {
        int64_t at = start + (int64_t)u * dilation;
        count += at >= low && at < high;
    }
    return count;
}

static int64_t count_window(const dla_command *c, const window *w) {
    int64_t down = w->bottom - w->top, right = w->right - w->left;
    if (c->padding_counts) {
        int64_t rows = (int64_t)c->x.rows + c->pads[2], cols = (int64_t)c->x.cols + c->pads[3];
        down = count_positions(w->row, c->dilations.rows, c->kernel.rows, -(int64_t)c->pads[0], rows);
        right = count_positions(w->col, c->dilations.cols, c->kernel.cols, -(int64_t)c->pads[1], cols);
    }
    return down * right;
}

static float pool_float(const dla_command *c, const uint8_t *memory, const window *w, uint32_t channel) {
    float best = -INFINITY, sum = 0;
    for (uint32_t u = w->top; u < w->bottom; u++) {
        for (uint32_t v = w->left; v < w->right; v++) {
            float value = read_float(find_tap(c, memory, w, u, v) + (size_t)channel * c->x.channel_pitch);
            best = value > best || value != value ? value : best;
            sum += value;
        }
    }
    return c->kind == DLA_MAX ? best : sum / (float)count_window(c, w);
}

static const char *pool_integer(
    const dla_command *c, const uint8_t *memory, const window *w, uint32_t channel, uint8_t *place
) {
    const dla_scaling s = dla_read_scaling(c, memory, channel);
    if (s.shift > 62) {
        return "a shift is not in [0, 62]";
    }
    int64_t best = INT64_MIN, sum = 0;
    for (uint32_t u = w->top; u < w->bottom; u++) {
        for (uint32_t v = w->left; v < w->right; v++) {
            const uint8_t *x = find_tap(c, memory, w, u, v) + (size_t)channel * c->x.channel_pitch;
            int64_t value = read_integer(x, c->x.dtype) - s.x_zero;
            best = value > best ? value : best;
            sum += value;
        }
    }
    if (c->kind == DLA_MAX) {
        return write_rescaled(place, c->y.dtype, best, &s);
    }
    int64_t count = count_window(c, w), product;
    if (count >= (int64_t)1 << (62 - s.shift) || !multiply(sum, s.mantissa, &product)) {
        return "an average leaves the range of int64";
    }
    write_shifted(place, c->y.dtype, (double)divide_half_even(product, count << s.shift), &s);
    return NULL;
}

const char *dla_execute_pool(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    for (uint32_t i = 0; i < c->y.rows; i++) {
        for (uint32_t j = 0; j < c->y.cols; j++) {
            window w = find_window(c, i, j);
            if (w.top == w.bottom || w.left == w.right) {
                return "a window has no position in x";
            }
            for (uint32_t channel = 0; channel < c->y.channels; channel++) {
                uint8_t *place = to + find_element(result, i, j, channel);
                if (c->x.dtype == DLA_FLOAT32) {
                    write_float(place, clamp_float(pool_float(c, memory, &w, channel), &c->scaling));
                    continue;
                }
                const char *wrong = pool_integer(c, memory, &w, channel, place);
                if (wrong) {
                    return wrong;
                }
            }
        }
    }
    return NULL;
}
