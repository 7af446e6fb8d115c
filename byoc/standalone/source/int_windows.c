/* Kernels of the host on integers of 8 bits that multiply no matrices: windows of single planes, sums and products of
 * two operands, tables, and the steps from floats and back. See kernels.h. */
#include "rounding.h"

#define LINE 64      /* results that are rounded at once */
#define MOST_TAPS 64 /* the columns of a window */

/* Sums of a window's products: where vectors have floats, those that are exact in them, as sums below 2^24 are. */
#if LANES > 1
typedef float number;
#else
typedef int32_t number;
#endif

/* Store sums of a plane, a multiple of 16, with their bias, in its scale and with its offset. Bytes may lie over the
 * sums from their beginning on. */
static void store_sums(const kernel_rounding *rounding, const number *sums, int32_t count, int32_t bias, float scale,
                       float offset, byte *to) {
    const kernel_rounding with = *rounding;
    float values[WIDTH];
    for (int32_t done = 0; done < count; done += WIDTH) {
        for (int32_t i = 0; i < WIDTH; i++) {
            values[i] = (float)((int32_t)sums[done + i] + bias) * scale + offset;
        }
        round_values(&with, values, to + done);
    }
}

/* Copy rows of an image from `first` on, less the zero point, to rows of `width` numbers, which have zeros around the
 * image already; rows outside of it become zeros. */
static void copy_inside(const kernel_conv *conv, const byte *x, int32_t flip, int32_t zero, int32_t first, int32_t rows,
                        int32_t width, number *to) {
    const int32_t left = conv->window.left, cols = least(conv->in_cols, width - left);
    for (int32_t row = first; row < first + rows; row++, to += width) {
        if (row < 0 || row >= conv->in_rows) {
            memset(to, 0, (size_t)width * sizeof *to);
            continue;
        }
        const byte *restrict from = x + (ptrdiff_t)row * conv->in_cols;
        number *restrict inside = to + left;
        for (int32_t i = 0; i < cols; i++) {
            inside[i] = (number)((from[i] ^ flip) - zero);
        }
    }
}

/* Add the places of one row of a window, `taps` of them, to a line of sums; `taps` is a constant where this is
 * called. */
static inline void add_taps(const number *restrict x, const number *restrict weights, number *restrict y,
                            int32_t taps, int32_t dilation, int32_t stride, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        number sum = y[i];
        for (int32_t tap = 0; tap < taps; tap++) {
            sum += weights[tap] * x[i * stride + tap * dilation];
        }
        y[i] = sum;
    }
}

static void add_window_row(const kernel_window *window, const number *x, const number *weights, number *y,
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

/* A channel of a convolution: its weights, and what becomes of its sums. */
typedef struct channel {
    const byte *weights;
    int32_t weight_zero, bias;
    float scale, offset;
} channel;

/* Store the sums of a band of `rows` rows, of which `count` are computed. */
static void store_band(const kernel_int_conv *it, const kernel_bands *in, int32_t rows, int32_t count, const channel *of,
                       byte *y) {
    const int32_t cols = it->conv.out_cols;
    const number *sums = in->sums;
    byte *made = in->sums;
    if (it->rounding.bits == 8) {
        store_sums(&it->rounding, sums, count, of->bias, of->scale, of->offset, made);
        for (int32_t row = 0; row < rows; row++) {
            memcpy(y + (ptrdiff_t)row * cols, made + (ptrdiff_t)row * in->pitch, (size_t)cols);
        }
        return;
    }
    for (int32_t row = 0; row < rows; row++) {
        for (int32_t i = 0; i < cols; i++, y += 4) {
            const int32_t whole = (int32_t)sums[row * in->pitch + i] + of->bias;
            memcpy(y, &whole, sizeof whole);
        }
    }
}

/* Convolve one plane, band by band, as kernel_convolve_depthwise does. */
static void convolve_plane(const kernel_int_conv *it, const kernel_bands *in, const byte *x, int32_t x_zero,
                           const channel *of, byte *y) {
    const kernel_conv *conv = &it->conv;
    const kernel_window *window = &conv->window;
    const int32_t width = in->width, pitch = in->pitch;
    number *padded = in->padded, *made = in->sums;
    number taps[MOST_TAPS];
    for (int32_t first = 0; first < conv->out_rows; first += in->rows) {
        const int32_t rows = least(in->rows, conv->out_rows - first), sums = (rows - 1) * pitch + conv->out_cols;
        const int32_t count = (sums + KERNEL_SPARE - 1) / KERNEL_SPARE * KERNEL_SPARE;
        const int32_t read = (rows - 1) * window->row_stride + (window->rows - 1) * window->row_dilation + 1;
        copy_inside(conv, x, it->x_flip, x_zero, first * window->row_stride - window->top, read, width, padded);
        memset(made, 0, (size_t)count * sizeof *made);
        for (int32_t down = 0; down < window->rows; down++) {
            const number *from = padded + (ptrdiff_t)down * window->row_dilation * width;
            for (int32_t i = 0; i < window->cols; i++) {
                taps[i] = (number)((of->weights[down * window->cols + i] ^ it->weight_flip) - of->weight_zero);
            }
            if (in->together) {
                add_window_row(window, from, taps, made, count);
                continue;
            }
            for (int32_t row = 0; row < rows; row++) {
                add_window_row(window, from + (ptrdiff_t)row * window->row_stride * width, taps,
                               made + (ptrdiff_t)row * pitch, conv->out_cols);
            }
        }
        store_band(it, in, rows, count, of, y);
        y += (ptrdiff_t)rows * conv->out_cols * (it->rounding.bits / 8);
    }
}

void kernel_convolve_depthwise_int(const kernel_int_conv *it, const void *x, const void *x_zero,
                                   const void *weights, const void *weight_zeros, const int32_t *bias,
                                   const float *scales, const float *offsets, void *y, void *scratch) {
    const kernel_conv *conv = &it->conv;
    const ptrdiff_t area = (ptrdiff_t)conv->window.rows * conv->window.cols;
    const ptrdiff_t in_plane = (ptrdiff_t)conv->in_rows * conv->in_cols;
    const ptrdiff_t out_plane = (ptrdiff_t)conv->out_rows * conv->out_cols * (it->rounding.bits / 8);
    const int32_t zero = read_zero(x_zero, 0, it->x_flip);
    const kernel_bands in = kernel_find_bands(conv, scratch);
    const byte *from = x;
    byte *to = y;
    for (int32_t image = 0; image < conv->images; image++) {
        for (int32_t group = 0; group < conv->groups; group++, from += in_plane) {
            for (int32_t each = 0; each < conv->out_channels; each++, to += out_plane) {
                const int32_t number_of = group * conv->out_channels + each, at = it->rounding.step * number_of;
                channel of = {(const byte *)weights + number_of * area, 0, 0, 1, 0};
                of.weight_zero = read_zero(weight_zeros, it->zeros * number_of, it->weight_flip);
                of.bias = bias ? bias[number_of] : 0;
                of.scale = scales ? scales[at] : 1;
                of.offset = offsets ? offsets[at] : 0;
                convolve_plane(it, &in, from, zero, &of, to);
            }
        }
    }
}

/* Compute lines; a step of b of 0 or 1 and `adds` are constants where this is called. Results may lie over a: each
 * is read before it is written. */
INLINE void compute_lines(const kernel_int_pair *pair, const byte *a, const byte *b, int32_t step, int32_t adds,
                          byte *to) {
    const kernel_int_pair with = *pair;
    const byte a_flip = (byte)with.a_flip, b_flip = (byte)with.b_flip;
    const int16_t a_zero = (int16_t)with.a_zero, b_zero = (int16_t)with.b_zero;
    float values[LINE] = {0};
    for (int32_t line = 0; line < with.outer; line++, b += with.b_outer) {
        for (int32_t done = 0; done < with.inner; done += LINE) {
            const int32_t many = least(LINE, with.inner - done);
            for (int32_t i = 0; i < many; i++) {
                const int16_t one = (int16_t)((int16_t)(byte)(a[i] ^ a_flip) - a_zero);
                const int16_t other = (int16_t)((int16_t)(byte)(b[(done + i) * step] ^ b_flip) - b_zero);
                values[i] = adds ? (float)one * with.a_scale + (float)other * with.b_scale
                                 : (float)(one * other) * with.a_scale;
            }
            for (int32_t i = 0; i < many; i += WIDTH) {
                round_some(&with.rounding, values + i, least(WIDTH, many - i), to + i);
            }
            a += many;
            to += many;
        }
    }
}

void kernel_add_int(const kernel_int_pair *pair, const void *a, const void *b, void *y) {
    if (pair->b_inner) {
        compute_lines(pair, a, b, 1, 1, y);
    } else {
        compute_lines(pair, a, b, 0, 1, y);
    }
}

void kernel_scale_int(const kernel_int_pair *pair, const void *a, const void *b, void *y) {
    if (pair->b_inner) {
        compute_lines(pair, a, b, 1, 0, y);
    } else {
        compute_lines(pair, a, b, 0, 0, y);
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

/* Take the larger of each of a row's numbers and another's. */
static void take_larger(byte *restrict to, const byte *restrict from, int32_t count, byte flip) {
    for (int32_t i = 0; i < count; i++) {
        const byte value = from[i] ^ flip;
        to[i] = value > to[i] ? value : to[i];
    }
}

/* Take the largest of each window of a row of `columns`, which are those of its rows. */
static void pool_columns(const kernel_pool *pool, const byte *restrict columns, byte flip, byte *restrict to) {
    const kernel_window *w = &pool->window;
    memset(to, 0, (size_t)pool->out_cols);
    for (int32_t col = 0; col < w->cols; col++) {
        const int32_t offset = col * w->col_dilation - w->left, stride = w->col_stride;
        const int32_t begin = offset < 0 ? (-offset + stride - 1) / stride : 0;
        const int32_t inside = pool->in_cols - 1 - offset < 0 ? 0 : (pool->in_cols - 1 - offset) / stride + 1;
        const int32_t end = least(inside, pool->out_cols);
        if (stride == 2) {
            for (int32_t i = begin; i < end; i++) {
                to[i] = columns[offset + 2 * i] > to[i] ? columns[offset + 2 * i] : to[i];
            }
            continue;
        }
        for (int32_t i = begin; i < end; i++) {
            to[i] = columns[offset + i * stride] > to[i] ? columns[offset + i * stride] : to[i];
        }
    }
    for (int32_t i = 0; i < pool->out_cols; i++) {
        to[i] ^= flip;
    }
}

void kernel_pool_max_int(const kernel_int_pool *it, const void *x, void *y, void *scratch) {
    const kernel_pool *pool = &it->pool;
    const kernel_window *w = &pool->window;
    const byte flip = (byte)it->flip, *from = x;
    byte *to = y;
    for (int32_t plane = 0; plane < pool->planes; plane++, from += (ptrdiff_t)pool->in_rows * pool->in_cols) {
        for (int32_t row = 0; row < pool->out_rows; row++, to += pool->out_cols) {
            const span rows = find_span(row, w->row_stride, w->row_dilation, w->top, w->rows, pool->in_rows);
            memset(scratch, 0, (size_t)pool->in_cols);
            for (int32_t down = rows.first; down < rows.end; down++) {
                const byte *line = from + (ptrdiff_t)(rows.start + down * w->row_dilation) * pool->in_cols;
                take_larger(scratch, line, pool->in_cols, flip);
            }
            pool_columns(pool, scratch, flip, to);
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
                const float values[WIDTH] = {mean};
                round_some(&it->rounding, values, 1, to);
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
    const kernel_rounding rounding = {8, with.zero, 0, 255, with.flip, 0};
    byte *to = y;
    float values[WIDTH] = {0};
    for (int32_t done = 0; done < with.count; done += WIDTH) {
        const int32_t many = least(WIDTH, with.count - done);
        for (int32_t i = 0; i < many; i++) {
            values[i] = x[done + i] / with.scale;
        }
        round_some(&rounding, values, many, to + done);
    }
}

void kernel_dequantize(const kernel_int_steps *steps, const void *x, float *y) {
    const kernel_int_steps with = *steps;
    const byte *from = x;
    for (int32_t i = 0; i < with.count; i++) {
        y[i] = (float)((from[i] ^ with.flip) - with.zero) * with.scale;
    }
}
