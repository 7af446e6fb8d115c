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

/* The share of a kernel's work that one thread does, number `number` of `count`. Shares together make the same bits as
 * one alone, whatever their count; each has scratch memory of its own. */
typedef struct kernel_share {
    int32_t number, count;
} kernel_share;

/* The whole work. */
#define KERNEL_WHOLE ((kernel_share){0, 1})

/* Rows that a share has a multiple of: each is computed as it is without shares, since no tile is cut. */
#define KERNEL_ROWS 12

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
 * `bias_row` and `bias_col` are 0 where the bias is one for all rows, or all columns. With `tiled` b is dense tiles of
 * 16 columns, one behind another, and the columns that are left over as a matrix behind them. */
typedef struct kernel_product {
    int32_t count, rows, depth, cols;
    int64_t a_batch, b_batch;
    int32_t a_row, b_row, b_col, tiled, bias_row, bias_col;
    float scale, bias_scale;
    kernel_activation activation;
} kernel_product;

/* A matrix whose rows are normalized one by one. */
typedef struct kernel_rows {
    int32_t rows, cols;
} kernel_rows;

/* An image that is made larger or smaller, plane by plane. */
typedef struct kernel_resize {
    int32_t planes, in_rows, in_cols, out_rows, out_cols;
} kernel_resize;

/* An LSTM of one or two directions, of which `reversed` is set if the first, or only, one begins at the end. Inputs of
 * functions are limited to -`clip` and `clip`, unless that is 0; with `input_forget` the forget gate is 1 less the input
 * gate. */
typedef struct kernel_lstm {
    int32_t directions, reversed, steps, batch, inputs, hidden, input_forget;
    float clip;
} kernel_lstm;

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

/* A type of integers, of 8 or 16 `bits`. One becomes a number as (integer ^ flip) - (zero ^ flip): `flip` is 128 for
 * int8, 32768 for int16, 0 for uint8 and uint16. */
typedef struct kernel_integer {
    int32_t bits, flip;
} kernel_integer;

/* What becomes of exact sums. With `bits` 8 or 16 a sum is multiplied by its scale, an offset is added, and that
 * is rounded half to even, moved by `zero`, limited to `low` and `high`, and stored with the bits of `flip` changed;
 * all three are from 0 on. With `bits` 32 sums are the result. Scales and offsets are one for each channel, or with
 * `step` 0 one for all. */
typedef struct kernel_rounding {
    int32_t bits, zero, low, high, flip, step;
} kernel_rounding;

/* A convolution of integers: of `conv` all but the activation counts. `zeros` is 1 for a zero point a channel. */
typedef struct kernel_int_conv {
    kernel_conv conv;
    kernel_integer x, weight;
    int32_t zeros;
    kernel_rounding rounding;
} kernel_int_conv;

/* Products of integers as in kernel_product: c[rows][cols] = a[rows][depth] * b[depth][cols]. `a_zeros` is 1 for a zero
 * point a row of a, `b_zeros` for one a column of b. */
typedef struct kernel_int_product {
    int32_t count, rows, depth, cols;
    int64_t a_batch, b_batch;
    int32_t b_row, b_col;
    kernel_integer a, b;
    int32_t a_zeros, b_zeros;
    kernel_rounding rounding;
} kernel_int_product;

/* A sum or a product of two operands: for each of `outer` lines of `inner` elements. Steps of b are those from one
 * line, or one element, to the next; a has all elements of the result. */
typedef struct kernel_int_pair {
    int32_t outer, inner, b_outer, b_inner;
    kernel_integer a, b;
    int32_t a_zero, b_zero;
    float a_scale, b_scale;
    kernel_rounding rounding;
} kernel_int_pair;

/* A pooling of integers. */
typedef struct kernel_int_pool {
    kernel_pool pool;
    kernel_integer x;
    int32_t zero;
    float scale;
    kernel_rounding rounding;
} kernel_int_pool;

/* Floats to integers and back: `count` numbers in one scale. */
typedef struct kernel_int_steps {
    int32_t count, zero;
    kernel_integer type;
    float scale;
} kernel_int_steps;

/* Types of elements, numbered as in ONNX. One of fewer than 8 bits has a byte of its own: its bits are the lowest, those
 * above are 0, and are not looked at where it is read. */
enum {
    KERNEL_FLOAT32 = 1,
    KERNEL_UINT8,
    KERNEL_INT8,
    KERNEL_UINT16,
    KERNEL_INT16,
    KERNEL_INT32,
    KERNEL_INT64,
    KERNEL_BOOL = 9,
    KERNEL_FLOAT16,
    KERNEL_FLOAT64,
    KERNEL_UINT32,
    KERNEL_UINT64,
    KERNEL_BFLOAT16 = 16,
    KERNEL_FLOAT8E4M3FN,
    KERNEL_FLOAT8E4M3FNUZ,
    KERNEL_FLOAT8E5M2,
    KERNEL_FLOAT8E5M2FNUZ,
    KERNEL_UINT4,
    KERNEL_INT4,
    KERNEL_FLOAT4E2M1,
    KERNEL_FLOAT8E8M0,
    KERNEL_UINT2,
    KERNEL_INT2,
    KERNEL_FLOAT6E2M3,
    KERNEL_FLOAT6E3M2
};

/* How float8e8m0 is rounded. */
enum { KERNEL_UP, KERNEL_DOWN, KERNEL_NEAREST };

/* The type of a result, and how a number becomes one: with `saturate` one that is too large for float8 becomes the
 * largest, else infinity or NaN. */
typedef struct kernel_rules {
    int32_t type, saturate, rounding;
} kernel_rules;

/* A conversion of `count` elements of `type`. */
typedef struct kernel_conversion {
    int64_t count;
    int32_t type;
    kernel_rules rules;
} kernel_conversion;

/* Elements of `type` as [outer][extent][inner], and where their scales are: `block` neighbours along the extent have
 * one, and steps are those from one scale to the next. Quotients are rounded to `precision`, integers limited to `low`
 * and `high`. */
typedef struct kernel_scales {
    int64_t outer, extent, inner, block, outer_step, step, inner_step;
    int32_t type, scale_type, precision, low, high;
    kernel_rules rules;
} kernel_scales;

/* Convolve; `bias` may be NULL. `scratch` holds KERNEL_DEPTH rows, or as many as a sum has terms, of
 * KERNEL_COLUMNS floats, or as many as an image has pixels, rounded up to 16. */
void kernel_convolve(const kernel_conv *conv, const float *x, const float *weights, const float *bias,
                     float *y, float *scratch, kernel_share share);

/* Convolve the other way round: each pixel of x is added to y by a window, which `conv` has with its strides. Weights are
 * those of kernel_convolve for each phase of the strides, one behind another, and `scratch` is KERNEL_COLUMNS floats
 * for each channel of a group, and that of kernel_convolve behind them. */
void kernel_convolve_transposed(const kernel_conv *conv, const float *x, const float *weights, const float *bias,
                                float *y, float *scratch);

/* The floats of a band of rows that a depthwise convolution computes at once, unless one row has more. */
#define KERNEL_BAND 2048

/* Floats behind a band, and behind what its windows read, that whole vectors reach. */
#define KERNEL_SPARE 16

/* The bands of a plane: rows of the result that are computed at once, and what their windows read, as rows of `width`
 * numbers. Where windows move by single pixels a band is one long row: what is computed between two rows of it is not
 * copied. Its sums are as many as whole vectors have. Both are of numbers of 4 bytes. */
typedef struct kernel_bands {
    int32_t width, rows, together, pitch;
    void *sums, *padded;
} kernel_bands;

/* Lay bands out in `scratch`; what windows read becomes zeros. */
kernel_bands kernel_find_bands(const kernel_conv *conv, void *scratch);

/* Convolve each channel by windows of its own: `in_channels` is 1. `scratch` holds a band of results, and what
 * its windows read: rows of as many columns as windows reach, padding included. KERNEL_SPARE floats are behind both. */
void kernel_convolve_depthwise(const kernel_conv *conv, const float *x, const float *weights,
                               const float *bias, float *y, float *scratch, kernel_share share);

/* Multiply matrices; `bias` may be NULL, `scratch` is as for a convolution of so many pixels as columns. */
void kernel_multiply(const kernel_product *product, const float *a, const float *b, const float *bias,
                     float *c, float *scratch, kernel_share share);

/* Take the largest number of each window. */
void kernel_pool_max(const kernel_pool *pool, const float *x, float *y);

/* Take the mean of each window. */
void kernel_pool_average(const kernel_pool *pool, const float *x, float *y);

/* Make each row the exponentials of its numbers as shares of their sum. */
void kernel_softmax(const kernel_rows *matrix, const float *x, float *y);

/* Compute tanh or the logistic function of each number; y may be x. Both are off by at most 3e-7 of the result, or by
 * 1e-37. */
void kernel_tanh(const kernel_rows *matrix, const float *x, float *y);
void kernel_sigmoid(const kernel_rows *matrix, const float *x, float *y);

/* Interpolate between two rows and two columns. `places` are the first row of each row of the result, the second, and
 * the same for columns; `shares` are what each of them counts. `scratch` holds a row of x. */
void kernel_interpolate(const kernel_resize *resize, const float *x, const int32_t *places, const float *shares,
                        float *y, float *scratch);

/* The steps of an LSTM whose inputs are multiplied at once. */
#define KERNEL_STEPS 16

/* Run an LSTM. For each direction `w` and `r` are tiles as in kernel_product of one column for each gate's number,
 * `bias` is the sum of both biases, and `peepholes`, which may be NULL, are [3][hidden]: of input, output and forget gate.
 * With `lengths` each sequence has so many steps: results behind them are 0. States before the first step are 0 where
 * they are NULL; y is [steps][directions][batch][hidden], and all results may be NULL. `scratch` holds the gates of
 * KERNEL_STEPS steps, both states, and KERNEL_DEPTH rows of 16 floats. */
void kernel_run_lstm(const kernel_lstm *lstm, const float *x, const float *w, const float *r, const float *bias,
                     const float *peepholes, const int32_t *lengths, const float *first_h, const float *first_c,
                     float *y, float *last_h, float *last_c, float *scratch);

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

/* Convolve integers. `bias` and `offsets` may be NULL, as may zero points, which are 0 then. `scratch` holds 16-bit
 * numbers: those of TILE_ROWS (6) channels, and as many for 16 pixels as a sum has terms, rounded up to 2. */
void kernel_convolve_int(const kernel_int_conv *conv, const void *x, const void *x_zero, const void *weights,
                         const void *weight_zeros, const int32_t *bias, const float *scales, const float *offsets,
                         void *y, void *scratch, kernel_share share);

/* The same where each channel has windows of its own. `scratch` holds 32-bit numbers as kernel_convolve_depthwise's. */
void kernel_convolve_depthwise_int(const kernel_int_conv *conv, const void *x, const void *x_zero,
                                   const void *weights, const void *weight_zeros, const int32_t *bias,
                                   const float *scales, const float *offsets, void *y, void *scratch, kernel_share share);

/* Multiply matrices of integers; `bias` is one number a column. `scratch` is as for a convolution. */
void kernel_multiply_int(const kernel_int_product *product, const void *a, const void *a_zeros, const void *b,
                         const void *b_zeros, const int32_t *bias, const float *scales, const float *offsets,
                         void *c, void *scratch, kernel_share share);

/* The same three where an element less its zero point takes more than 16 bits, or a sum more than 32: numbers in
 * `scratch` have 32 bits, and sums 64. They make no results of 32 bits. */
void kernel_convolve_wide(const kernel_int_conv *conv, const void *x, const void *x_zero, const void *weights,
                          const void *weight_zeros, const int32_t *bias, const float *scales, const float *offsets,
                          void *y, void *scratch, kernel_share share);
void kernel_convolve_depthwise_wide(const kernel_int_conv *conv, const void *x, const void *x_zero,
                                    const void *weights, const void *weight_zeros, const int32_t *bias,
                                    const float *scales, const float *offsets, void *y, void *scratch,
                                    kernel_share share);
void kernel_multiply_wide(const kernel_int_product *product, const void *a, const void *a_zeros, const void *b,
                          const void *b_zeros, const int32_t *bias, const float *scales, const float *offsets,
                          void *c, void *scratch, kernel_share share);

/* Add two operands, each times its scale; multiply two, and that by `a_scale`. */
void kernel_add_int(const kernel_int_pair *pair, const void *a, const void *b, void *y);
void kernel_scale_int(const kernel_int_pair *pair, const void *a, const void *b, void *y);

/* Take the largest number, or the mean, of each window; `scratch` holds a row of the image. */
void kernel_pool_max_int(const kernel_int_pool *pool, const void *x, void *y, void *scratch);
void kernel_pool_average_int(const kernel_int_pool *pool, const void *x, void *y);

/* Replace each of so many bytes by what the table of 256 has for it. */
void kernel_look_up(const kernel_rows *matrix, const void *x, const void *table, void *y);

void kernel_quantize(const kernel_int_steps *steps, const float *x, void *y);
void kernel_dequantize(const kernel_int_steps *steps, const void *x, float *y);

/* Convert elements from one type to another, as ONNX's Cast does. Integers keep their lowest bits; what no integer
 * holds, and NaN, becomes an integer that ONNX leaves open. */
void kernel_convert(const kernel_conversion *conversion, const void *x, void *y);

/* Quantize and dequantize by scales, and zero points where there are some, as ONNX's QuantizeLinear and
 * DequantizeLinear do. */
void kernel_quantize_by(const kernel_scales *scales, const void *x, const void *scale, const void *zeros, void *y);
void kernel_dequantize_by(const kernel_scales *scales, const void *x, const void *scale, const void *zeros, void *y);

/* Compute the SHA-256 of some bytes. */
void kernel_digest(const void *content, size_t bytes, unsigned char digest[32]);

/* Some of several things: from the first on, up to the end. */
typedef struct kernel_range {
    int32_t first, end;
} kernel_range;

/* Return what a share has of `total` things that stay together by `unit`. */
static inline kernel_range kernel_take(int32_t total, int32_t unit, kernel_share share) {
    const int64_t units = (total + (int64_t)unit - 1) / unit;
    const int64_t first = units * share.number / share.count * unit, end = units * (share.number + 1) / share.count * unit;
    const kernel_range found = {first < total ? (int32_t)first : total, end < total ? (int32_t)end : total};
    return found;
}

/* Return whether the largest share of so many blocks is no larger than that of so many rows. */
static inline int kernel_prefers_blocks(int32_t blocks, int32_t rows, int32_t count) {
    const int64_t units = (rows + (int64_t)KERNEL_ROWS - 1) / KERNEL_ROWS;
    const int64_t most_blocks = (blocks + (int64_t)count - 1) / count, most_units = (units + count - 1) / count;
    return most_blocks * units <= most_units * blocks;
}

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
