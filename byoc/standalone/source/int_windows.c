/* Kernels of the host on integers of 8 and 16 bits that multiply no matrices: windows of single planes, of which
 * `wide_integers.c` has a second form, sums and products of two operands, pools, tables of bytes, and the steps from
 * floats and back. See kernels.h. */
#include "rounding.h"

#define LINE 64        /* results that are rounded at once */
#define MOST_TERMS 128 /* the pairs of a window */

/* Two neighbours of a window's row, or one with a weight of 0 behind it: where they are read for the first sum. */
typedef struct term {
    int32_t offset;
    number weights[2];
} term;

/* Widen bytes, less a zero point; `count` is a constant where this is called. */
INLINE void widen(const byte *restrict from, byte flip, number zero, int32_t count, number *restrict to) {
    for (int32_t i = 0; i < count; i++) {
        to[i] = (number)((number)(byte)(from[i] ^ flip) - zero);
    }
}

static void widen_shorts(const uint16_t *restrict from, int32_t flip, int32_t zero, int32_t count, number *restrict to) {
    for (int32_t i = 0; i < count; i++) {
        to[i] = (number)((from[i] ^ flip) - zero);
    }
}

/* Copy rows of an image from `first` on, less the zero point, to rows of `width` numbers, which have zeros around the
 * image already; rows outside of it become zeros. */
static void copy_inside(const kernel_int_conv *it, const void *x, int32_t zero, int32_t first, int32_t rows, int32_t width,
                        number *to) {
    const kernel_conv *conv = &it->conv;
    const int32_t left = conv->window.left, cols = least(conv->in_cols, width - left);
    const byte changed = (byte)it->x.flip;
    const number less = (number)zero;
    for (int32_t row = first; row < first + rows; row++, to += width) {
        if (row < 0 || row >= conv->in_rows) {
            memset(to, 0, (size_t)width * sizeof *to);
            continue;
        }
        const byte *restrict from = skip(x, (ptrdiff_t)row * conv->in_cols, it->x);
        number *restrict inside = to + left;
        if (it->x.bits > 8) {
            widen_shorts((const void *)from, it->x.flip, zero, cols, inside);
            continue;
        }
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
    const kernel_rounding *rounding;
} channel;

/* Read the weights of a channel. */
static void read_terms(const kernel_int_conv *it, const void *weights, int32_t zero, int32_t width, channel *of) {
    const kernel_window *window = &it->conv.window;
    const int32_t step = window->col_dilation == 1 ? 2 : 1;
    of->count = 0;
    for (int32_t row = 0; row < window->rows; row++) {
        const ptrdiff_t at = (ptrdiff_t)row * window->cols;
        for (int32_t col = 0; col < window->cols; col += step) {
            term *made = &of->terms[of->count++];
            made->offset = row * window->row_dilation * width + col * window->col_dilation;
            made->weights[0] = (number)(read_element(weights, at + col, it->weight) - zero);
            made->weights[1] = 0;
            if (step == 2 && col + 1 < window->cols) {
                made->weights[1] = (number)(read_element(weights, at + col + 1, it->weight) - zero);
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

/* Make 16 results of windows that move by one or two pixels; `bits`, 8 or 16, is a constant where this is called. */
INLINE void compute_block(const channel *of, int32_t bits, const int16_t *x, byte *to) {
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
    if (bits > 8) {
        float read[WIDTH], line[WIDTH];
        memcpy(read, values, sizeof read);
        for (int32_t i = 0; i < WIDTH; i++) {
            line[i] = single ? read[i % 2 * (WIDTH / 2) + i / 2] : read[i];
        }
        round_shorts(of->rounding, line, WIDTH, to);
    } else if (single) {
        store_by_turns(&of->within, values, to);
    } else {
        store_reals(&of->within, values, to);
    }
}
#endif

/* Add up at most 16 sums. */
static void sum_terms(const channel *of, const number *x, int32_t count, accumulator *restrict sums) {
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
        const number *restrict from = x + of->terms[t].offset;
        const accumulator one = of->terms[t].weights[0], other = of->terms[t].weights[1];
        if (stride == 1) {
            for (int32_t i = 0; i < WIDTH; i++) {
                sums[i] += one * from[i] + other * from[i + 1];
            }
        } else if (stride == 2 && sizeof(number) == 2) { /* scratch has 32 such numbers behind the last one */
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

/* Make `count` neighbouring results; to those of 8 and 16 bits up to 15 more are written. */
static void compute_line(const channel *of, const number *x, int32_t count, byte *to) {
    for (int32_t done = 0; done < count; done += WIDTH) {
        const int32_t many = least(WIDTH, count - done);
        const number *from = x + (ptrdiff_t)done * of->stride;
        accumulator sums[WIDTH];
#if LANES > 1
        if (of->bits == 8 && of->stride <= 2) {
            compute_block(of, 8, from, to + done);
            continue;
        }
        if (of->bits == 16 && of->stride <= 2) {
            compute_block(of, 16, from, to + (ptrdiff_t)done * 2);
            continue;
        }
#endif
        sum_terms(of, from, many, sums);
        if (of->bits <= 16) {
            float values[WIDTH];
            for (int32_t i = 0; i < WIDTH; i++) {
                values[i] = (float)(sums[i] + of->bias) * of->scale + of->offset;
            }
            round_some(of->rounding, &of->within, values, WIDTH, to + (ptrdiff_t)done * (of->bits / 8));
            continue;
        }
        for (int32_t i = 0; i < many; i++) {
            sums[i] += of->bias;
        }
        memcpy(to + (ptrdiff_t)done * 4, sums, (size_t)many * sizeof *sums);
    }
}

/* Convolve one plane, band by band, as kernel_convolve_depthwise does, with integers. */
static void convolve_plane(const kernel_int_conv *it, const kernel_bands *in, const void *x, int32_t x_zero,
                           const channel *of, byte *y) {
    const kernel_conv *conv = &it->conv;
    const kernel_window *window = &conv->window;
    const int32_t size = of->bits / 8, cols = conv->out_cols;
    number *padded = in->padded;
    byte *made = in->sums;
    for (int32_t first = 0; first < conv->out_rows; first += in->rows) {
        const int32_t rows = least(in->rows, conv->out_rows - first);
        const int32_t read = (rows - 1) * window->row_stride + (window->rows - 1) * window->row_dilation + 1;
        copy_inside(it, x, x_zero, first * window->row_stride - window->top, read, in->width, padded);
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
    const int32_t zero = read_zero(x_zero, 0, it->x), channels = conv->groups * conv->out_channels;
    const kernel_bands in = kernel_find_bands(conv, scratch);
    const kernel_range own = kernel_take(conv->images * channels, 1, share);
    channel of;
    of.stride = conv->window.col_stride;
    of.bits = it->rounding.bits;
    of.within = find_limits(&it->rounding);
    of.rounding = &it->rounding;
    for (int32_t plane = own.first; plane < own.end; plane++) {
        const int32_t at = plane % channels, scale = it->rounding.step * at;
        const int32_t weight_zero = read_zero(weight_zeros, it->zeros * at, it->weight);
        read_terms(it, skip(weights, at * area, it->weight), weight_zero, in.width, &of);
        of.bias = bias ? bias[at] : 0;
        of.scale = scales ? scales[scale] : 1;
        of.offset = offsets ? offsets[scale] : 0;
        convolve_plane(it, &in, skip(x, plane / conv->out_channels * in_plane, it->x), zero, &of,
                       (byte *)y + plane * out_plane);
    }
}

#ifndef WIDE /* what follows adds up no products */
/* Read up to a line of elements, every one or one again and again, less their zero point. */
INLINE void read_line(const void *from, kernel_integer type, int32_t zero, int32_t step, int32_t count, float *to) {
    if (type.bits > 8) {
        for (int32_t i = 0; i < count; i++) {
            to[i] = (float)((((const uint16_t *)from)[i * step] ^ type.flip) - zero);
        }
    } else {
        for (int32_t i = 0; i < count; i++) {
            to[i] = (float)((((const byte *)from)[i * step] ^ type.flip) - zero);
        }
    }
}

/* Compute lines; a step of b of 0 or 1 and `adds` are constants where this is called. Results may lie over a, of as
 * many bits: each is read before it is written. */
INLINE void compute_lines(const kernel_int_pair *pair, const void *a, const void *b, int32_t step, int32_t adds,
                          byte *to) {
    const kernel_int_pair with = *pair;
    const limits within = find_limits(&with.rounding);
    float one[LINE], other[LINE];
    float values[LINE] = {0};
    const ptrdiff_t size = with.rounding.bits / 8;
    for (int32_t line = 0; line < with.outer; line++, b = skip(b, with.b_outer, with.b)) {
        for (int32_t done = 0; done < with.inner; done += LINE) {
            const int32_t many = least(LINE, with.inner - done);
            read_line(a, with.a, with.a_zero, 1, many, one);
            read_line(skip(b, (ptrdiff_t)done * step, with.b), with.b, with.b_zero, step, many, other);
            for (int32_t i = 0; i < many; i++) {
                values[i] = adds ? one[i] * with.a_scale + other[i] * with.b_scale : one[i] * other[i] * with.a_scale;
            }
            for (int32_t i = 0; i < many; i += WIDTH) {
                round_some(&with.rounding, &within, values + i, least(WIDTH, many - i), to + i * size);
            }
            a = skip(a, many, with.a);
            to += many * size;
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
static void take_larger(void *row, const void *line, int32_t count, kernel_integer type) {
    if (type.bits > 8) {
        uint16_t *restrict to = row;
        const uint16_t *restrict from = line;
        for (int32_t i = 0; i < count; i++) {
            const uint16_t value = (uint16_t)(from[i] ^ type.flip);
            to[i] = value > to[i] ? value : to[i];
        }
        return;
    }
    byte *restrict to = row, flip = (byte)type.flip;
    const byte *restrict from = line;
    for (int32_t i = 0; i < count; i++) {
        const byte value = from[i] ^ flip;
        to[i] = value > to[i] ? value : to[i];
    }
}

/* Take the largest of each window of a row of `columns`, which are those of its rows. */
static void pool_columns(const kernel_pool *pool, const void *line, kernel_integer type, void *result) {
    const kernel_window *w = &pool->window;
    const byte *restrict columns = line, flip = (byte)type.flip;
    byte *restrict to = result;
    memset(to, 0, (size_t)pool->out_cols * ((size_t)type.bits / 8));
    for (int32_t col = 0; col < w->cols; col++) {
        const int32_t offset = col * w->col_dilation - w->left, stride = w->col_stride;
        const int32_t begin = offset < 0 ? (-offset + stride - 1) / stride : 0;
        const int32_t inside = pool->in_cols - 1 - offset < 0 ? 0 : (pool->in_cols - 1 - offset) / stride + 1;
        const int32_t end = least(inside, pool->out_cols);
        if (type.bits > 8) {
            const uint16_t *restrict from = line;
            uint16_t *restrict made = result;
            for (int32_t i = begin; i < end; i++) {
                made[i] = from[offset + i * stride] > made[i] ? from[offset + i * stride] : made[i];
            }
            continue;
        }
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
        if (type.bits > 8) {
            ((uint16_t *)result)[i] = (uint16_t)(((uint16_t *)result)[i] ^ type.flip);
        } else {
            to[i] ^= flip;
        }
    }
}

void kernel_pool_max_int(const kernel_int_pool *it, const void *x, void *y, void *scratch) {
    const kernel_pool *pool = &it->pool;
    const kernel_window *w = &pool->window;
    const ptrdiff_t in_plane = (ptrdiff_t)pool->in_rows * pool->in_cols, size = it->x.bits / 8;
    const void *from = x;
    byte *to = y;
    for (int32_t plane = 0; plane < pool->planes; plane++, from = skip(from, in_plane, it->x)) {
        for (int32_t row = 0; row < pool->out_rows; row++, to += pool->out_cols * size) {
            const span rows = find_span(row, w->row_stride, w->row_dilation, w->top, w->rows, pool->in_rows);
            memset(scratch, 0, (size_t)(pool->in_cols * size));
            for (int32_t down = rows.first; down < rows.end; down++) {
                const ptrdiff_t line = (ptrdiff_t)(rows.start + down * w->row_dilation) * pool->in_cols;
                take_larger(scratch, skip(from, line, it->x), pool->in_cols, it->x);
            }
            pool_columns(pool, scratch, it->x, to);
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

static int64_t sum_elements(const void *elements, int32_t count, kernel_integer type) {
    const byte *from = elements;
    const int32_t flip = type.flip;
    int32_t sum = 0, i = 0;
    if (type.bits > 8) {
        int64_t large = 0;
        for (; i < count; i++) {
            large += ((const uint16_t *)elements)[i] ^ flip;
        }
        return large;
    }
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
static int64_t sum_window(const kernel_int_pool *it, const void *from, span rows, span cols) {
    const kernel_window *w = &it->pool.window;
    const int32_t in_cols = it->pool.in_cols, high = rows.end - rows.first, wide = cols.end - cols.first;
    int64_t sum = 0;
    if (wide == in_cols && w->row_dilation == 1 && w->col_dilation == 1) {
        return sum_elements(skip(from, (ptrdiff_t)(rows.start + rows.first) * in_cols, it->x), high * wide, it->x);
    }
    for (int32_t down = rows.first; down < rows.end; down++) {
        const ptrdiff_t line = (ptrdiff_t)(rows.start + down * w->row_dilation) * in_cols + cols.start;
        if (w->col_dilation == 1) {
            sum += sum_elements(skip(from, line + cols.first, it->x), wide, it->x);
            continue;
        }
        for (int32_t i = cols.first; i < cols.end; i++) {
            sum += read_element(from, line + i * w->col_dilation, it->x);
        }
    }
    return sum;
}

void kernel_pool_average_int(const kernel_int_pool *it, const void *x, void *y) {
    const kernel_pool *pool = &it->pool;
    const kernel_window *w = &pool->window;
    const limits within = find_limits(&it->rounding);
    const ptrdiff_t in_plane = (ptrdiff_t)pool->in_rows * pool->in_cols;
    const void *from = x;
    byte *to = y;
    for (int32_t plane = 0; plane < pool->planes; plane++, from = skip(from, in_plane, it->x)) {
        for (int32_t row = 0; row < pool->out_rows; row++) {
            const span rows = find_span(row, w->row_stride, w->row_dilation, w->top, w->rows, pool->in_rows);
            const int32_t high = count_places(rows, pool->padding_counts, w->rows, w->row_dilation,
                                              pool->in_rows + pool->bottom);
            for (int32_t col = 0; col < pool->out_cols; col++, to += it->rounding.bits / 8) {
                const span cols = find_span(col, w->col_stride, w->col_dilation, w->left, w->cols, pool->in_cols);
                const int32_t wide = count_places(cols, pool->padding_counts, w->cols, w->col_dilation,
                                                  pool->in_cols + pool->right);
                const int32_t inside = (rows.end - rows.first) * (cols.end - cols.first);
                const int64_t sum = sum_window(it, from, rows, cols) - (int64_t)inside * it->zero;
                const float mean = (float)sum * it->scale / (float)(high * wide);
                const float values[WIDTH] = {mean};
                round_some(&it->rounding, &within, values, 1, to);
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
    const kernel_rounding rounding = {with.type.bits, with.zero, 0, (1 << with.type.bits) - 1, with.type.flip, 0};
    const limits within = find_limits(&rounding);
    byte *to = y;
    float values[WIDTH] = {0};
    for (int32_t done = 0; done < with.count; done += WIDTH) {
        const int32_t many = least(WIDTH, with.count - done);
        for (int32_t i = 0; i < many; i++) {
            values[i] = x[done + i] / with.scale;
        }
        round_some(&rounding, &within, values, many, to + (ptrdiff_t)done * (with.type.bits / 8));
    }
}

void kernel_dequantize(const kernel_int_steps *steps, const void *x, float *y) {
    const kernel_int_steps with = *steps;
    const byte *from = x;
    if (with.type.bits > 8) {
        for (int32_t i = 0; i < with.count; i++) {
            y[i] = (float)((((const uint16_t *)x)[i] ^ with.type.flip) - with.zero) * with.scale;
        }
        return;
    }
    for (int32_t i = 0; i < with.count; i++) {
        y[i] = (float)((from[i] ^ with.type.flip) - with.zero) * with.scale;
    }
}
#endif
