/* What the commands compute. Memories are little-endian, so elements are read and written byte by byte where
 * the machine is not; compilers make one instruction of it where it is. */
#include "dla_kernels.h"

#include <math.h>
#include <string.h>

static float read_float(const uint8_t *place) {
    uint32_t word = dla_read_word(place);
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static void write_word(uint8_t *place, uint32_t word) {
    for (int i = 0; i < 4; i++) {
        place[i] = (uint8_t)(word >> 8 * i);
    }
}

static void write_float(uint8_t *place, float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    write_word(place, word);
}

static int64_t read_integer(const uint8_t *place, uint32_t dtype) {
    int8_t small;
    int32_t large;
    uint32_t word;
    switch (dtype) {
    case DLA_INT8:
        memcpy(&small, place, 1);
        return small;
    case DLA_UINT8:
        return *place;
    default:
        word = dla_read_word(place);
        memcpy(&large, &word, sizeof large);
        return large;
    }
}

static void write_integer(uint8_t *place, uint32_t dtype, int64_t value) {
    if (dtype == DLA_INT32) {
        write_word(place, (uint32_t)value);
    } else {
        *place = (uint8_t)value;
    }
}

static size_t find_row(const dla_box *box, uint32_t row) {
    uint64_t slot = ((uint64_t)box->first_row + row) % box->window;
    return box->address + (size_t)slot * box->row_pitch;
}

static size_t find_element(const dla_box *box, uint32_t row, uint32_t col, uint32_t channel) {
    return find_row(box, row) + (size_t)col * box->pixel_pitch + (size_t)channel * box->channel_pitch;
}

/* The element of an operand that is broadcast to a result with more rows, columns or channels. */
static size_t find_broadcast(const dla_box *box, uint32_t row, uint32_t col, uint32_t channel) {
    return find_element(
        box, box->rows == 1 ? 0 : row, box->cols == 1 ? 0 : col, box->channels == 1 ? 0 : channel
    );
}

/* Return a quotient rounded to the nearest integer, halves to even; the denominator is at most 2**62. */
static int64_t divide_half_even(int64_t numerator, int64_t denominator) {
    int64_t quotient = numerator / denominator, rest = numerator % denominator;
    if (rest < 0) {
        quotient -= 1;
        rest += denominator;
    }
    int64_t other = denominator - rest; /* the distance to the next integer */
    return quotient + (rest > other || (rest == other && (quotient & 1)));
}

static int64_t shift_half_even(int64_t value, uint32_t shift) {
    return divide_half_even(value, (int64_t)1 << shift);
}

/* Multiply by a mantissa. Returns 0 if the product leaves the range of int64. */
static int multiply(int64_t value, uint32_t mantissa, int64_t *product) {
    if (mantissa && (value > INT64_MAX / mantissa || value < -(INT64_MAX / mantissa))) {
        return 0;
    }
    *product = value * (int64_t)mantissa;
    return 1;
}

static float clamp_float(float value, const dla_command *c) {
    return value < c->low ? c->low : value > c->high ? c->high : value;
}

static double limit(double value, double low, double high) {
    value = value < low ? low : value;
    return value > high ? high : value;
}

/* Write `value` plus the zero point of `y`, within the command's range and that of its type. */
static void write_shifted(uint8_t *place, int64_t value, const dla_command *c) {
    double low = c->y.dtype == DLA_INT8 ? -128 : c->y.dtype == DLA_UINT8 ? 0 : -2147483648.0;
    double high = c->y.dtype == DLA_INT8 ? 127 : c->y.dtype == DLA_UINT8 ? 255 : 2147483647.0;
    double limited = limit((double)value + c->y_zero, c->low, c->high);
    write_integer(place, c->y.dtype, (int64_t)limit(limited, low, high));
}

static const char *write_rescaled(uint8_t *place, int64_t value, const dla_command *c) {
    int64_t product;
    if (!multiply(value, c->mantissa, &product)) {
        return "a product leaves the range of int64";
    }
    write_shifted(place, shift_half_even(product, c->shift), c);
    return NULL;
}

static void copy_box(const uint8_t *from, const dla_box *source, uint8_t *to, const dla_box *target) {
    size_t element = dla_element_size(source->dtype);
    int dense = source->channel_pitch == element && target->channel_pitch == element;
    for (uint32_t row = 0; row < target->rows; row++) {
        for (uint32_t col = 0; col < target->cols; col++) {
            const uint8_t *read = from + find_element(source, row, col, 0);
            uint8_t *write = to + find_element(target, row, col, 0);
            if (dense) {
                memmove(write, read, element * target->channels);
                continue;
            }
            for (uint32_t channel = 0; channel < target->channels; channel++) {
                memmove(write, read, element);
                read += source->channel_pitch;
                write += target->channel_pitch;
            }
        }
    }
}

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
static void find_inside(int64_t start, uint32_t dilation, uint32_t kernel, uint32_t size, uint32_t *first, uint32_t *end) {
    uint32_t u = 0, last = kernel;
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

static int64_t convolve_integer(const dla_command *c, const uint8_t *memory, const window *w, uint32_t o) {
    uint32_t depth = c->x.channels / c->groups, first = o / (c->y.channels / c->groups) * depth;
    const uint8_t *weights = memory + find_element(&c->other, 0, 0, 0);
    int64_t total = 0; /* below 2**28 products of less than 2**40 */
    for (uint32_t u = w->top; u < w->bottom; u++) {
        for (uint32_t v = w->left; v < w->right; v++) {
            size_t at = (((size_t)o * c->kernel.rows + u) * c->kernel.cols + v) * depth;
            const uint8_t *x = find_tap(c, memory, w, u, v) + (size_t)first * c->x.channel_pitch;
            for (uint32_t k = 0; k < depth; k++) {
                int64_t value = read_integer(x + (size_t)k * c->x.channel_pitch, c->x.dtype) - c->x_zero;
                total += value * read_integer(weights + at + k, DLA_INT8);
            }
        }
    }
    return total;
}

static int64_t read_parameter(const dla_command *c, const uint8_t *memory, uint32_t which, uint32_t o) {
    return read_integer(memory + find_element(&c->parameters, 0, 0, which * c->y.channels + o), DLA_INT32);
}

static const char *execute_conv(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    int floats = c->x.dtype == DLA_FLOAT32, first = c->kind & DLA_FIRST, last = c->kind & DLA_LAST;
    for (uint32_t i = 0; i < c->y.rows; i++) {
        for (uint32_t j = 0; j < c->y.cols; j++) {
            window w = find_window(c, i, j);
            for (uint32_t o = 0; o < c->y.channels; o++) {
                uint8_t *place = to + find_element(result, i, j, o);
                const uint8_t *before = first ? NULL : memory + find_element(&c->accumulator, i, j, o);
                if (floats) {
                    float sum = convolve_float(c, memory, &w, o);
                    if (before) {
                        sum += read_float(before);
                    } else if (c->parameters.rows) {
                        sum += read_float(memory + find_element(&c->parameters, 0, 0, o));
                    }
                    if (last && c->residual.rows) {
                        sum += read_float(memory + find_element(&c->residual, i, j, o));
                    }
                    write_float(place, last ? clamp_float(sum, c) : sum);
                    continue;
                }
                int64_t sum = convolve_integer(c, memory, &w, o);
                sum += before ? read_integer(before, DLA_INT32) : read_parameter(c, memory, 0, o);
                if (sum < INT32_MIN || sum > INT32_MAX) {
                    return "a sum leaves the range of int32";
                }
                if (!last) {
                    write_integer(place, DLA_INT32, sum);
                    continue;
                }
                int64_t mantissa = read_parameter(c, memory, 1, o), shift = read_parameter(c, memory, 2, o);
                if (shift < 0 || shift > 62) {
                    return "a shift is not in [0, 62]";
                }
                write_shifted(place, shift_half_even(sum * mantissa, (uint32_t)shift), c);
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
    int64_t best = INT64_MIN, sum = 0;
    for (uint32_t u = w->top; u < w->bottom; u++) {
        for (uint32_t v = w->left; v < w->right; v++) {
            const uint8_t *x = find_tap(c, memory, w, u, v) + (size_t)channel * c->x.channel_pitch;
            int64_t value = read_integer(x, c->x.dtype) - c->x_zero;
            best = value > best ? value : best;
            sum += value;
        }
    }
    if (c->kind == DLA_MAX) {
        return write_rescaled(place, best, c);
    }
    int64_t count = count_window(c, w), product;
    if (count >= (int64_t)1 << (62 - c->shift) || !multiply(sum, c->mantissa, &product)) {
        return "an average leaves the range of int64";
    }
    write_shifted(place, divide_half_even(product, count << c->shift), c);
    return NULL;
}

static const char *execute_pool(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    for (uint32_t i = 0; i < c->y.rows; i++) {
        for (uint32_t j = 0; j < c->y.cols; j++) {
            window w = find_window(c, i, j);
            if (w.top == w.bottom || w.left == w.right) {
                return "a window has no position in x";
            }
            for (uint32_t channel = 0; channel < c->y.channels; channel++) {
                uint8_t *place = to + find_element(result, i, j, channel);
                if (c->x.dtype == DLA_FLOAT32) {
                    write_float(place, clamp_float(pool_float(c, memory, &w, channel), c));
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
    default: /* ELU */
        return x < 0 ? alpha * (expf(x) - 1) : x;
    }
}

static const char *execute_element(
    const dla_command *c, const uint8_t *x, const uint8_t *other, const uint8_t *table, uint8_t *place
) {
    int floats = c->y.dtype == DLA_FLOAT32;
    float product;
    switch (c->opcode) {
    case DLA_ADD:
        if (floats) {
            write_float(place, clamp_float(read_float(x) + read_float(other), c));
            return NULL;
        }
        return add_integers(c, read_integer(x, c->x.dtype), read_integer(other, c->other.dtype), place);
    case DLA_MUL:
        if (floats) {
            product = read_float(x) * read_float(other);
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
            write_float(place, clamp_float(read_float(x), c));
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

static const char *execute_elements(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
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

/* Return a box of the same elements without gaps, at the start of a memory. */
static dla_box make_dense(const dla_box *box) {
    dla_box dense = *box;
    uint32_t element = (uint32_t)dla_element_size(box->dtype);
    dense.address = 0;
    dense.first_row = 0;
    dense.window = box->rows;
    dense.channel_pitch = element;
    dense.pixel_pitch = element * box->channels;
    dense.row_pitch = dense.pixel_pitch * box->cols;
    return dense;
}

static const char *compute(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    switch (c->opcode) {
    case DLA_CONV:
        return execute_conv(c, memory, to, result);
    case DLA_POOL:
        return execute_pool(c, memory, to, result);
    default:
        return execute_elements(c, memory, to, result);
    }
}

const char *dla_execute(const dla_command *c, const dla_memories *m) {
    if (c->opcode == DLA_LOAD) {
        copy_box(c->kind == DLA_WEIGHTS ? m->weights : m->arena, &c->x, m->scratchpad, &c->y);
        return NULL;
    }
    if (c->opcode == DLA_STORE) {
        copy_box(m->scratchpad, &c->x, m->arena, &c->y);
        return NULL;
    }
    if (c->opcode == DLA_END) {
        return NULL;
    }
    const dla_box *result = dla_result_box(c);
    if (!dla_needs_staging(c)) {
        return compute(c, m->scratchpad, m->scratchpad, result);
    }
    dla_box dense = make_dense(result);
    const char *wrong = compute(c, m->scratchpad, m->staging, &dense);
    if (!wrong) {
        copy_box(m->staging, &dense, m->scratchpad, result);
    }
    return wrong;
}

void dla_write_box(uint8_t *memory, const dla_box *box, const void *dense) {
    size_t element = dla_element_size(box->dtype);
    const uint8_t *from = dense;
    for (uint32_t row = 0; row < box->rows; row++) {
        for (uint32_t col = 0; col < box->cols; col++) {
            for (uint32_t channel = 0; channel < box->channels; channel++) {
                uint8_t *place = memory + find_element(box, row, col, channel);
                if (element == 1) {
                    *place = *from;
                } else {
                    uint32_t word;
                    memcpy(&word, from, sizeof word);
                    write_word(place, word);
                }
                from += element;
            }
        }
    }
}

void dla_read_dense(const uint8_t *memory, const dla_box *box, void *dense) {
    size_t element = dla_element_size(box->dtype);
    uint8_t *to = dense;
    for (uint32_t row = 0; row < box->rows; row++) {
        for (uint32_t col = 0; col < box->cols; col++) {
            for (uint32_t channel = 0; channel < box->channels; channel++) {
                const uint8_t *place = memory + find_element(box, row, col, channel);
                if (element == 1) {
                    *to = *place;
                } else {
                    uint32_t word = dla_read_word(place);
                    memcpy(to, &word, sizeof word);
                }
                to += element;
            }
        }
    }
}
