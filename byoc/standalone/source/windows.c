/* Kernels of the host that move a window over planes: depthwise convolution and pooling. See kernels.h.
 *
 * For each place of the window a row of the result is updated at once, so that compilers vectorize it and
 * nothing is tested for each pixel.
 */
#include "kernels.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

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

/* Add a row of the image to a row of the result. */
static void add_row(const float *restrict x, float *restrict y, span at, int32_t stride) {
    if (stride == 1) {
        for (int32_t i = at.begin; i < at.end; i++) {
            y[i] += x[at.offset + i];
        }
    } else {
        for (int32_t i = at.begin; i < at.end; i++) {
            y[i] += x[at.offset + i * stride];
        }
    }
}

static void take_larger(const float *restrict x, float *restrict y, span at, int32_t stride) {
    if (stride == 1) {
        for (int32_t i = at.begin; i < at.end; i++) {
            float value = x[at.offset + i];
            y[i] = value > y[i] || value != value ? value : y[i]; /* NaN stays */
        }
    } else {
        for (int32_t i = at.begin; i < at.end; i++) {
            float value = x[at.offset + i * stride];
            y[i] = value > y[i] || value != value ? value : y[i]; /* NaN stays */
        }
    }
}

/* Add the places of one row of a window, `taps` of them, to a line of results; `taps` is a constant where this
 * is called. */
static inline void add_taps(const float *restrict x, const float *restrict weights, float *restrict y,
                            int32_t taps, int32_t dilation, int32_t stride, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        float sum = y[i];
        for (int32_t tap = 0; tap < taps; tap++) {
            sum += weights[tap] * x[i * stride + tap * dilation];
        }
        y[i] = sum;
    }
}

static void add_window_row(const kernel_window *window, const float *x, const float *weights, float *y,
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

/* Copy rows of an image from `first` on to rows of `width` floats, which have zeros around the image already; rows
 * outside of it become zeros. */
static void copy_inside(const kernel_conv *conv, const float *x, int32_t first, int32_t rows, int32_t width,
                        float *to) {
    const int32_t left = conv->window.left;
    const int32_t cols = conv->in_cols < width - left ? conv->in_cols : width - left;
    for (int32_t row = first; row < first + rows; row++, to += width) {
        if (row < 0 || row >= conv->in_rows) {
            memset(to, 0, (size_t)width * sizeof *to);
        } else if (cols > 0) {
            memcpy(to + left, x + (ptrdiff_t)row * conv->in_cols, (size_t)cols * sizeof *to);
        }
    }
}

kernel_bands kernel_find_bands(const kernel_conv *conv, void *scratch) {
    const kernel_window *window = &conv->window;
    kernel_bands found;
    found.width = (conv->out_cols - 1) * window->col_stride + (window->cols - 1) * window->col_dilation + 1;
    const int32_t fitting = KERNEL_BAND / found.width > 0 ? KERNEL_BAND / found.width : 1;
    found.rows = conv->out_rows < fitting ? conv->out_rows : fitting;
    found.together = window->row_stride == 1 && window->col_stride == 1;
    found.pitch = found.together ? found.width : conv->out_cols;
    found.sums = scratch;
    found.padded = (char *)scratch + ((ptrdiff_t)found.rows * found.width + KERNEL_SPARE) * 4;
    const int32_t read = (found.rows - 1) * window->row_stride + (window->rows - 1) * window->row_dilation + 1;
    memset(found.padded, 0, ((size_t)read * (size_t)found.width + KERNEL_SPARE) * 4);
    return found;
}

/* Convolve one plane, band by band. */
static void convolve_plane(const kernel_conv *conv, const kernel_bands *in, const float *x, const float *weights, float bias,
                           float *y) {
    const kernel_window *window = &conv->window;
    const int32_t width = in->width, pitch = in->pitch;
    float *padded = in->padded, *made = in->sums;
    for (int32_t first = 0; first < conv->out_rows; first += in->rows) {
        int32_t rows = conv->out_rows - first < in->rows ? conv->out_rows - first : in->rows;
        int32_t read = (rows - 1) * window->row_stride + (window->rows - 1) * window->row_dilation + 1;
        copy_inside(conv, x, first * window->row_stride - window->top, read, width, padded);
        const int32_t sums = (rows - 1) * pitch + conv->out_cols;
        const int32_t count = (sums + KERNEL_SPARE - 1) / KERNEL_SPARE * KERNEL_SPARE;
        for (int32_t i = 0; i < count; i++) {
            made[i] = bias;
        }
        for (int32_t down = 0; down < window->rows; down++) {
            const float *from = padded + (ptrdiff_t)down * window->row_dilation * width;
            const float *line = weights + (ptrdiff_t)down * window->cols;
            if (in->together) {
                add_window_row(window, from, line, made, count);
            } else {
                for (int32_t row = 0; row < rows; row++) {
                    add_window_row(window, from + (ptrdiff_t)row * window->row_stride * width, line,
                                   made + (ptrdiff_t)row * pitch, conv->out_cols);
                }
            }
        }
        kernel_activate(conv->activation, made, count);
        for (int32_t row = 0; row < rows; row++, y += conv->out_cols) {
            memcpy(y, made + (ptrdiff_t)row * pitch, (size_t)conv->out_cols * sizeof *y);
        }
    }
}

void kernel_convolve_depthwise(const kernel_conv *conv, const float *x, const float *weights,
                               const float *bias, float *y, float *scratch, kernel_share share) {
    const ptrdiff_t area = (ptrdiff_t)conv->window.rows * conv->window.cols;
    const ptrdiff_t in_plane = (ptrdiff_t)conv->in_rows * conv->in_cols;
    const ptrdiff_t out_plane = (ptrdiff_t)conv->out_rows * conv->out_cols;
    const int32_t channels = conv->groups * conv->out_channels;
    const kernel_bands in = kernel_find_bands(conv, scratch);
    const kernel_range own = kernel_take(conv->images * channels, 1, share);
    for (int32_t plane = own.first; plane < own.end; plane++) {
        const int32_t channel = plane % channels;
        convolve_plane(conv, &in, x + plane / conv->out_channels * in_plane, weights + channel * area,
                       bias ? bias[channel] : 0, y + plane * out_plane);
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

/* Return the sum of a row. */
static float sum_row(const float *x, int32_t count) {
    float sums[16] = {0}, sum = 0;
    int32_t i = 0;
    for (; i + 16 <= count; i += 16) {
        for (int32_t lane = 0; lane < 16; lane++) {
            sums[lane] += x[i + lane];
        }
    }
    for (int32_t lane = 0; lane < 16; lane++) {
        sum += sums[lane];
    }
    for (; i < count; i++) {
        sum += x[i];
    }
    return sum;
}

void kernel_pool_average(const kernel_pool *pool, const float *x, float *y) {
    const kernel_window *window = &pool->window;
    const int32_t whole_rows =
        pool->out_cols == 1 && window->cols == pool->in_cols && window->col_dilation == 1 && !window->left;
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
                if (whole_rows) {
                    y[0] += sum_row(line, pool->in_cols);
                    continue;
                }
                for (int32_t col = 0; col < window->cols; col++) {
                    span at = find_span(window, col, pool->in_cols, pool->out_cols);
                    add_row(line, y, at, window->col_stride);
                }
            }
            divide_row(pool, row, y);
        }
    }
}
