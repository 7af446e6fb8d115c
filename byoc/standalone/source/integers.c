/* Kernels of the host on integers of 8 bits, with exact sums of 32 bits. See kernels.h.
 *
 * Convolutions and products share one loop: numbers are widened to 16 bits, less their zero points, and multiplied in
 * pairs of neighbours along the depth, which x86 adds up in one instruction. Elsewhere it is plain C.
 */
#include "kernels.h"

#include <math.h>
#include <string.h>

#if defined(__GNUC__) && defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
#define TILE_ROWS 6
typedef __m256i lanes;
#define ADD_PAIRS(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#define REPEAT(pair) _mm256_set1_epi32(pair)
#elif defined(__GNUC__) && defined(__SSE2__)
#include <emmintrin.h>
#define LANES 4
#define TILE_ROWS 2
typedef __m128i lanes;
#define ADD_PAIRS(sum, a, b) _mm_add_epi32(sum, _mm_madd_epi16(a, b))
#define REPEAT(pair) _mm_set1_epi32(pair)
#else
#define LANES 1
#define TILE_ROWS 4
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 16")
#else
#define INLINE static inline
#define UNROLLED
#endif

#define WIDTH 16
#define VECS (WIDTH / LANES)

typedef unsigned char byte;

static int32_t least(int32_t one, int32_t other) {
    return one < other ? one : other;
}

static int32_t read_zero(const void *zeros, int32_t at, int32_t flip) {
    return zeros ? ((const byte *)zeros)[at] ^ flip : flip;
}

/* Round half to even a number of less than 2^22: a float that large has no bits behind the point. */
INLINE int32_t round_even(float value) {
    const float moved = value + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &moved, sizeof bits);
    return bits - 0x4B400000;
}

INLINE byte limit_byte(const kernel_rounding *to, float value) {
    const float low = (float)(to->low - to->zero), high = (float)(to->high - to->zero);
    value = value < low ? low : value;
    value = value > high ? high : value;
    return (byte)((round_even(value) + to->zero) ^ to->flip);
}

/* Store a line of sums: `count` of them, of channels from `channel` on, `step` channels apart. */
INLINE void store_sums(const kernel_rounding *rounding, const int32_t *sums, int32_t count, const float *scales,
                       const float *offsets, int32_t channel, int32_t step, byte *to) {
    const kernel_rounding with = *rounding;
    if (with.bits == 32) {
        memcpy(to, sums, (size_t)count * sizeof *sums);
        return;
    }
    channel *= with.step;
    step *= with.step;
    if (offsets) {
        for (int32_t i = 0; i < count; i++) {
            to[i] = limit_byte(&with, (float)sums[i] * scales[channel + i * step] + offsets[channel + i * step]);
        }
    } else if (step) {
        for (int32_t i = 0; i < count; i++) {
            to[i] = limit_byte(&with, (float)sums[i] * scales[channel + i]);
        }
    } else {
        const float scale = scales[channel];
        for (int32_t i = 0; i < count; i++) {
            to[i] = limit_byte(&with, (float)sums[i] * scale);
        }
    }
}

/* Widen a row of `depth` numbers to 16 bits, a 0 behind an odd one. */
static void widen_row(const byte *from, int32_t depth, int32_t flip, int32_t zero, int16_t *to) {
    for (int32_t k = 0; k < depth; k++) {
        to[k] = (int16_t)((from[k] ^ flip) - zero);
    }
    if (depth % 2) {
        to[depth] = 0;
    }
}

/* Write two rows of 16 numbers as pairs. */
static void write_pairs(const byte *even, const byte *odd, int32_t flip, int32_t zero, int16_t *to) {
    for (int32_t i = 0; i < WIDTH; i++) {
        to[2 * i] = (int16_t)((even[i] ^ flip) - zero);
        to[2 * i + 1] = (int16_t)((odd[i] ^ flip) - zero);
    }
}

/* Add up `rows` rows of a, a constant where this is called, times 16 columns of pairs. */
INLINE void add_tile(int32_t rows, int32_t pairs, const int16_t *a, ptrdiff_t a_row, const int16_t *b,
                     int32_t sums[TILE_ROWS][WIDTH]) {
#if LANES > 1
    lanes made[TILE_ROWS][VECS];
    UNROLLED
    for (int32_t r = 0; r < rows; r++) {
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            memset(&made[r][v], 0, sizeof made[r][v]);
        }
    }
    for (int32_t k = 0; k < pairs; k++, a += 2, b += 2 * WIDTH) {
        lanes columns[VECS];
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            memcpy(&columns[v], b + (ptrdiff_t)v * 2 * LANES, sizeof columns[v]);
        }
        UNROLLED
        for (int32_t r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, a + r * a_row, sizeof pair);
            UNROLLED
            for (int32_t v = 0; v < VECS; v++) {
                made[r][v] = ADD_PAIRS(made[r][v], REPEAT(pair), columns[v]);
            }
        }
    }
    UNROLLED
    for (int32_t r = 0; r < rows; r++) {
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            memcpy(&sums[r][v * LANES], &made[r][v], sizeof made[r][v]);
        }
    }
#else
    for (int32_t r = 0; r < rows; r++) {
        int32_t made[WIDTH] = {0};
        const int16_t *left = a + r * a_row, *right = b;
        for (int32_t k = 0; k < pairs; k++, left += 2, right += 2 * WIDTH) {
            for (int32_t i = 0; i < WIDTH; i++) {
                made[i] += left[0] * right[2 * i] + left[1] * right[2 * i + 1];
            }
        }
        memcpy(sums[r], made, sizeof made);
    }
#endif
}

static void add_whole_tile(int32_t pairs, const int16_t *a, ptrdiff_t a_row, const int16_t *b,
                           int32_t sums[TILE_ROWS][WIDTH]) {
    add_tile(TILE_ROWS, pairs, a, a_row, b, sums);
}

static void add_row(int32_t pairs, const int16_t *a, const int16_t *b, int32_t sums[TILE_ROWS][WIDTH]) {
    add_tile(1, pairs, a, 0, b, sums);
}

/* A block of a product: `rows` rows of bytes, `a_row` apart, times `tiles` of 16 columns of pairs. Channels are the rows,
 * or with `by_column` the columns. */
typedef struct int_block {
    int32_t rows, depth, cols, flip, zeros;
    const byte *a, *zero;
    const int16_t *panel;
    int16_t *wide;
    byte *c;
    ptrdiff_t a_row, c_row;
    const kernel_rounding *rounding;
    const int32_t *bias;
    const float *scales, *offsets;
    int32_t channel, by_column;
} int_block;

static void store_line(const int_block *it, int32_t *sums, int32_t row, int32_t col) {
    const int32_t width = least(WIDTH, it->cols - col), size = it->rounding->bits / 8;
    const int32_t channel = it->channel + (it->by_column ? col : row);
    byte *c = it->c + (row * it->c_row + col) * size;
    if (it->bias && it->by_column) {
        for (int32_t i = 0; i < width; i++) {
            sums[i] += it->bias[channel + i];
        }
    } else if (it->bias) {
        for (int32_t i = 0; i < WIDTH; i++) {
            sums[i] += it->bias[channel];
        }
    }
    if (width == WIDTH && !it->by_column) {
        store_sums(it->rounding, sums, WIDTH, it->scales, it->offsets, channel, 0, c);
    } else {
        store_sums(it->rounding, sums, width, it->scales, it->offsets, channel, it->by_column, c);
    }
}

static void multiply_block(const int_block *it) {
    const int32_t pairs = (it->depth + 1) / 2;
    for (int32_t row = 0; row < it->rows;) {
        const int32_t rows = it->rows - row >= TILE_ROWS ? TILE_ROWS : it->rows - row;
        for (int32_t r = 0; r < rows; r++) {
            const int32_t zero = read_zero(it->zero, it->zeros * (it->channel + row + r), it->flip);
            widen_row(it->a + (row + r) * it->a_row, it->depth, it->flip, zero, it->wide + r * 2 * pairs);
        }
        for (int32_t col = 0; col < it->cols; col += WIDTH) {
            const int16_t *b = it->panel + (ptrdiff_t)col * 2 * pairs;
            int32_t sums[TILE_ROWS][WIDTH];
            if (rows == TILE_ROWS) {
                add_whole_tile(pairs, it->wide, 2 * pairs, b, sums);
                for (int32_t r = 0; r < rows; r++) {
                    store_line(it, sums[r], row + r, col);
                }
            } else {
                for (int32_t r = 0; r < rows; r++) {
                    add_row(pairs, it->wide + r * 2 * pairs, b, sums);
                    store_line(it, sums[0], row + r, col);
                }
            }
        }
        row += rows;
    }
}

/* Copy `count` pixels from `pixel` on, for one place of the window; outside of the image is `zero`. */
static void gather_pixels(const kernel_conv *conv, const byte *x, int32_t place, int32_t pixel, int32_t count,
                          int32_t zero, byte *to) {
    const kernel_window *window = &conv->window;
    const int32_t area = window->rows * window->cols, stride = window->col_stride;
    const byte *plane = x + (ptrdiff_t)(place / area) * conv->in_rows * conv->in_cols;
    const int32_t down = place % area / window->cols * window->row_dilation - window->top;
    const int32_t across = place % area % window->cols * window->col_dilation - window->left;
    int32_t row = pixel / conv->out_cols, col = pixel % conv->out_cols;
    while (count > 0) {
        const int32_t many = least(conv->out_cols - col, count), in_row = row * window->row_stride + down;
        const byte *line = plane + (ptrdiff_t)in_row * conv->in_cols;
        int32_t in_col = col * stride + across;
        if (in_row < 0 || in_row >= conv->in_rows) {
            memset(to, zero, (size_t)many);
        } else if (stride == 1 && in_col >= 0 && in_col + many <= conv->in_cols) {
            memcpy(to, line + in_col, (size_t)many);
        } else {
            for (int32_t i = 0; i < many; i++, in_col += stride) {
                to[i] = in_col >= 0 && in_col < conv->in_cols ? line[in_col] : (byte)zero;
            }
        }
        to += many;
        count -= many;
        row++;
        col = 0;
    }
}

static int is_pointwise(const kernel_conv *conv) {
    const kernel_window *w = &conv->window;
    return w->rows == 1 && w->cols == 1 && w->row_stride == 1 && w->col_stride == 1 && !w->top && !w->left &&
           conv->in_rows == conv->out_rows && conv->in_cols == conv->out_cols;
}

/* Write what the windows of `cols` pixels read as tiles of pairs. */
static void gather_panel(const kernel_int_conv *it, const byte *x, int32_t zero, int32_t pixel, int32_t cols,
                         int16_t *panel) {
    const kernel_conv *conv = &it->conv;
    const int32_t depth = conv->in_channels * conv->window.rows * conv->window.cols;
    const int32_t pixels = conv->out_rows * conv->out_cols, pointwise = is_pointwise(conv);
    byte lines[2][KERNEL_COLUMNS];
    memset(lines, zero, sizeof lines);
    for (int32_t k = 0; k < depth; k += 2) {
        const byte *from[2] = {lines[0], lines[1]};
        for (int32_t half = 0; half < 2; half++) {
            if (k + half >= depth) {
                memset(lines[half], zero, WIDTH); /* one tile is enough: it is read for each below */
            } else if (pointwise && cols % WIDTH == 0) {
                from[half] = x + (ptrdiff_t)(k + half) * pixels + pixel;
            } else {
                gather_pixels(conv, x, k + half, pixel, cols, zero, lines[half]);
            }
        }
        for (int32_t col = 0; col < cols; col += WIDTH) {
            const int32_t odd = k + 1 < depth ? col : 0;
            write_pairs(from[0] + col, from[1] + odd, it->x_flip, zero ^ it->x_flip,
                        panel + (ptrdiff_t)col * (depth + depth % 2) + (ptrdiff_t)k * WIDTH);
        }
    }
}

/* The columns of a block: many where the depth is small, since rows are widened once for each block. */
static int32_t count_columns(int32_t depth) {
    return depth > KERNEL_DEPTH ? WIDTH : KERNEL_COLUMNS;
}

void kernel_convolve_int(const kernel_int_conv *it, const void *x, const void *x_zero, const void *weights,
                         const void *weight_zeros, const int32_t *bias, const float *scales, const float *offsets,
                         void *y, void *scratch) {
    const kernel_conv *conv = &it->conv;
    const int32_t depth = conv->in_channels * conv->window.rows * conv->window.cols, even = depth + depth % 2;
    const int32_t pixels = conv->out_rows * conv->out_cols, most = count_columns(depth);
    const int32_t zero = read_zero(x_zero, 0, it->x_flip) ^ it->x_flip;
    const byte *from = x;
    byte *to = y;
    int16_t *panel = (int16_t *)scratch + (ptrdiff_t)TILE_ROWS * even;
    int_block block = {0};
    block.rows = conv->out_channels;
    block.depth = depth;
    block.flip = it->weight_flip;
    block.zero = weight_zeros;
    block.zeros = it->zeros;
    block.panel = panel;
    block.wide = scratch;
    block.a_row = depth;
    block.c_row = pixels;
    block.rounding = &it->rounding;
    block.bias = bias;
    block.scales = scales;
    block.offsets = offsets;
    for (int32_t image = 0; image < conv->images; image++) {
        for (int32_t group = 0; group < conv->groups; group++) {
            block.channel = group * conv->out_channels;
            block.a = (const byte *)weights + (ptrdiff_t)block.channel * depth;
            for (int32_t pixel = 0; pixel < pixels; pixel += most) {
                block.cols = least(most, pixels - pixel);
                block.c = to + (ptrdiff_t)pixel * (it->rounding.bits / 8);
                gather_panel(it, from, zero, pixel, block.cols, panel);
                multiply_block(&block);
            }
            from += (ptrdiff_t)conv->in_channels * conv->in_rows * conv->in_cols;
            to += (ptrdiff_t)conv->out_channels * pixels * (it->rounding.bits / 8);
        }
    }
}

/* Write columns of b as tiles of pairs. */
static void copy_panel(const kernel_int_product *it, const byte *b, const void *zeros, int32_t first, int32_t cols,
                       int16_t *panel) {
    for (int32_t col = 0; col < cols; col += WIDTH) {
        const int32_t width = least(WIDTH, cols - col);
        int32_t zero[WIDTH] = {0};
        for (int32_t i = 0; i < width; i++) {
            zero[i] = read_zero(zeros, it->b_zeros * (first + col + i), it->b_flip);
        }
        for (int32_t k = 0; k < it->depth; k += 2, panel += 2 * WIDTH) {
            for (int32_t half = 0; half < 2; half++) {
                const byte *from = b + (ptrdiff_t)(k + half) * it->b_row + (ptrdiff_t)col * it->b_col;
                const int32_t many = k + half < it->depth ? width : 0;
                if (many == WIDTH && it->b_col == 1) {
                    for (int32_t i = 0; i < WIDTH; i++) {
                        panel[2 * i + half] = (int16_t)((from[i] ^ it->b_flip) - zero[i]);
                    }
                    continue;
                }
                for (int32_t i = 0; i < many; i++) {
                    panel[2 * i + half] = (int16_t)((from[(ptrdiff_t)i * it->b_col] ^ it->b_flip) - zero[i]);
                }
                for (int32_t i = many; i < WIDTH; i++) {
                    panel[2 * i + half] = 0;
                }
            }
        }
    }
}

void kernel_multiply_int(const kernel_int_product *it, const void *a, const void *a_zeros, const void *b,
                         const void *b_zeros, const int32_t *bias, const float *scales, const float *offsets,
                         void *c, void *scratch) {
    const int32_t even = it->depth + it->depth % 2, most = count_columns(it->depth);
    int16_t *panel = (int16_t *)scratch + (ptrdiff_t)TILE_ROWS * even;
    const byte *right = b;
    int_block block = {0};
    block.rows = it->rows;
    block.depth = it->depth;
    block.flip = it->a_flip;
    block.zero = a_zeros;
    block.zeros = it->a_zeros;
    block.a = a;
    block.panel = panel;
    block.wide = scratch;
    block.a_row = it->depth;
    block.c_row = it->cols;
    block.rounding = &it->rounding;
    block.by_column = 1;
    for (int32_t number = 0; number < it->count; number++) {
        byte *to = (byte *)c + (ptrdiff_t)number * it->rows * it->cols * (it->rounding.bits / 8);
        for (int32_t col = 0; col < it->cols; col += most) {
            const int32_t channel = it->rounding.step * col;
            block.cols = least(most, it->cols - col);
            block.c = to + (ptrdiff_t)col * (it->rounding.bits / 8);
            block.bias = bias ? bias + col : NULL;
            block.scales = scales ? scales + channel : NULL;
            block.offsets = offsets ? offsets + channel : NULL;
            copy_panel(it, right + (ptrdiff_t)col * it->b_col, b_zeros, col, block.cols, panel);
            multiply_block(&block);
        }
        block.a += it->a_batch;
        right += it->b_batch;
    }
}
