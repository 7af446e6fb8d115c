/* Kernels of the host on integers of 8 bits that multiply no matrices: windows of single planes, sums and products of
 * two operands, tables, and the steps from floats and back. See kernels.h. */
#include "kernels.h"

#include <math.h>
#include <string.h>

typedef unsigned char byte;

#define LINE 64 /* results that are rounded at once */

static int32_t least(int32_t one, int32_t other) {
    return one < other ? one : other;
}

/* Round half to even a number of less than 2^22: a float that large has no bits behind the point. */
static inline int32_t round_even(float value) {
    const float moved = value + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &moved, sizeof bits);
    return bits - 0x4B400000;
}

/* Round, move and limit a line of at most LINE numbers. */
static void store_line(const kernel_rounding *rounding, const float *values, int32_t count, byte *to) {
    const kernel_rounding with = *rounding;
    const float low = (float)(with.low - with.zero), high = (float)(with.high - with.zero);
    for (int32_t i = 0; i < count; i++) {
        float value = values[i] < low ? low : values[i];
        value = value > high ? high : value;
        to[i] = (byte)((round_even(value) + with.zero) ^ with.flip);
    }
}

/* Store sums of a plane, in its scale and with its offset. */
static void store_sums(const kernel_rounding *rounding, const int32_t *sums, int32_t count, float scale, float offset,
                       byte *to) {
    float values[LINE];
    for (int32_t done = 0; done < count; done += LINE) {
        const int32_t many = least(LINE, count - done);
        for (int32_t i = 0; i < many; i++) {
            values[i] = (float)sums[done + i] * scale + offset;
        }
        store_line(rounding, values, many, to + done);
    }
}

/* Copy rows of an image from `first` on, less the zero point and with zeros around it, to rows of `width` numbers. */
static void copy_padded(const kernel_conv *conv, const byte *x, int32_t flip, int32_t zero, int32_t first, int32_t rows,
                        int32_t width, int32_t *to) {
    const int32_t left = conv->window.left, end = least(left + conv->in_cols, width);
    for (int32_t row = first; row < first + rows; row++, to += width) {
        memset(to, 0, (size_t)width * sizeof *to);
        if (row >= 0 && row < conv->in_rows) {
            const byte *from = x + (ptrdiff_t)row * conv->in_cols;
            for (int32_t i = left; i < end; i++) {
                to[i] = (from[i - left] ^ flip) - zero;
            }
        }
    }
}

/* Add the places of one row of a window, `taps` of them, to a line of sums; `taps` is a constant where this is
 * called. */
static inline void add_taps(const int32_t *restrict x, const int32_t *restrict weights, int32_t *restrict y,
                            int32_t taps, int32_t dilation, int32_t stride, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        int32_t sum = y[i];
        for (int32_t tap = 0; tap < taps; tap++) {
            sum += weights[tap] * x[i * stride + tap * dilation];
        }
        y[i] = sum;
    }
}

static void add_window_row(const kernel_window *window, const int32_t *x, const int32_t *weights, int32_t *y,
                           int32_t count) {
    const int32_t dilation = window->col_dilation, stride = window->col_stride;
    if (window->cols == 3 && dilation == 1 && stride == 1) {
        add_taps(x, weights, y, 3, 1, 1, count);
    } else if (window->cols == 5 && dilation == 1 && stride == 1) {
        add_taps(x, weights, y, 5, 1, 1, count);
    } else if (window->cols == 3 && dilation == 1 && stride == 2) {
        add_taps(x, weights, y, 3, 1, 2, count);
    } else if (window->cols == 5 && dilation == 1 && stride == 2) {
        add_taps(x, weights, y, 5, 1, 2, count);
    } else {
        for (int32_t col = 0; col < window->cols; col++) {
            add_taps(x + (ptrdiff_t)col * dilation, weights + col, y, 1, 1, stride, count);
        }
    }
}

/* Convolve one plane, band by band, as kernel_convolve_depthwise does. */
static void convolve_plane(const kernel_int_conv *it, const byte *x, int32_t x_zero, const byte *weights,
                           int32_t weight_zero, int32_t bias, float scale, float offset, byte *y, int32_t *scratch) {
    const kernel_conv *conv = &it->conv;
    const kernel_window *window = &conv->window;
    const int32_t width = (conv->out_cols - 1) * window->col_stride + (window->cols - 1) * window->col_dilation + 1;
    const int32_t fitting = KERNEL_BAND / width > 0 ? KERNEL_BAND / width : 1;
    const int32_t most = least(conv->out_rows, fitting);
    const int32_t together = window->row_stride == 1 && window->col_stride == 1;
    const int32_t pitch = together ? width : conv->out_cols;
    int32_t *sums = scratch, *padded = scratch + (ptrdiff_t)most * width, taps[LINE];
    for (int32_t first = 0; first < conv->out_rows; first += most) {
        const int32_t rows = least(most, conv->out_rows - first), count = (rows - 1) * pitch + conv->out_cols;
        const int32_t read = (rows - 1) * window->row_stride + (window->rows - 1) * window->row_dilation + 1;
        copy_padded(conv, x, it->x_flip, x_zero, first * window->row_stride - window->top, read, width, padded);
        for (int32_t i = 0; i < count; i++) {
            sums[i] = bias;
        }
        for (int32_t down = 0; down < window->rows; down++) {
            const int32_t *from = padded + (ptrdiff_t)down * window->row_dilation * width;
            for (int32_t i = 0; i < window->cols; i++) {
                taps[i] = (weights[down * window->cols + i] ^ it->weight_flip) - weight_zero;
            }
            if (together) {
                add_window_row(window, from, taps, sums, count);
                continue;
            }
            for (int32_t row = 0; row < rows; row++) {
                add_window_row(window, from + (ptrdiff_t)row * window->row_stride * width, taps,
                               sums + (ptrdiff_t)row * pitch, conv->out_cols);
            }
        }
        for (int32_t row = 0; row < rows; row++) {
            if (it->rounding.bits == 32) {
                memcpy(y, sums + (ptrdiff_t)row * pitch, (size_t)conv->out_cols * sizeof *sums);
            } else {
                store_sums(&it->rounding, sums + (ptrdiff_t)row * pitch, conv->out_cols, scale, offset, y);
            }
            y += (ptrdiff_t)conv->out_cols * (it->rounding.bits / 8);
        }
    }
}

static int32_t read_zero(const void *zeros, int32_t at, int32_t flip) {
    return zeros ? ((const byte *)zeros)[at] ^ flip : flip;
}

void kernel_convolve_depthwise_int(const kernel_int_conv *it, const void *x, const void *x_zero,
                                   const void *weights, const void *weight_zeros, const int32_t *bias,
                                   const float *scales, const float *offsets, void *y, void *scratch) {
    const kernel_conv *conv = &it->conv;
    const ptrdiff_t area = (ptrdiff_t)conv->window.rows * conv->window.cols;
    const ptrdiff_t in_plane = (ptrdiff_t)conv->in_rows * conv->in_cols;
    const ptrdiff_t out_plane = (ptrdiff_t)conv->out_rows * conv->out_cols * (it->rounding.bits / 8);
    const int32_t zero = read_zero(x_zero, 0, it->x_flip);
    const byte *from = x;
    byte *to = y;
    for (int32_t image = 0; image < conv->images; image++) {
        for (int32_t group = 0; group < conv->groups; group++, from += in_plane) {
            for (int32_t each = 0; each < conv->out_channels; each++, to += out_plane) {
                const int32_t channel = group * conv->out_channels + each, at = it->rounding.step * channel;
                const int32_t weight_zero = read_zero(weight_zeros, it->zeros * channel, it->weight_flip);
                convolve_plane(it, from, zero, (const byte *)weights + channel * area, weight_zero,
                               bias ? bias[channel] : 0, scales ? scales[at] : 1, offsets ? offsets[at] : 0, to,
                               scratch);
            }
        }
    }
}

void kernel_add_int(const kernel_int_pair *pair, const void *a, const void *b, void *y) {
    const kernel_int_pair with = *pair;
    float values[LINE];
    byte *to = y;
    for (int32_t line = 0; line < with.outer; line++) {
        const byte *left = (const byte *)a + (ptrdiff_t)line * with.a_outer;
        const byte *right = (const byte *)b + (ptrdiff_t)line * with.b_outer;
        for (int32_t done = 0; done < with.inner; done += LINE) {
            const int32_t many = least(LINE, with.inner - done);
            for (int32_t i = 0; i < many; i++) {
                const int32_t one = (left[(done + i) * with.a_inner] ^ with.a_flip) - with.a_zero;
                const int32_t other = (right[(done + i) * with.b_inner] ^ with.b_flip) - with.b_zero;
                values[i] = (float)one * with.a_scale + (float)other * with.b_scale;
            }
            store_line(&with.rounding, values, many, to);
            to += many;
        }
    }
}

void kernel_scale_int(const kernel_int_pair *pair, const void *a, const void *b, void *y) {
    const kernel_int_pair with = *pair;
    float values[LINE];
    byte *to = y;
    for (int32_t line = 0; line < with.outer; line++) {
        const byte *left = (const byte *)a + (ptrdiff_t)line * with.a_outer;
        const byte *right = (const byte *)b + (ptrdiff_t)line * with.b_outer;
        for (int32_t done = 0; done < with.inner; done += LINE) {
            const int32_t many = least(LINE, with.inner - done);
            for (int32_t i = 0; i < many; i++) {
                const int32_t one = (left[(done + i) * with.a_inner] ^ with.a_flip) - with.a_zero;
                const int32_t other = (right[(done + i) * with.b_inner] ^ with.b_flip) - with.b_zero;
                values[i] = (float)(one * other) * with.a_scale;
            }
            store_line(&with.rounding, values, many, to);
            to += many;
        }
    }
}

/* The places of a window, of `size`, that are inside of `extent` for the result number `at`. */
typedef struct span {
    int32_t start, first, end;
} span;

static span find_span(int32_t at, int32_t stride, int32_t dilation, int32_t before, int32_t size, int32_t extent) {
    span found;
    found.start = at * stride - before;
    found.first = found.start < 0 ? (-found.start + dilation - 1) / dilation : 0;
    found.end = extent - 1 - found.start < 0 ? 0 : least(size, (extent - 1 - found.start) / dilation + 1);
    return found;
}

void kernel_pool_max_int(const kernel_int_pool *it, const void *x, void *y) {
    const kernel_pool *pool = &it->pool;
    const kernel_window *w = &pool->window;
    const byte flip = (byte)it->flip, *from = x;
    byte *to = y;
    for (int32_t plane = 0; plane < pool->planes; plane++, from += (ptrdiff_t)pool->in_rows * pool->in_cols) {
        for (int32_t row = 0; row < pool->out_rows; row++, to += pool->out_cols) {
            const span rows = find_span(row, w->row_stride, w->row_dilation, w->top, w->rows, pool->in_rows);
            memset(to, 0, (size_t)pool->out_cols);
            for (int32_t down = rows.first; down < rows.end; down++) {
                const byte *line = from + (ptrdiff_t)(rows.start + down * w->row_dilation) * pool->in_cols;
                for (int32_t col = 0; col < w->cols; col++) {
                    const int32_t offset = col * w->col_dilation - w->left, stride = w->col_stride;
                    const int32_t begin = offset < 0 ? (-offset + stride - 1) / stride : 0;
                    const int32_t inside = pool->in_cols - 1 - offset < 0 ? 0 : (pool->in_cols - 1 - offset) / stride + 1;
                    const int32_t end = least(inside, pool->out_cols);
                    for (int32_t i = begin; i < end; i++) {
                        const byte value = line[offset + i * stride] ^ flip;
                        to[i] = value > to[i] ? value : to[i];
                    }
                }
            }
            for (int32_t i = 0; i < pool->out_cols; i++) {
                to[i] ^= flip;
            }
        }
    }
}

/* Return how many places of a window count: those inside, or with `counts` those up to the padding behind. */
static int32_t count_places(span inside, int32_t counts, int32_t size, int32_t dilation, int32_t end) {
    int32_t count = 0;
    for (int32_t i = 0; i < size; i++) {
        count += counts ? inside.start + i * dilation < end : i >= inside.first && i < inside.end;
    }
    return count;
}

static int32_t sum_bytes(const byte *from, int32_t count, int32_t flip) {
    int32_t sum = 0;
    for (int32_t i = 0; i < count; i++) {
        sum += from[i] ^ flip;
    }
    return sum;
}

void kernel_pool_average_int(const kernel_int_pool *it, const void *x, void *y) {
    const kernel_pool *pool = &it->pool;
    const kernel_window *w = &pool->window;
    const byte *from = x;
    byte *to = y;
    for (int32_t plane = 0; plane < pool->planes; plane++, from += (ptrdiff_t)pool->in_rows * pool->in_cols) {
        for (int32_t row = 0; row < pool->out_rows; row++) {
            const span rows = find_span(row, w->row_stride, w->row_dilation, w->top, w->rows, pool->in_rows);
            const int32_t high = count_places(rows, pool->padding_counts, w->rows, w->row_dilation,
                                              pool->in_rows + pool->bottom);
            for (int32_t col = 0; col < pool->out_cols; col++, to++) {
                const span cols = find_span(col, w->col_stride, w->col_dilation, w->left, w->cols, pool->in_cols);
                const int32_t wide = count_places(cols, pool->padding_counts, w->cols, w->col_dilation,
                                                  pool->in_cols + pool->right);
                const int32_t inside = (rows.end - rows.first) * (cols.end - cols.first);
                int32_t sum = -inside * it->zero;
                for (int32_t down = rows.first; down < rows.end; down++) {
                    const byte *line = from + (ptrdiff_t)(rows.start + down * w->row_dilation) * pool->in_cols;
                    if (w->col_dilation == 1) {
                        sum += sum_bytes(line + cols.start + cols.first, cols.end - cols.first, it->flip);
                        continue;
                    }
                    for (int32_t i = cols.first; i < cols.end; i++) {
                        sum += line[cols.start + i * w->col_dilation] ^ it->flip;
                    }
                }
                const float mean = (float)sum * it->scale / (float)(high * wide);
                store_line(&it->rounding, &mean, 1, to);
            }
        }
    }
}

void kernel_look_up(const kernel_rows *matrix, const void *x, const void *table, void *y) {
    const byte *from = x, *values = table;
    byte *to = y;
    for (int64_t i = 0; i < (int64_t)matrix->rows * matrix->cols; i++) {
        to[i] = values[from[i]];
    }
}

void kernel_quantize(const kernel_int_steps *steps, const float *x, void *y) {
    const kernel_int_steps with = *steps;
    const float low = (float)-with.zero, high = (float)(255 - with.zero);
    byte *to = y;
    for (int32_t i = 0; i < with.count; i++) {
        float value = x[i] / with.scale;
        value = value > low ? value : low; /* NaN as well */
        value = value > high ? high : value;
        to[i] = (byte)((round_even(value) + with.zero) ^ with.flip);
    }
}

void kernel_dequantize(const kernel_int_steps *steps, const void *x, float *y) {
    const kernel_int_steps with = *steps;
    const byte *from = x;
    for (int32_t i = 0; i < with.count; i++) {
        y[i] = (float)((from[i] ^ with.flip) - with.zero) * with.scale;
    }
}
