/* Kernels of the host that move a window over planes: depthwise convolution and pooling. See kernels.h.
 *
 * For each place of the window a row of the result is updated at once, so that compilers vectorize it and
 * nothing is tested for each pixel.
 */
#include "kernels.h"

#include <math.h>
#include <stddef.h>

/* The columns of a row of the result for which a column of the window is inside of the image. */
typedef struct span {
    int32_t begin, end, offset; /* offset: the column that is read for column 0 */
} span;

static span find_span(const kernel_window *window, int32_t col, int32_t in_cols, int32_t out_cols) {
    span found;
    found.offset = col * window->col_dilation - window->left;
    found.begin = found.offset < 0 ? (-found.offset + window->col_stride - 1) / window->col_stride : 0;
    found.end = in_cols - 1 - found.offset;
    found.end = found.end < 0 ? 0 : found.end / window->col_stride + 1;
    found.end = found.end < out_cols ? found.end : out_cols;
    return found;
}

/* Add a row of the image times a weight to a row of the result. */
static void add_row(const float *restrict x, float weight, float *restrict y, span at, int32_t stride) {
    if (stride == 1) {
        for (int32_t i = at.begin; i < at.end; i++) {
            y[i] += weight * x[at.offset + i];
        }
    } else {
        for (int32_t i = at.begin; i < at.end; i++) {
            y[i] += weight * x[at.offset + i * stride];
        }
    }
}

static void take_larger(const float *restrict x, float *restrict y, span at, int32_t stride) {
    if (stride == 1) {
        for (int32_t i = at.begin; i < at.end; i++) {
            float value = x[at.offset + i];
            y[i] = value > y[i] ? value : y[i];
        }
    } else {
        for (int32_t i = at.begin; i < at.end; i++) {
            float value = x[at.offset + i * stride];
            y[i] = value > y[i] ? value : y[i];
        }
    }
}

static void convolve_plane(const kernel_conv *conv, const float *x, const float *weights, float bias, float *y) {
    const kernel_window *window = &conv->window;
    const kernel_limits limits = conv->limits;
    for (int32_t row = 0; row < conv->out_rows; row++, y += conv->out_cols) {
        for (int32_t i = 0; i < conv->out_cols; i++) {
            y[i] = bias;
        }
        for (int32_t down = 0; down < window->rows; down++) {
            int32_t in_row = row * window->row_stride + down * window->row_dilation - window->top;
            if (in_row < 0 || in_row >= conv->in_rows) {
                continue;
            }
            const float *line = x + (ptrdiff_t)in_row * conv->in_cols;
            for (int32_t col = 0; col < window->cols; col++) {
                span at = find_span(window, col, conv->in_cols, conv->out_cols);
                add_row(line, weights[down * window->cols + col], y, at, window->col_stride);
            }
        }
        for (int32_t i = 0; i < conv->out_cols; i++) {
            float value = y[i] < limits.low ? limits.low : y[i];
            y[i] = value > limits.high ? limits.high : value;
        }
    }
}

void kernel_convolve_depthwise(const kernel_conv *conv, const float *x, const float *weights,
                               const float *bias, float *y) {
    const ptrdiff_t area = (ptrdiff_t)conv->window.rows * conv->window.cols;
    const ptrdiff_t in_plane = (ptrdiff_t)conv->in_rows * conv->in_cols;
    const ptrdiff_t out_plane = (ptrdiff_t)conv->out_rows * conv->out_cols;
    for (int32_t image = 0; image < conv->images; image++) {
        for (int32_t group = 0; group < conv->groups; group++, x += in_plane) {
            for (int32_t each = 0; each < conv->out_channels; each++, y += out_plane) {
                int32_t channel = group * conv->out_channels + each;
                convolve_plane(conv, x, weights + channel * area, bias ? bias[channel] : 0, y);
            }
        }
    }
}

void kernel_pool_max(const kernel_pool *pool, const float *x, float *y) {
    const kernel_window *window = &pool->window;
    for (int32_t plane = 0; plane < pool->planes; plane++, x += (ptrdiff_t)pool->in_rows * pool->in_cols) {
        for (int32_t row = 0; row < pool->out_rows; row++, y += pool->out_cols) {
            for (int32_t i = 0; i < pool->out_cols; i++) {
                y[i] = -INFINITY;
            }
            for (int32_t down = 0; down < window->rows; down++) {
                int32_t in_row = row * window->row_stride + down * window->row_dilation - window->top;
                if (in_row < 0 || in_row >= pool->in_rows) {
                    continue;
                }
                const float *line = x + (ptrdiff_t)in_row * pool->in_cols;
                for (int32_t col = 0; col < window->cols; col++) {
                    span at = find_span(window, col, pool->in_cols, pool->out_cols);
                    take_larger(line, y, at, window->col_stride);
                }
            }
        }
    }
}

/* Return how many places of the window are counted in one direction. */
static int32_t count_places(int32_t start, int32_t size, int32_t dilation, int32_t from, int32_t end) {
    int32_t count = 0;
    for (int32_t i = 0; i < size; i++) {
        int32_t place = start + i * dilation;
        count += place >= from && place < end;
    }
    return count;
}

static void divide_row(const kernel_pool *pool, int32_t row, float *y) {
    const kernel_window *w = &pool->window;
    int32_t top = pool->padding_counts ? -w->top : 0, left = pool->padding_counts ? -w->left : 0;
    int32_t bottom = pool->in_rows + (pool->padding_counts ? pool->bottom : 0);
    int32_t right = pool->in_cols + (pool->padding_counts ? pool->right : 0);
    int32_t rows = count_places(row * w->row_stride - w->top, w->rows, w->row_dilation, top, bottom);
    for (int32_t i = 0; i < pool->out_cols; i++) {
        int32_t cols = count_places(i * w->col_stride - w->left, w->cols, w->col_dilation, left, right);
        y[i] /= (float)(rows * cols);
    }
}

void kernel_pool_average(const kernel_pool *pool, const float *x, float *y) {
    const kernel_window *window = &pool->window;
    for (int32_t plane = 0; plane < pool->planes; plane++, x += (ptrdiff_t)pool->in_rows * pool->in_cols) {
        for (int32_t row = 0; row < pool->out_rows; row++, y += pool->out_cols) {
            for (int32_t i = 0; i < pool->out_cols; i++) {
                y[i] = 0;
            }
            for (int32_t down = 0; down < window->rows; down++) {
                int32_t in_row = row * window->row_stride + down * window->row_dilation - window->top;
                if (in_row < 0 || in_row >= pool->in_rows) {
                    continue;
                }
                const float *line = x + (ptrdiff_t)in_row * pool->in_cols;
                for (int32_t col = 0; col < window->cols; col++) {
                    span at = find_span(window, col, pool->in_cols, pool->out_cols);
                    add_row(line, 1, y, at, window->col_stride);
                }
            }
            divide_row(pool, row, y);
        }
    }
}
