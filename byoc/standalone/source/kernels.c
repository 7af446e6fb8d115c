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

INLINE vec load(const float *from) {
    vec result;
    memcpy(&result, from, sizeof result);
    return result;
}

INLINE void store(float *to, vec value) {
    memcpy(to, &value, sizeof value);
}

/* A block of a product: rows of a, b, c lie `a_row`, `b_row`, `c_row` floats apart. */
typedef struct block {
    int32_t rows, depth, cols;
    const float *a, *b, *bias;
    float *c;
    ptrdiff_t a_row, b_row, c_row, bias_row, bias_col;
    float scale, bias_scale;
    int first, last; /* of the blocks that are summed in c */
    kernel_activation activation;
} block;

/* Write a line of a tile to c, added to what c has, or to the bias, and activated if it is the last sum. */
static void write_line(const block *it, float *line, int32_t row, int32_t col) {
    float *c = it->c + row * it->c_row + col, plus[WIDTH] = {0};
    int32_t width = it->cols - col < WIDTH ? it->cols - col : WIDTH;
    if (!it->first) {
        memcpy(plus, c, (size_t)width * sizeof *c);
    } else if (it->bias) {
        const float *bias = it->bias + row * it->bias_row + col * it->bias_col;
        for (int32_t i = 0; i < width; i++) {
            plus[i] = it->bias_scale * bias[i * it->bias_col];
        }
    }
    for (int32_t i = 0; i < WIDTH; i++) {
        line[i] = plus[i] + it->scale * line[i];
    }
    if (it->last) {
        kernel_activate(it->activation, line, WIDTH);
    }
    if (width == WIDTH) {
        memcpy(c, line, WIDTH * sizeof *c);
    } else {
        memcpy(c, line, (size_t)width * sizeof *c);
    }
}

/* Compute a tile of `rows` rows, a constant where this is called. b has 16 columns from `col` on. */
INLINE void compute_tile(const block *it, int32_t rows, int32_t row, int32_t col) {
    vec sums[TILE_ROWS][VECS];
    const float *a = it->a + row * it->a_row, *b = it->b + col;
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
        float line[WIDTH];
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            store(line + v * LANES, sums[r][v]);
        }
        write_line(it, line, row + r, col);
    }
}

static void compute_whole_tile(const block *it, int32_t row, int32_t col) {
    compute_tile(it, TILE_ROWS, row, col);
}

static void compute_row(const block *it, int32_t row, int32_t col) {
    compute_tile(it, 1, row, col);
}

#if TILE_ROWS > 4
static void compute_four_rows(const block *it, int32_t row, int32_t col) {
    compute_tile(it, 4, row, col);
}
#endif

static void multiply_block(const block *it) {
    for (int32_t row = 0; row < it->rows;) {
        int32_t left = it->rows - row, rows = 1;
        void (*compute)(const block *, int32_t, int32_t) = compute_row;
        if (left >= TILE_ROWS) {
            rows = TILE_ROWS;
            compute = compute_whole_tile;
#if TILE_ROWS > 4
        } else if (left >= 4) {
            rows = 4;
            compute = compute_four_rows;
#endif
        }
        for (int32_t col = 0; col < it->cols; col += WIDTH) {
            compute(it, row, col);
        }
        row += rows;
    }
}

static int32_t round_up(int32_t number) {
    return (number + WIDTH - 1) / WIDTH * WIDTH;
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

/* Write what the window reads as a matrix: a row for each place in it, a column for each pixel of the
 * result from `first_pixel` on. Rows are `to_row` floats apart, and end in zeros. */
static void gather_windows(const kernel_conv *conv, const float *x, int32_t first_place, int32_t places,
                           int32_t first_pixel, int32_t pixels, float *to, int32_t to_row) {
    const kernel_window *window = &conv->window;
    const int32_t area = window->rows * window->cols;
    for (int32_t k = first_place; k < first_place + places; k++, to += to_row) {
        const float *plane = x + (ptrdiff_t)(k / area) * conv->in_rows * conv->in_cols;
        int32_t down = k % area / window->cols * window->row_dilation - window->top;
        int32_t across = k % area % window->cols * window->col_dilation - window->left;
        int32_t row = first_pixel / conv->out_cols, col = first_pixel % conv->out_cols;
        for (int32_t done = 0; done < pixels; row++, col = 0) {
            int32_t count = least(conv->out_cols - col, pixels - done);
            int32_t in_row = row * window->row_stride + down;
            if (in_row < 0 || in_row >= conv->in_rows) {
                memset(to + done, 0, (size_t)count * sizeof *to);
            } else {
                gather_row(plane + (ptrdiff_t)in_row * conv->in_cols, conv->in_cols,
                           col * window->col_stride + across, window->col_stride, to + done, count);
            }
            done += count;
        }
        for (int32_t i = pixels; i < to_row; i++) {
            to[i] = 0;
        }
    }
}

/* Return whether the windows are the pixels themselves, so that an image is the matrix already. */
static int is_pointwise(const kernel_conv *conv) {
    const kernel_window *w = &conv->window;
    return w->rows == 1 && w->cols == 1 && w->row_stride == 1 && w->col_stride == 1 && !w->top && !w->left &&
           conv->in_rows == conv->out_rows && conv->in_cols == conv->out_cols;
}

/* Convolve one group of one image. */
static void convolve_group(const kernel_conv *conv, const float *x, const float *weights, const float *bias,
                           float *y, float *scratch) {
    const int32_t pixels = conv->out_rows * conv->out_cols, pointwise = is_pointwise(conv);
    const int32_t depth = conv->in_channels * conv->window.rows * conv->window.cols;
    block it = {0};
    it.rows = conv->out_channels;
    it.a_row = depth;
    it.c_row = pixels;
    it.bias = bias;
    it.bias_row = 1;
    it.scale = it.bias_scale = 1;
    it.activation = conv->activation;
    for (int32_t pixel = 0; pixel < pixels; pixel += KERNEL_COLUMNS) {
        it.cols = least(KERNEL_COLUMNS, pixels - pixel);
        it.c = y + pixel;
        for (int32_t k = 0; k < depth; k += KERNEL_DEPTH) {
            it.depth = least(KERNEL_DEPTH, depth - k);
            it.a = weights + k;
            it.first = k == 0;
            it.last = k + it.depth == depth;
            if (pointwise && it.cols % WIDTH == 0) {
                it.b = x + (ptrdiff_t)k * pixels + pixel;
                it.b_row = pixels;
            } else {
                it.b = scratch;
                it.b_row = round_up(it.cols);
                gather_windows(conv, x, k, it.depth, pixel, it.cols, scratch, (int32_t)it.b_row);
            }
            multiply_block(&it);
        }
    }
}

void kernel_convolve(const kernel_conv *conv, const float *x, const float *weights, const float *bias,
                     float *y, float *scratch) {
    const ptrdiff_t in_group = (ptrdiff_t)conv->in_channels * conv->in_rows * conv->in_cols;
    const ptrdiff_t out_group = (ptrdiff_t)conv->out_channels * conv->out_rows * conv->out_cols;
    const ptrdiff_t area = (ptrdiff_t)conv->window.rows * conv->window.cols;
    for (int32_t image = 0; image < conv->images; image++) {
        for (int32_t group = 0; group < conv->groups; group++) {
            convolve_group(conv, x, weights + group * conv->out_channels * conv->in_channels * area,
                           bias ? bias + group * conv->out_channels : NULL, y, scratch);
            x += in_group;
            y += out_group;
        }
    }
}

/* Copy a block of b to scratch, with zeros behind its columns. */
static void copy_block(const float *b, int32_t b_row, int32_t b_col, int32_t depth, int32_t cols, float *to,
                       int32_t to_row) {
    for (int32_t k = 0; k < depth; k++, to += to_row, b += b_row) {
        if (b_col == 1) {
            memcpy(to, b, (size_t)cols * sizeof *to);
        } else {
            for (int32_t i = 0; i < cols; i++) {
                to[i] = b[(ptrdiff_t)i * b_col];
            }
        }
        for (int32_t i = cols; i < to_row; i++) {
            to[i] = 0;
        }
    }
}

void kernel_multiply(const kernel_product *product, const float *a, const float *b, const float *bias,
                     float *c, float *scratch) {
    const int32_t copies = product->rows > TILE_ROWS || product->b_col != 1;
    block it = {0};
    it.rows = product->rows;
    it.a_row = product->a_row;
    it.c_row = product->cols;
    it.bias_row = product->bias_row;
    it.bias_col = product->bias_col;
    it.scale = product->scale;
    it.bias_scale = product->bias_scale;
    it.activation = product->activation;
    for (int32_t number = 0; number < product->count; number++) {
        for (int32_t col = 0; col < product->cols; col += KERNEL_COLUMNS) {
            it.cols = least(KERNEL_COLUMNS, product->cols - col);
            it.c = c + col;
            it.bias = bias ? bias + (ptrdiff_t)col * product->bias_col : NULL;
            for (int32_t k = 0; k < product->depth; k += KERNEL_DEPTH) {
                const float *from = b + (ptrdiff_t)k * product->b_row + (ptrdiff_t)col * product->b_col;
                it.depth = least(KERNEL_DEPTH, product->depth - k);
                it.a = a + k;
                it.first = k == 0;
                it.last = k + it.depth == product->depth;
                it.b = from;
                it.b_row = product->b_row;
                if (copies || it.cols % WIDTH) {
                    it.b = scratch;
                    it.b_row = round_up(it.cols);
                    copy_block(from, product->b_row, product->b_col, it.depth, it.cols, scratch,
                               (int32_t)it.b_row);
                }
                multiply_block(&it);
            }
        }
        a += product->a_batch;
        b += product->b_batch;
        c += (ptrdiff_t)product->rows * product->cols;
    }
}
