/* Kernels of the host on integers of 8 bits that multiply no matrices: windows of single planes, sums and products of
 * two operands, tables, and the steps from floats and back. See kernels.h. */
#include "rounding.h"

#define LINE 64        /* results that are rounded at once */
#define MOST_TERMS 128 /* the pairs of a window */

/* Two neighbours of a window's row, or one with a weight of 0 behind it: where they are read for the first sum. */
typedef struct term {
    int32_t offset;
    int16_t weights[2];
} term;

/* Widen bytes to 16 bits, less a zero point; `count` is a constant where this is called. */
INLINE void widen(const byte *restrict from, byte flip, int16_t zero, int32_t count, int16_t *restrict to) {
    for (int32_t i = 0; i < count; i++) {
        to[i] = (int16_t)((int16_t)(byte)(from[i] ^ flip) - zero);
    }
}

/* Copy rows of an image from `first` on, less the zero point, to rows of `width` numbers, which have zeros around the
 * image already; rows outside of it become zeros. */
static void copy_inside(const kernel_conv *conv, const byte *x, int32_t flip, int32_t zero, int32_t first, int32_t rows,
                        int32_t width, int16_t *to) {
    const int32_t left = conv->window.left, cols = least(conv->in_cols, width - left);
    const byte changed = (byte)flip;
    const int16_t less = (int16_t)zero;
    for (int32_t row = first; row < first + rows; row++, to += width) {
        if (row < 0 || row >= conv->in_rows) {
            memset(to, 0, (size_t)width * sizeof *to);
            continue;
        }
        const byte *restrict from = x + (ptrdiff_t)row * conv->in_cols;
        int16_t *restrict inside = to + left;
        if (cols < 8) {
            widen(from, changed, less, cols, inside);
            continue;
        }
        for (int32_t i = 0; i < cols - 8; i += 8) {
            widen(from + i, changed, less, 8, inside + i);
        }
        widen(from + cols - 8, changed, less, 8, inside + cols - 8);
    }
}

/* A channel of a convolution: its weights, and what becomes of its sums. */
typedef struct channel {
    term terms[MOST_TERMS];
    int32_t count, stride, bits, bias;
    float scale, offset;
    limits within;
} channel;

/* Read the weights of a channel. */
static void read_terms(const kernel_int_conv *it, const byte *weights, int32_t zero, int32_t width, channel *of) {
    const kernel_window *window = &it->conv.window;
    const int32_t step = window->col_dilation == 1 ? 2 : 1;
    of->count = 0;
    for (int32_t row = 0; row < window->rows; row++, weights += window->cols) {
        for (int32_t col = 0; col < window->cols; col += step) {
            term *made = &of->terms[of->count++];
            made->offset = row * window->row_dilation * width + col * window->col_dilation;
            made->weights[0] = (int16_t)((weights[col] ^ it->weight_flip) - zero);
            made->weights[1] = 0;
            if (step == 2 && col + 1 < window->cols) {
                made->weights[1] = (int16_t)((weights[col + 1] ^ it->weight_flip) - zero);
            }
        }
    }
}

#if LANES > 1
/* Add up 16 sums of windows that move by one or two pixels. Pairs that lie in a vector are those of every second
 * sum where they move by one: then the first half of the vectors are the even sums, the other the odd ones. */
INLINE void add_terms(const channel *of, const int16_t *x, ptrdiff_t odd, lanes *made) {
    memset(made, 0, VECS * sizeof *made);
    for (int32_t t = 0; t < of->count; t++) {
        const int16_t *from = x + of->terms[t].offset;
        int32_t pair;
        memcpy(&pair, of->terms[t].weights, sizeof pair);
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            const ptrdiff_t at = v < VECS / 2 ? (ptrdiff_t)v * 2 * LANES : odd + (ptrdiff_t)(v - VECS / 2) * 2 * LANES;
            lanes read;
            memcpy(&read, from + at, sizeof read);
            made[v] = ADD_PAIRS(made[v], REPEAT(pair), read);
        }
    }
}

/* Make 16 results of 8 bits of windows that move by one or two pixels. */
INLINE void compute_block(const channel *of, const int16_t *x, byte *to) {
    const int32_t single = of->stride == 1;
    lanes made[VECS];
    reals values[VECS];
    if (single) {
        add_terms(of, x, 1, made);
    } else {
        add_terms(of, x, WIDTH, made);
    }
    UNROLLED
    for (int32_t v = 0; v < VECS; v++) {
        const reals sums = TO_REALS(ADD_LANES(made[v], REPEAT(of->bias)));
        values[v] = REAL(add)(REAL(mul)(sums, REAL(set1)(of->scale)), REAL(set1)(of->offset));
    }
    if (single) {
        store_by_turns(&of->within, values, to);
    } else {
        store_reals(&of->within, values, to);
    }
}
#endif

/* Add up at most 16 sums. */
static void sum_terms(const channel *of, const int16_t *x, int32_t count, int32_t *restrict sums) {
    const int32_t stride = of->stride;
    memset(sums, 0, WIDTH * sizeof *sums);
#ifdef HAS_SMLAD
    for (int32_t i = 0; i < count; i += 4) { /* as many as stay in registers; behind the last it is again the last */
        int32_t made[4] = {0}, at[4];
        UNROLLED
        for (int32_t j = 0; j < 4; j++) {
            at[j] = least(i + j, count - 1) * stride;
        }
        for (int32_t t = 0; t < of->count; t++) {
            const int16_t *const from = x + of->terms[t].offset;
            int32_t pair, read;
            memcpy(&pair, of->terms[t].weights, sizeof pair);
            UNROLLED
            for (int32_t j = 0; j < 4; j++) {
                memcpy(&read, from + at[j], sizeof read);
                made[j] = __smlad(pair, read, made[j]);
            }
        }
        UNROLLED
        for (int32_t j = 0; j < 4; j++) {
            sums[i + j] = made[j];
        }
    }
#else
    for (int32_t t = 0; t < of->count; t++) {
        const int16_t *restrict from = x + of->terms[t].offset;
        const int16_t one = of->terms[t].weights[0], other = of->terms[t].weights[1];
        if (stride == 1) {
            for (int32_t i = 0; i < WIDTH; i++) {
                sums[i] += one * from[i] + other * from[i + 1];
            }
        } else if (stride == 2) {
            for (int32_t i = 0; i < WIDTH; i++) {
                sums[i] += one * from[2 * i] + other * from[2 * i + 1];
            }
        } else {
            for (int32_t i = 0; i < count; i++) {
                sums[i] += one * from[i * stride] + other * from[i * stride + 1];
            }
        }
    }
#endif
}

/* Make `count` neighbouring results; to those of 8 bits up to 15 more are written. */
static void compute_line(const channel *of, const int16_t *x, int32_t count, byte *to) {
    for (int32_t done = 0; done < count; done += WIDTH) {
        const int32_t many = least(WIDTH, count - done);
        const int16_t *from = x + (ptrdiff_t)done * of->stride;
        int32_t sums[WIDTH];
#if LANES > 1
        if (of->bits == 8 && of->stride <= 2) {
            compute_block(of, from, to + done);
            continue;
        }
#endif
        sum_terms(of, from, many, sums);
        if (of->bits == 8) {
            float values[WIDTH];
            for (int32_t i = 0; i < WIDTH; i++) {
                values[i] = (float)(sums[i] + of->bias) * of->scale + of->offset;
            }
            round_values(&of->within, values, to + done);
            continue;
        }
        for (int32_t i = 0; i < many; i++) {
            sums[i] += of->bias;
        }
        memcpy(to + (ptrdiff_t)done * 4, sums, (size_t)many * sizeof *sums);
    }
}

/* Convolve one plane, band by band, as kernel_convolve_depthwise does, with numbers of 16 bits. */
static void convolve_plane(const kernel_int_conv *it, const kernel_bands *in, const byte *x, int32_t x_zero,
                           const channel *of, byte *y) {
    const kernel_conv *conv = &it->conv;
    const kernel_window *window = &conv->window;
    const int32_t size = of->bits / 8, cols = conv->out_cols;
    int16_t *padded = in->padded;
    byte *made = in->sums;
    for (int32_t first = 0; first < conv->out_rows; first += in->rows) {
        const int32_t rows = least(in->rows, conv->out_rows - first);
        const int32_t read = (rows - 1) * window->row_stride + (window->rows - 1) * window->row_dilation + 1;
        copy_inside(conv, x, it->x_flip, x_zero, first * window->row_stride - window->top, read, in->width, padded);
        if (in->together) {
            compute_line(of, padded, (rows - 1) * in->pitch + cols, made);
        }
        for (int32_t row = 0; row < rows; row++, y += (ptrdiff_t)cols * size) {
            byte *line = in->together ? made + (ptrdiff_t)row * in->pitch * size : made;
            if (!in->together) {
                compute_line(of, padded + (ptrdiff_t)row * window->row_stride * in->width, cols, line);
            }
            copy_bytes(y, line, cols * size);
        }
    }
}

void kernel_convolve_depthwise_int(const kernel_int_conv *it, const void *x, const void *x_zero,
                                   const void *weights, const void *weight_zeros, const int32_t *bias,
                                   const float *scales, const float *offsets, void *y, void *scratch,
                                   kernel_share share) {
    const kernel_conv *conv = &it->conv;
    const ptrdiff_t area = (ptrdiff_t)conv->window.rows * conv->window.cols;
    const ptrdiff_t in_plane = (ptrdiff_t)conv->in_rows * conv->in_cols;
    const ptrdiff_t out_plane = (ptrdiff_t)conv->out_rows * conv->out_cols * (it->rounding.bits / 8);
    const int32_t zero = read_zero(x_zero, 0, it->x_flip), channels = conv->groups * conv->out_channels;
    const kernel_bands in = kernel_find_bands(conv, scratch);
    const kernel_range own = kernel_take(conv->images * channels, 1, share);
    channel of;
    of.stride = conv->window.col_stride;
    of.bits = it->rounding.bits;
    of.within = find_limits(&it->rounding);
    for (int32_t plane = own.first; plane < own.end; plane++) {
        const int32_t number = plane % channels, at = it->rounding.step * number;
        const int32_t weight_zero = read_zero(weight_zeros, it->zeros * number, it->weight_flip);
        read_terms(it, (const byte *)weights + number * area, weight_zero, in.width, &of);
        of.bias = bias ? bias[number] : 0;
        of.scale = scales ? scales[at] : 1;
        of.offset = offsets ? offsets[at] : 0;
        convolve_plane(it, &in, (const byte *)x + plane / conv->out_channels * in_plane, zero, &of,
                       (byte *)y + plane * out_plane);
    }
}

/* Compute lines; a step of b of 0 or 1 and `adds` are constants where this is called. Results may lie over a: each
 * is read before it is written. */
INLINE void compute_lines(const kernel_int_pair *pair, const byte *a, const byte *b, int32_t step, int32_t adds,
                          byte *to) {
    const kernel_int_pair with = *pair;
    const limits within = find_limits(&with.rounding);
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
                round_some(&within, values + i, least(WIDTH, many - i), to + i);
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
    int32_t sum = 0, i = 0;
#if LANES > 1
    const __m128i changed = _mm_set1_epi8((char)flip);
    __m128i total = _mm_setzero_si128();
    for (; i < count - 15; i += 16) {
        const __m128i read = _mm_xor_si128(_mm_loadu_si128((const void *)(from + i)), changed);
        total = _mm_add_epi64(total, _mm_sad_epu8(read, _mm_setzero_si128()));
    }
    sum = _mm_cvtsi128_si32(total) + _mm_cvtsi128_si32(_mm_srli_si128(total, 8));
#endif
    for (; i < count; i++) {
        sum += from[i] ^ flip;
    }
    return sum;
}

/* Add up the places of a window that are inside; whole rows are one behind another. */
static int32_t sum_window(const kernel_int_pool *it, const byte *from, span rows, span cols) {
    const kernel_window *w = &it->pool.window;
    const int32_t in_cols = it->pool.in_cols, high = rows.end - rows.first, wide = cols.end - cols.first;
    int32_t sum = 0;
    if (wide == in_cols && w->row_dilation == 1 && w->col_dilation == 1) {
        return sum_bytes(from + (ptrdiff_t)(rows.start + rows.first) * in_cols, high * wide, it->flip);
    }
    for (int32_t down = rows.first; down < rows.end; down++) {
        const byte *line = from + (ptrdiff_t)(rows.start + down * w->row_dilation) * in_cols;
        if (w->col_dilation == 1) {
            sum += sum_bytes(line + cols.start + cols.first, wide, it->flip);
            continue;
        }
        for (int32_t i = cols.first; i < cols.end; i++) {
            sum += line[cols.start + i * w->col_dilation] ^ it->flip;
        }
    }
    return sum;
}

void kernel_pool_average_int(const kernel_int_pool *it, const void *x, void *y) {
    const kernel_pool *pool = &it->pool;
    const kernel_window *w = &pool->window;
    const limits within = find_limits(&it->rounding);
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
                int32_t sum = sum_window(it, from, rows, cols) - inside * it->zero;
                const float mean = (float)sum * it->scale / (float)(high * wide);
                const float values[WIDTH] = {mean};
                round_some(&within, values, 1, to);
            }
        }
    }
}

void kernel_look_up(const kernel_rows *matrix, const void *x, const void *table, void *y) {
    const byte *from = x, *values = table;
    byte *to = y;
    UNROLLED
    for (int64_t i = 0; i < (int64_t)matrix->rows * matrix->cols; i++) {
        to[i] = values[from[i]];
    }
}

void kernel_quantize(const kernel_int_steps *steps, const float *x, void *y) {
    const kernel_int_steps with = *steps;
    const kernel_rounding rounding = {8, with.zero, 0, 255, with.flip, 0};
    const limits within = find_limits(&rounding);
    byte *to = y;
    float values[WIDTH] = {0};
    for (int32_t done = 0; done < with.count; done += WIDTH) {
        const int32_t many = least(WIDTH, with.count - done);
        for (int32_t i = 0; i < many; i++) {
            values[i] = x[done + i] / with.scale;
        }
        round_some(&within, values, many, to + done);
    }
}

void kernel_dequantize(const kernel_int_steps *steps, const void *x, float *y) {
    const kernel_int_steps with = *steps;
    const byte *from = x;
    for (int32_t i = 0; i < with.count; i++) {
        y[i] = (float)((from[i] ^ with.flip) - with.zero) * with.scale;
    }
}
