/* Kernels of language decoders: normalization by the root mean square, and attention with a cache. See kernels.h. */
#include "kernels.h"

#include <math.h>
#include <string.h>

#define LANES 16 /* partial sums, so that compilers vectorize a sum in any order that they are given */

static float multiply_rows(const float *restrict a, const float *restrict b, int32_t count) {
    float sums[LANES] = {0}, sum = 0;
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int32_t lane = 0; lane < LANES; lane++) {
            sums[lane] += a[i + lane] * b[i + lane];
        }
    }
    for (; i < count; i++) {
        sums[0] += a[i] * b[i];
    }
    for (int32_t lane = 0; lane < LANES; lane++) {
        sum += sums[lane];
    }
    return sum;
}

void kernel_normalize(const kernel_norm *norm, const float *x, const float *skip, const float *bias,
                      const float *scale, float *sum, float *y) {
    const int32_t cols = norm->cols;
    for (int32_t row = 0; row < norm->rows; row++, x += cols, y += cols) {
        const float *from = x;
        if (skip) {
            const float *other = skip + (ptrdiff_t)(row % norm->skip_rows) * cols;
            float *to = sum ? sum + (ptrdiff_t)row * cols : y;
            for (int32_t i = 0; i < cols; i++) {
                to[i] = x[i] + other[i];
            }
            for (int32_t i = 0; bias && i < cols; i++) {
                to[i] += bias[i];
            }
            from = to;
        }
        const float factor = 1 / sqrtf(multiply_rows(from, from, cols) / (float)cols + norm->epsilon);
        for (int32_t i = 0; i < cols; i++) {
            y[i] = from[i] * factor * scale[i];
        }
    }
}

/* Unpack a column of weights: two numbers of a byte, the earlier one in its lower half. */
static void unpack_column(const kernel_packed *packed, const uint8_t *numbers, const float *scales,
                          const uint8_t *zeros, float *to) {
    for (int32_t block = 0; block < packed->blocks; block++) {
        const float scale = scales[block], zero = zeros ? (float)(zeros[block / 2] >> block % 2 * 4 & 15) : 8;
        for (int32_t i = 0; i < packed->block / 2; i++) {
            to[2 * i] = ((float)(numbers[i] & 15) - zero) * scale;
            to[2 * i + 1] = ((float)(numbers[i] >> 4) - zero) * scale;
        }
        numbers += packed->block / 2;
        to += packed->block;
    }
}

void kernel_multiply_packed(const kernel_packed *packed, const float *x, const uint8_t *numbers,
                            const float *scales, const uint8_t *zeros, const float *bias, float *y,
                            float *scratch) {
    for (int32_t col = 0; col < packed->cols; col++) {
        unpack_column(packed, numbers + (ptrdiff_t)col * packed->blocks * (packed->block / 2),
                      scales + (ptrdiff_t)col * packed->blocks,
                      zeros ? zeros + (ptrdiff_t)col * ((packed->blocks + 1) / 2) : NULL, scratch);
        for (int32_t row = 0; row < packed->rows; row++) {
            const float sum = multiply_rows(x + (ptrdiff_t)row * packed->depth, scratch, packed->depth);
            y[(ptrdiff_t)row * packed->cols + col] = bias ? sum + bias[col] : sum;
        }
    }
}

/* Return a position, which is data, within 0 and `last`, so that no cache is left. */
static int32_t limit(int64_t position, int32_t last) {
    const int64_t value = position < last ? position : last;
    return value > 0 ? (int32_t)value : 0;
}

/* Rotate pairs of the first channels of a head by the angles of a position, and copy the others. */
static void rotate_head(const kernel_attention *it, const float *x, const float *cosines, const float *sines,
                        int32_t position, float *y) {
    const int32_t half = it->rotated / 2, step = it->interleaved ? 2 : 1, apart = it->interleaved ? 1 : half;
    for (int32_t i = 0; i < half; i++) {
        const float *first = x + i * step;
        const float cosine = cosines[(ptrdiff_t)position * half + i], sine = sines[(ptrdiff_t)position * half + i];
        y[i * step] = first[0] * cosine - first[apart] * sine;
        y[i * step + apart] = first[apart] * cosine + first[0] * sine;
    }
    memcpy(y + it->rotated, x + it->rotated, (size_t)(it->head - it->rotated) * sizeof *y);
}

/* Attend by one query, which has been rotated, to the first `seen` rows of keys and values. */
static void attend_once(const kernel_attention *it, const float *query, const float *keys, const float *values,
                        int32_t seen, float *scores, float *y) {
    float most = -INFINITY, sum = 0;
    for (int32_t t = 0; t < seen; t++) {
        float score = multiply_rows(query, keys + (ptrdiff_t)t * it->head, it->head) * it->scale;
        score = it->softcap > 0 ? tanhf(score / it->softcap) * it->softcap : score;
        scores[t] = score;
        most = score > most ? score : most;
    }
    for (int32_t i = 0; i < it->head; i++) {
        y[i] = 0;
    }
    for (int32_t t = 0; t < seen; t++) {
        const float share = expf(scores[t] - most), *value = values + (ptrdiff_t)t * it->head;
        sum += share;
        for (int32_t i = 0; i < it->head; i++) {
            y[i] += share * value[i];
        }
    }
    for (int32_t i = 0; i < it->head; i++) {
        y[i] /= sum;
    }
}

/* Copy the first `start` rows of a head's cache, and clear the rows behind the new ones. */
static void carry_cache(const kernel_attention *it, const float *past, float *present, int32_t start) {
    const int32_t end = start + it->count;
    if (start) {
        memcpy(present, past, (size_t)start * (size_t)it->head * sizeof *present);
    }
    memset(present + (ptrdiff_t)end * it->head, 0, (size_t)(it->length - end) * (size_t)it->head * sizeof *present);
}

void kernel_attend(const kernel_attention *it, const float *q, const float *k, const float *v,
                   const float *past_key, const float *past_value, const int32_t *lengths, const int32_t *total,
                   const float *cosines, const float *sines, float *y, float *present_key, float *present_value,
                   float *scratch) {
    const int32_t shared = it->heads / it->kv_heads, head = it->head, packed = !k;
    const ptrdiff_t q_row = (ptrdiff_t)(it->heads + 2 * packed * it->kv_heads) * head;
    const ptrdiff_t kv_row = packed ? q_row : (ptrdiff_t)it->kv_heads * head;
    const ptrdiff_t past_size = (ptrdiff_t)it->past * head, present_size = (ptrdiff_t)it->length * head;
    const int32_t last = it->past < it->length - it->count ? it->past : it->length - it->count;
    k = packed ? q + (ptrdiff_t)it->heads * head : k;
    v = packed ? k + (ptrdiff_t)it->kv_heads * head : v;
    for (int32_t number = 0; number < it->batch * it->kv_heads; number++) {
        const int32_t sequence = number / it->kv_heads, kv = number % it->kv_heads;
        const int32_t start = *total == it->count ? 0 : limit((int64_t)lengths[sequence] + 1 - it->count, last);
        float *const keys = present_key + number * present_size, *const values = present_value + number * present_size;
        carry_cache(it, past_key ? past_key + number * past_size : NULL, keys, start);
        carry_cache(it, past_value ? past_value + number * past_size : NULL, values, start);
        for (int32_t s = 0; s < it->count; s++) {
            const ptrdiff_t row = (ptrdiff_t)sequence * it->count + s, new_row = (ptrdiff_t)(start + s) * head;
            rotate_head(it, k + row * kv_row + kv * head, cosines, sines, start + s, keys + new_row);
            memcpy(values + new_row, v + row * kv_row + kv * head, (size_t)head * sizeof *v);
            for (int32_t h = kv * shared; h < (kv + 1) * shared; h++) {
                rotate_head(it, q + row * q_row + h * head, cosines, sines, start + s, scratch);
                attend_once(it, scratch, keys, values, start + s + 1, scratch + head,
                            y + (row * it->heads + h) * head);
            }
        }
    }
}
