/* How sums of integers become bytes, for the kernels of integers alone. Where x86 has vectors, they are used as they
 * are: no compiler makes them of plain C here. */
#ifndef ROUNDING_H
#define ROUNDING_H

#include "kernels.h"

#include <string.h>

#if defined(__GNUC__) && defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
typedef __m256i lanes;
#define ADD_PAIRS(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#define REPEAT(pair) _mm256_set1_epi32(pair)
typedef __m256 reals;
#define REAL(name) _mm256_##name##_ps
#define TO_REALS _mm256_cvtepi32_ps
#define TO_LANES _mm256_cvtps_epi32
#define ADD_LANES _mm256_add_epi32
#define SUB_SHORTS _mm256_sub_epi16
#define REPEAT_SHORT _mm256_set1_epi16
#elif defined(__GNUC__) && defined(__SSE2__)
#include <emmintrin.h>
#define LANES 4
typedef __m128i lanes;
#define ADD_PAIRS(sum, a, b) _mm_add_epi32(sum, _mm_madd_epi16(a, b))
#define REPEAT(pair) _mm_set1_epi32(pair)
typedef __m128 reals;
#define REAL(name) _mm_##name##_ps
#define TO_REALS _mm_cvtepi32_ps
#define TO_LANES _mm_cvtps_epi32
#define ADD_LANES _mm_add_epi32
#define SUB_SHORTS _mm_sub_epi16
#define REPEAT_SHORT _mm_set1_epi16
#else
#define LANES 1
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

static inline int32_t least(int32_t one, int32_t other) {
    return one < other ? one : other;
}

static inline int32_t read_zero(const void *zeros, int32_t at, int32_t flip) {
    return zeros ? ((const byte *)zeros)[at] ^ flip : flip;
}

/* Round half to even a number of less than 2^22: a float that large has no bits behind the point. */
INLINE int32_t round_even(float value) {
    const float moved = value + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &moved, sizeof bits);
    return bits - 0x4B400000;
}

#if LANES > 1
/* Round, move and limit 16 numbers in registers. */
INLINE void round_reals(const kernel_rounding *with, const reals *values, byte *to) {
    const float low = (float)(with->low - with->zero), high = (float)(with->high - with->zero);
    lanes whole[VECS];
    UNROLLED
    for (int32_t v = 0; v < VECS; v++) {
        const reals value = REAL(max)(values[v], REAL(set1)(low));
        whole[v] = TO_LANES(REAL(min)(value, REAL(set1)(high))); /* it rounds half to even */
        whole[v] = ADD_LANES(whole[v], REPEAT(with->zero));
    }
#if LANES == 8
    const __m256i mixed = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole[0], whole[1]), 0xD8);
    __m128i made = _mm_packus_epi16(_mm256_castsi256_si128(mixed), _mm256_extracti128_si256(mixed, 1));
#else
    __m128i made = _mm_packus_epi16(_mm_packs_epi32(whole[0], whole[1]), _mm_packs_epi32(whole[2], whole[3]));
#endif
    made = _mm_xor_si128(made, _mm_set1_epi8((char)with->flip));
    memcpy(to, &made, WIDTH);
}
#endif

/* Round, move and limit 16 numbers. */
INLINE void round_values(const kernel_rounding *with, const float *values, byte *to) {
#if LANES > 1
    reals read[VECS];
    UNROLLED
    for (int32_t v = 0; v < VECS; v++) {
        read[v] = REAL(loadu)(values + (ptrdiff_t)v * LANES);
    }
    round_reals(with, read, to);
#else
    const float low = (float)(with->low - with->zero), high = (float)(with->high - with->zero);
    for (int32_t i = 0; i < WIDTH; i++) {
        float value = values[i] < low ? low : values[i];
        value = value > high ? high : value;
        to[i] = (byte)((round_even(value) + with->zero) ^ with->flip);
    }
#endif
}

/* Round the first `count` of at most 16 numbers. */
INLINE void round_some(const kernel_rounding *with, const float *values, int32_t count, byte *to) {
    byte made[WIDTH];
    if (count == WIDTH) {
        round_values(with, values, to);
    } else {
        round_values(with, values, made);
        memcpy(to, made, (size_t)count);
    }
}

#endif
