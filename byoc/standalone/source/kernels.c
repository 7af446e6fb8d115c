/* Kernels of the host. See kernels.h.
 *
 * Convolutions and products share one loop: a tile of a few rows and 16 columns is kept in registers while
 * it runs along the depth. `vec` is as wide as the machine's registers; without vectors it is a float, and
 * the same source is plain C99.
 */
#include "kernels.h"

#include <string.h>

#if defined(__GNUC__) && defined(__AVX512F__)
#define LANES 16
#define TILE_ROWS 12
#elif defined(__GNUC__) && defined(__AVX__)
#define LANES 8
#define TILE_ROWS 6
#elif defined(__GNUC__) && (defined(__aarch64__) || defined(__ARM_NEON) || defined(__VSX__))
#define LANES 4
#define TILE_ROWS 6
#elif defined(__GNUC__) && (defined(__SSE2__) || defined(__wasm_simd128__))
#define LANES 4
#define TILE_ROWS 3
#else
#define LANES 1
#define TILE_ROWS 2
#endif

#if LANES > 1
typedef float vec __attribute__((vector_size(4 * LANES)));
#else
typedef float vec;
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
#define ROW_TILES (LANES >= 8 ? 4 : LANES >= 4 ? 2 : 1) /* that a single row computes at once */

/* Up to so many rows of weights an image is read where it is, row by row; for more it is copied as tiles. */
#define DIRECT_ROWS 24

INLINE vec load(const float *from) {
    vec result;
    memcpy(&result, from, sizeof result);
    return result;
}

INLINE void store(float *to, vec value) {
    memcpy(to, &value, sizeof value);
}

/* A block of a product: rows of a and c lie `a_row`, `c_row` floats apart. b is tiles of 16 columns, `b_tile` floats
 * apart, whose rows lie `b_row` floats apart. */
typedef struct block {
    int32_t rows, depth, cols;
    const float *a, *b, *bias;
    float *c;
    ptrdiff_t a_row, b_row, b_tile, c_row, bias_row, bias_col;
    float scale, bias_scale;
    int first, last; /* of the blocks that are summed in c */
    kernel_activation activation;
} block;

/* Where a tile is written, and what is added to it: with `repeats` one number a row, else 16. */
typedef struct target {
    float *c;
    const float *plus;
    ptrdiff_t c_row, plus_row;
    float plus_scale;
    int repeats;
} target;

#if LANES > 1
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

/* Take `one` where a mask is set, else `other`. */
INLINE vec choose(mask chosen, vec one, vec other) {
    mask bits, others;
    memcpy(&bits, &one, sizeof bits);
    memcpy(&others, &other, sizeof others);
    bits = (chosen & bits) | (~chosen & others);
    memcpy(&one, &bits, sizeof one);
    return one;
}
#else
INLINE vec choose(int chosen, vec one, vec other) {
    return chosen ? one : other;
}
#endif

/* Limit numbers; NaN stays. */
INLINE vec limit(vec value, float low, float high) {
    const vec lows = (vec){0} + low, highs = (vec){0} + high;
    value = choose(value < lows, lows, value);
    return choose(value > highs, highs, value);
}

INLINE vec activate(kernel_activation with, vec value) {
    if (with.hard_swish) {
        value *= limit(value * (1 / 6.0f) + 0.5f, 0, 1);
    }
    return limit(value, with.low, with.high);
}

/* Write row `r` of a tile. */
INLINE void write_row(const block *it, const target *to, int32_t r, const vec *sums) {
    const float scale = it->scale, plus_scale = to->plus_scale;
    UNROLLED
    for (int32_t v = 0; v < VECS; v++) {
        vec value = scale * sums[v];
        if (to->plus && to->repeats) {
            value += plus_scale * to->plus[r * to->plus_row];
        } else if (to->plus) {
            value += plus_scale * load(to->plus + r * to->plus_row + v * LANES);
        }
        if (it->last) {
            value = activate(it->activation, value);
        }
        store(to->c + r * to->c_row + v * LANES, value);
    }
}

/* Compute a tile of `rows` rows, a constant where this is called. */
INLINE void compute_tile(const block *it, int32_t rows, const float *a, const float *b, const target *to) {
    vec sums[TILE_ROWS][VECS];
    const ptrdiff_t a_row = it->a_row, b_row = it->b_row;
    UNROLLED
    for (int32_t r = 0; r < rows; r++) {
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            sums[r][v] = (vec){0};
        }
    }
    for (int32_t k = 0; k < it->depth; k++) {
        vec b_vecs[VECS];
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            b_vecs[v] = load(b + v * LANES);
        }
        UNROLLED
        for (int32_t r = 0; r < rows; r++) {
            UNROLLED
            for (int32_t v = 0; v < VECS; v++) {
                sums[r][v] += a[r * a_row] * b_vecs[v];
            }
        }
        a++;
        b += b_row;
    }
    UNROLLED
    for (int32_t r = 0; r < rows; r++) {
        write_row(it, to, r, sums[r]);
    }
}

/* Compute ROW_TILES tiles of one row: a single tile would wait for its own sums. */
static void compute_wide_row(const block *it, const float *a, const float *b, target to) {
    vec sums[ROW_TILES][VECS];
    UNROLLED
    for (int32_t t = 0; t < ROW_TILES; t++) {
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            sums[t][v] = (vec){0};
        }
    }
    for (int32_t k = 0; k < it->depth; k++, b += it->b_row) {
        UNROLLED
        for (int32_t t = 0; t < ROW_TILES; t++) {
            UNROLLED
            for (int32_t v = 0; v < VECS; v++) {
                sums[t][v] += a[k] * load(b + t * it->b_tile + v * LANES);
            }
        }
    }
    UNROLLED
    for (int32_t t = 0; t < ROW_TILES; t++) {
        write_row(it, &to, 0, sums[t]);
        to.c += WIDTH;
        to.plus += to.plus && !to.repeats ? WIDTH : 0;
    }
}

static void compute_whole_tile(const block *it, const float *a, const float *b, const target *to) {
    compute_tile(it, TILE_ROWS, a, b, to);
}

static void compute_row(const block *it, const float *a, const float *b, const target *to) {
    compute_tile(it, 1, a, b, to);
}

#if TILE_ROWS > 4
static void compute_four_rows(const block *it, const float *a, const float *b, const target *to) {
    compute_tile(it, 4, a, b, to);
}
#endif

/* Compute a tile whose columns are not all of c. */
static void compute_edge(const block *it, int32_t rows, int32_t width, const float *a, const float *b, target to,
                         void (*compute)(const block *, const float *, const float *, const target *)) {
    float edge[TILE_ROWS * WIDTH] = {0};
    float *c = to.c;
    if (to.plus && !to.repeats) {
        for (int32_t r = 0; r < rows; r++) {
            memcpy(edge + r * WIDTH, to.plus + r * to.plus_row, (size_t)width * sizeof *c);
        }
        to.plus = edge;
        to.plus_row = WIDTH;
    }
    const ptrdiff_t c_row = to.c_row;
    to.c = edge;
    to.c_row = WIDTH;
    compute(it, a, b, &to);
    for (int32_t r = 0; r < rows; r++) {
        memcpy(c + r * c_row, edge + r * WIDTH, (size_t)width * sizeof *c);
    }
}

static void multiply_block(const block *it) {
    for (int32_t row = 0; row < it->rows;) {
        int32_t left = it->rows - row, rows = 1;
        void (*compute)(const block *, const float *, const float *, const target *) = compute_row;
        if (left >= TILE_ROWS) {
            rows = TILE_ROWS;
            compute = compute_whole_tile;
#if TILE_ROWS > 4
        } else if (left >= 4) {
            rows = 4;
            compute = compute_four_rows;
#endif
        }
        const float *a = it->a + row * it->a_row, *b = it->b;
        for (int32_t col = 0, tiles = 1; col < it->cols; col += tiles * WIDTH, b += tiles * it->b_tile) {
            const int32_t width = it->cols - col < WIDTH ? it->cols - col : WIDTH;
            target to = {it->c + row * it->c_row + col, NULL, it->c_row, it->c_row, 1, 0};
            if (!it->first) {
                to.plus = to.c;
            } else if (it->bias) {
                to.plus = it->bias + row * it->bias_row + col * it->bias_col;
                to.plus_row = it->bias_row;
                to.plus_scale = it->bias_scale;
                to.repeats = !it->bias_col;
            }
            tiles = rows == 1 && it->cols - col >= ROW_TILES * WIDTH ? ROW_TILES : 1;
            if (tiles > 1) {
                compute_wide_row(it, a, b, to);
            } else if (width == WIDTH) {
                compute(it, a, b, &to);
            } else {
                compute_edge(it, rows, width, a, b, to, compute);
            }
        }
        row += rows;
    }
}

static int32_t least(int32_t one, int32_t other) {
    return one < other ? one : other;
}

/* Copy `count` pixels of a row of an image for one place of the window; outside of the image are zeros. */
static void gather_row(const float *x, int32_t in_cols, int32_t col, int32_t stride, float *to, int32_t count) {
    int32_t before = col < 0 ? (-col + stride - 1) / stride : 0;
    before = least(before, count);
    int32_t room = in_cols - 1 - col;
    int32_t end = room < 0 ? before : least(room / stride + 1, count);
    for (int32_t i = 0; i < before; i++) {
        to[i] = 0;
    }
    if (stride == 1) {
        for (int32_t i = before; i < end; i++) {
            to[i] = x[col + i];
        }
    } else {
        for (int32_t i = before; i < end; i++) {
            to[i] = x[col + i * stride];
        }
    }
    for (int32_t i = end < before ? before : end; i < count; i++) {
        to[i] = 0;
    }
}

/* Write a row of a matrix to tiles of 16 columns, `tile` floats apart; behind `cols` are zeros. */
static void write_to_tiles(const float *line, int32_t cols, float *to, ptrdiff_t tile) {
    for (int32_t col = 0; col < cols; col += WIDTH, to += tile) {
        if (cols - col >= WIDTH) {
            memcpy(to, line + col, WIDTH * sizeof *to);
        } else {
            memset(to, 0, WIDTH * sizeof *to);
            memcpy(to, line + col, (size_t)(cols - col) * sizeof *to);
        }
    }
}

/* Copy `pixels` pixels from a row and column of the result on, for the place of the window that reads the image
 * `down` rows and `across` columns further. */
static void gather_pixels(const kernel_conv *conv, const float *plane, int32_t down, int32_t across, int32_t row,
                          int32_t col, int32_t pixels, float *to) {
    const kernel_window *window = &conv->window;
    for (int32_t done = 0; done < pixels; row++, col = 0) {
        int32_t count = least(conv->out_cols - col, pixels - done);
        int32_t in_row = row * window->row_stride + down;
        if (in_row < 0 || in_row >= conv->in_rows) {
            memset(to + done, 0, (size_t)count * sizeof *to);
        } else {
            gather_row(plane + (ptrdiff_t)in_row * conv->in_cols, conv->in_cols, col * window->col_stride + across,
                       window->col_stride, to + done, count);
        }
        done += count;
    }
}

/* Return whether the windows are the pixels themselves, so that an image is the matrix already. */
static int is_pointwise(const kernel_conv *conv) {
    const kernel_window *w = &conv->window;
    return w->rows == 1 && w->cols == 1 && w->row_stride == 1 && w->col_stride == 1 && !w->top && !w->left &&
           conv->in_rows == conv->out_rows && conv->in_cols == conv->out_cols;
}

/* Write what the window reads as tiles of a matrix: a row for each place in it, of `places`, a column for each pixel
 * of the result from `pixel` on. */
static void gather_windows(const kernel_conv *conv, const float *x, int32_t place, int32_t places, int32_t pixel,
                           int32_t pixels, float *to) {
    const kernel_window *window = &conv->window;
    const int32_t area = window->rows * window->cols, pointwise = is_pointwise(conv);
    const int32_t row = pixel / conv->out_cols, col = pixel % conv->out_cols;
    const ptrdiff_t plane = (ptrdiff_t)conv->in_rows * conv->in_cols, tile = (ptrdiff_t)places * WIDTH;
    float line[KERNEL_COLUMNS];
    for (int32_t k = place; k < place + places; k++, to += WIDTH) {
        const float *from = x + k / area * plane;
        if (pointwise) {
            write_to_tiles(from + pixel, pixels, to, tile);
            continue;
        }
        const int32_t down = k % area / window->cols * window->row_dilation - window->top;
        const int32_t across = k % area % window->cols * window->col_dilation - window->left;
        gather_pixels(conv, from, down, across, row, col, pixels, line);
        write_to_tiles(line, pixels, to, tile);
    }
}

/* Convolve one group of one image for `cols` pixels of the result from `pixel` on, whose rows lie `c_row` floats apart
 * from c on. Weights are a row for each channel. */
static void convolve_pixels(const kernel_conv *conv, const float *x, const float *weights, const float *bias,
                            int32_t pixel, int32_t cols, float *c, ptrdiff_t c_row, float *scratch) {
    const int32_t pixels = conv->out_rows * conv->out_cols;
    const int32_t depth = conv->in_channels * conv->window.rows * conv->window.cols;
    const int32_t direct = is_pointwise(conv) && cols % WIDTH == 0 && conv->out_channels <= DIRECT_ROWS;
    block it = {0};
    it.rows = conv->out_channels;
    it.a_row = depth;
    it.c = c;
    it.c_row = c_row;
    it.bias = bias;
    it.bias_row = 1;
    it.scale = it.bias_scale = 1;
    it.activation = conv->activation;
    it.cols = cols;
    int32_t k = 0;
    do { /* once also where a window has no place at all */
        it.depth = least(KERNEL_DEPTH, depth - k);
        it.a = weights + k;
        it.first = k == 0;
        it.last = k + it.depth == depth;
        if (direct) {
            it.b = x + (ptrdiff_t)k * pixels + pixel;
            it.b_row = pixels;
            it.b_tile = WIDTH;
        } else {
            it.b = scratch;
            it.b_row = WIDTH;
            it.b_tile = (ptrdiff_t)it.depth * WIDTH;
            gather_windows(conv, x, k, it.depth, pixel, cols, scratch);
        }
        multiply_block(&it);
        k += it.depth;
    } while (k < depth);
}

void kernel_convolve(const kernel_conv *conv, const float *x, const float *weights, const float *bias,
                     float *y, float *scratch, kernel_share share) {
    const ptrdiff_t in_group = (ptrdiff_t)conv->in_channels * conv->in_rows * conv->in_cols;
    const ptrdiff_t out_group = (ptrdiff_t)conv->out_channels * conv->out_rows * conv->out_cols;
    const ptrdiff_t depth = (ptrdiff_t)conv->in_channels * conv->window.rows * conv->window.cols;
    const int32_t pixels = conv->out_rows * conv->out_cols;
    const int32_t blocks = (pixels + KERNEL_COLUMNS - 1) / KERNEL_COLUMNS, all = conv->images * conv->groups * blocks;
    const int by_blocks = kernel_prefers_blocks(all, conv->out_channels, share.count);
    const kernel_range own = kernel_take(all, 1, by_blocks ? share : KERNEL_WHOLE);
    const kernel_range channels = kernel_take(conv->out_channels, KERNEL_ROWS, by_blocks ? KERNEL_WHOLE : share);
    kernel_conv part = *conv;
    part.out_channels = channels.end - channels.first;
    for (int32_t number = own.first; part.out_channels && number < own.end; number++) {
        const int32_t at = number / blocks, pixel = number % blocks * KERNEL_COLUMNS;
        const int32_t channel = at % conv->groups * conv->out_channels + channels.first;
        convolve_pixels(&part, x + at * in_group, weights + channel * depth, bias ? bias + channel : NULL, pixel,
                        least(KERNEL_COLUMNS, pixels - pixel),
                        y + at * out_group + (ptrdiff_t)channels.first * pixels + pixel, pixels, scratch);
    }
}

/* The places of one axis of a window that reach results number `at`, `at` + stride and so on, as a window that moves by
 * single pixels: how many, and the padding before it. */
static void find_phase(int32_t at, int32_t size, int32_t stride, int32_t before, int32_t *places, int32_t *padding) {
    const int32_t first = (at + before) % stride;
    *places = first < size ? (size - first + stride - 1) / stride : 0;
    *padding = *places - 1 - (at + before) / stride;
}

/* Write `count` pixels of a channel from number `pixel` of a phase on to where they are in the result. */
static void spread_pixels(const kernel_conv *conv, const kernel_conv *phase, int32_t pixel, int32_t count,
                          const float *from, float *y) {
    const int32_t row_stride = conv->window.row_stride, stride = conv->window.col_stride;
    int32_t row = pixel / phase->out_cols, col = pixel % phase->out_cols;
    for (int32_t done = 0; done < count; row++, col = 0) {
        const int32_t many = least(phase->out_cols - col, count - done);
        float *to = y + (ptrdiff_t)row * row_stride * conv->out_cols + (ptrdiff_t)col * stride;
        for (int32_t i = 0; i < many; i++) {
            to[(ptrdiff_t)i * stride] = from[done + i];
        }
        done += many;
    }
}

/* Compute the results of one group of one image whose rows and columns are those of one phase of the strides. */
static void convolve_phase(const kernel_conv *conv, const kernel_conv *phase, const float *x, const float *weights,
                           const float *bias, float *y, float *scratch) {
    const int32_t pixels = phase->out_rows * phase->out_cols;
    const ptrdiff_t plane = (ptrdiff_t)conv->out_rows * conv->out_cols;
    float *panel = scratch + (ptrdiff_t)conv->out_channels * KERNEL_COLUMNS;
    for (int32_t pixel = 0; pixel < pixels; pixel += KERNEL_COLUMNS) {
        const int32_t cols = least(KERNEL_COLUMNS, pixels - pixel);
        convolve_pixels(phase, x, weights, bias, pixel, cols, scratch, KERNEL_COLUMNS, panel);
        for (int32_t o = 0; o < conv->out_channels; o++) {
            spread_pixels(conv, phase, pixel, cols, scratch + (ptrdiff_t)o * KERNEL_COLUMNS, y + o * plane);
        }
    }
}

void kernel_convolve_transposed(const kernel_conv *conv, const float *x, const float *weights, const float *bias,
                                float *y, float *scratch) {
    const kernel_window *window = &conv->window;
    const ptrdiff_t in_group = (ptrdiff_t)conv->in_channels * conv->in_rows * conv->in_cols;
    const ptrdiff_t out_group = (ptrdiff_t)conv->out_channels * conv->out_rows * conv->out_cols;
    for (int32_t number = 0; number < window->row_stride * window->col_stride; number++) {
        const int32_t row = number / window->col_stride, col = number % window->col_stride;
        kernel_conv phase = *conv;
        phase.window.row_stride = phase.window.col_stride = 1;
        find_phase(row, window->rows, window->row_stride, window->top, &phase.window.rows, &phase.window.top);
        find_phase(col, window->cols, window->col_stride, window->left, &phase.window.cols, &phase.window.left);
        phase.out_rows = (conv->out_rows - row + window->row_stride - 1) / window->row_stride;
        phase.out_cols = (conv->out_cols - col + window->col_stride - 1) / window->col_stride;
        const ptrdiff_t depth = (ptrdiff_t)conv->in_channels * phase.window.rows * phase.window.cols;
        const ptrdiff_t first = (ptrdiff_t)row * conv->out_cols + col;
        for (int32_t at = 0; at < conv->images * conv->groups; at++) {
            const int32_t group = at % conv->groups;
            convolve_phase(conv, &phase, x + at * in_group, weights + group * conv->out_channels * depth,
                           bias ? bias + group * conv->out_channels : NULL, y + at * out_group + first, scratch);
        }
        weights += conv->groups * conv->out_channels * depth;
    }
}

/* Copy a block of b to scratch, as tiles. */
static void copy_block(const float *b, int32_t b_row, int32_t b_col, int32_t depth, int32_t cols, float *to) {
    const ptrdiff_t tile = (ptrdiff_t)depth * WIDTH;
    for (int32_t k = 0; k < depth; k++, to += WIDTH, b += b_row) {
        float line[KERNEL_COLUMNS];
        if (b_col == 1) {
            write_to_tiles(b, cols, to, tile);
            continue;
        }
        for (int32_t i = 0; i < cols; i++) {
            line[i] = b[(ptrdiff_t)i * b_col];
        }
        write_to_tiles(line, cols, to, tile);
    }
}

/* Find the block of b from a row and a column on: where it is, or as a copy in scratch. */
static void find_block(const kernel_product *product, const float *b, int32_t k, int32_t col, float *scratch,
                       block *it) {
    const int32_t whole = product->cols - product->cols % WIDTH;
    int32_t b_row = product->b_row, b_col = product->b_col;
    if (product->tiled && col < whole) {
        it->b = b + (ptrdiff_t)col * product->depth + (ptrdiff_t)k * WIDTH;
        it->b_row = WIDTH;
        it->b_tile = (ptrdiff_t)product->depth * WIDTH;
        return;
    }
    if (product->tiled) { /* the rest is a matrix of its own */
        b_row = product->cols - whole;
        b_col = 1;
        b += (ptrdiff_t)whole * product->depth - whole;
    }
    b += (ptrdiff_t)k * b_row + (ptrdiff_t)col * b_col;
    if (product->rows > TILE_ROWS || b_col != 1 || it->cols % WIDTH) {
        copy_block(b, b_row, b_col, it->depth, it->cols, scratch);
        it->b = scratch;
        it->b_row = WIDTH;
        it->b_tile = (ptrdiff_t)it->depth * WIDTH;
        return;
    }
    it->b = b;
    it->b_row = b_row;
    it->b_tile = WIDTH;
}

void kernel_multiply(const kernel_product *product, const float *a, const float *b, const float *bias,
                     float *c, float *scratch, kernel_share share) {
    const int32_t whole = product->tiled ? product->cols - product->cols % WIDTH : 0, rest = product->cols - whole;
    const int32_t blocks = (whole + KERNEL_COLUMNS - 1) / KERNEL_COLUMNS + (rest + KERNEL_COLUMNS - 1) / KERNEL_COLUMNS;
    const int by_blocks = kernel_prefers_blocks(product->count * blocks, product->rows, share.count);
    const kernel_range own = kernel_take(product->count * blocks, 1, by_blocks ? share : KERNEL_WHOLE);
    const kernel_range rows = kernel_take(product->rows, KERNEL_ROWS, by_blocks ? KERNEL_WHOLE : share);
    block it = {0};
    it.rows = rows.end - rows.first;
    it.a_row = product->a_row;
    it.c_row = product->cols;
    it.bias_row = product->bias_row;
    it.bias_col = product->bias_col;
    it.scale = product->scale;
    it.bias_scale = product->bias_scale;
    it.activation = product->activation;
    for (int32_t number = own.first; number < own.end; number++) {
        const int32_t at = number / blocks, place = number % blocks * KERNEL_COLUMNS;
        const int32_t col = place < whole || !product->tiled ? place : whole;
        const float *from = b + at * product->b_batch;
        it.cols = least(KERNEL_COLUMNS, (col < whole ? whole : product->cols) - col);
        it.c = c + ((ptrdiff_t)at * product->rows + rows.first) * product->cols + col;
        it.bias = bias ? bias + (ptrdiff_t)col * product->bias_col + (ptrdiff_t)rows.first * product->bias_row : NULL;
        for (int32_t k = 0; k < product->depth; k += KERNEL_DEPTH) {
            it.depth = least(KERNEL_DEPTH, product->depth - k);
            it.a = a + at * product->a_batch + (ptrdiff_t)rows.first * product->a_row + k;
            it.first = k == 0;
            it.last = k + it.depth == product->depth;
            find_block(product, from, k, col, scratch, &it);
            multiply_block(&it);
        }
    }
}
