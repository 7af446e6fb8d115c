/* Kernels of the host: the operators that take nearly all the time of a network, in portable C.
 *
 * Tensors are dense, row-major, of 32-bit floats. No kernel allocates; `scratch` is memory that holds
 * nothing before and after a call. What a kernel writes never overlaps what it reads.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* The block of a product that is computed at once: its depth, and its columns. */
#define KERNEL_DEPTH 256
#define KERNEL_COLUMNS 64

/* An activation: with `hard_swish` a result x becomes x * limit(x / 6 + 1/2, 0, 1); then one below `low`
 * becomes `low`, and one above `high` becomes `high`. */
typedef struct kernel_activation {
    int32_t hard_swish;
    float low, high;
} kernel_activation;

/* A window that moves over an image. `top` and `left` are the rows and columns of padding before it. */
typedef struct kernel_window {
    int32_t rows, cols, row_stride, col_stride, row_dilation, col_dilation, top, left;
} kernel_window;

/* A convolution: y[image][group * out + o] over x[image][group * in + i]. */
typedef struct kernel_conv {
    int32_t images, groups, in_channels, out_channels; /* channels of one group */
    int32_t in_rows, in_cols, out_rows, out_cols;
    kernel_window window;
    kernel_activation activation;
} kernel_conv;

/* A pooling of planes, which are images times channels. */
typedef struct kernel_pool {
    int32_t planes, in_rows, in_cols, out_rows, out_cols;
    kernel_window window;
    int32_t padding_counts; /* of an average: padding is counted, up to `bottom` and `right` */
    int32_t bottom, right;  /* rows and columns of padding behind the image */
} kernel_pool;

/* Products of matrices: for each of `count`, c[rows][cols] = scale * a[rows][depth] * b[depth][cols] + bias.
 * Steps are those from one element to the next: `a_row` to the next row of a, 0 in `a_batch` for one a for all.
 * `bias_row` and `bias_col` are 0 where the bias is one for all rows, or all columns. */
typedef struct kernel_product {
    int32_t count, rows, depth, cols;
    int64_t a_batch, b_batch;
    int32_t a_row, b_row, b_col, bias_row, bias_col;
    float scale, bias_scale;
    kernel_activation activation;
} kernel_product;

/* A matrix whose rows are normalized one by one. */
typedef struct kernel_rows {
    int32_t rows, cols;
} kernel_rows;

/* A normalization of rows by their root mean square: y = x * scale / sqrt(mean(x * x) + epsilon). A skip of
 * `skip_rows` rows, repeated, is added before. */
typedef struct kernel_norm {
    int32_t rows, cols, skip_rows;
    float epsilon;
} kernel_norm;

/* A product y[rows][cols] of x[rows][depth] and weights of four bits: for each column `blocks` blocks of `block`
 * numbers, each block with a scale, and a zero point where there are some, else 8. */
typedef struct kernel_packed {
    int32_t rows, depth, cols, blocks, block;
} kernel_packed;

/* Attention by `count` new positions of each sequence to those before, whose keys and values are in a cache of
 * `past` positions; that with the new ones has `length`. The first `rotated` channels of the `head` that each
 * head has are rotated by position: pairs are neighbours if `interleaved`, else half of them apart. */
typedef struct kernel_attention {
    int32_t batch, count, heads, kv_heads, head, past, length, rotated, interleaved;
    float scale, softcap; /* softcap: 0 for none */
} kernel_attention;

/* Convolve; `bias` may be NULL. `scratch` holds KERNEL_DEPTH rows, or as many as a sum has terms, of
 * KERNEL_COLUMNS floats, or as many as an image has pixels, rounded up to 16. */
void kernel_convolve(const kernel_conv *conv, const float *x, const float *weights, const float *bias,
                     float *y, float *scratch);

/* The floats of a band of rows that a depthwise convolution computes at once, unless one row has more. */
#define KERNEL_BAND 2048

/* Convolve each channel by windows of its own: `in_channels` is 1. `scratch` holds a band of results, and what
 * its windows read: rows of as many columns as windows reach, padding included. */
void kernel_convolve_depthwise(const kernel_conv *conv, const float *x, const float *weights,
                               const float *bias, float *y, float *scratch);

/* Multiply matrices; `bias` may be NULL, `scratch` is as for a convolution of so many pixels as columns. */
void kernel_multiply(const kernel_product *product, const float *a, const float *b, const float *bias,
                     float *c, float *scratch);

/* Take the largest number of each window. */
void kernel_pool_max(const kernel_pool *pool, const float *x, float *y);

/* Take the mean of each window. */
void kernel_pool_average(const kernel_pool *pool, const float *x, float *y);

/* Make each row the exponentials of its numbers as shares of their sum. */
void kernel_softmax(const kernel_rows *matrix, const float *x, float *y);

/* Normalize rows; `bias`, one number a column, is added with `skip`, and `sum` is what is normalized. All three may
 * be NULL. */
void kernel_normalize(const kernel_norm *norm, const float *x, const float *skip, const float *bias,
                      const float *scale, float *sum, float *y);

/* Multiply by weights of four bits, the earlier of two in the lower half of a byte. `zeros` are as many numbers as
 * scales, packed as well; they and `bias` may be NULL. `scratch` holds a column of weights. */
void kernel_multiply_packed(const kernel_packed *packed, const float *x, const uint8_t *numbers,
                            const float *scales, const uint8_t *zeros, const float *bias, float *y,
                            float *scratch);

/* Attend with a cache. `q` is [batch][count][heads][head], `k` and `v` have `kv_heads`; where `k` is NULL, `q` has
 * all three, one behind another in each row. Caches are [batch][kv_heads][positions][head]. `lengths` are those of
 * sequences with the new positions, less 1, and `total` is the largest; where that is `count`, sequences begin
 * here. Row p of `cosines` and `sines` has the angles of position p; they are NULL if nothing is rotated, as are
 * past caches without positions. `scratch` holds a head, and `length` floats. */
void kernel_attend(const kernel_attention *attention, const float *q, const float *k, const float *v,
                   const float *past_key, const float *past_value, const int32_t *lengths, const int32_t *total,
                   const float *cosines, const float *sines, float *y, float *present_key, float *present_value,
                   float *scratch);

/* Apply an activation to a line of results. */
static inline void kernel_activate(kernel_activation activation, float *line, int32_t count) {
    if (activation.hard_swish) {
        for (int32_t i = 0; i < count; i++) {
            float part = line[i] / 6 + 0.5f;
            part = part < 0 ? 0 : part;
            line[i] *= part > 1 ? 1 : part;
        }
    }
    for (int32_t i = 0; i < count; i++) {
        float value = line[i] < activation.low ? activation.low : line[i];
        line[i] = value > activation.high ? activation.high : value;
    }
}

#endif
