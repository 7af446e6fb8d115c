/* How integers are read, and what becomes of their sums, for the kernels of integers alone. Where x86 has vectors, they
 * are used as they are: no compiler makes them of plain C here. */
#ifndef ROUNDING_H
#define ROUNDING_H

#include "kernels.h"

#include <string.h>

/* What is multiplied, an element less its zero point, and sums of products: with WIDE twice as wide. */
#ifdef WIDE
typedef int32_t number;
typedef int64_t accumulator;
#else
typedef int16_t number;
typedef int32_t accumulator;
#endif

#if defined(WIDE)
#define LANES 1
#elif defined(__GNUC__) && defined(__AVX2__)
#include <immintrin.h>
#define LANES 8
typedef __m256i lanes;
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define ADD_PAIRS _mm256_dpwssd_epi32
#elif defined(__AVXVNNI__)
#define ADD_PAIRS _mm256_dpwssd_avx_epi32
#else
#define ADD_PAIRS(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
#endif
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
#if defined(__ARM_FEATURE_SIMD32)
#include <arm_acle.h>
#define HAS_SMLAD 1 /* two products of 16 bits in one instruction: Cortex-M4, M7, M33 and more */
#endif
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

/* Return an element among numbers from 0 on. */
INLINE int32_t read_element(const void *from, ptrdiff_t at, kernel_integer type) {
    return (type.bits > 8 ? ((const uint16_t *)from)[at] : ((const byte *)from)[at]) ^ type.flip;
}

static inline int32_t read_zero(const void *zeros, int32_t at, kernel_integer type) {
    return zeros ? read_element(zeros, at, type) : type.flip;
}

/* Return where an element is. */
static inline const void *skip(const void *from, int64_t count, kernel_integer type) {
    return (const byte *)from + count * (type.bits / 8);
}

/* Copy bytes, few of them without a call: those of a row of a small image. */
INLINE void copy_bytes(byte *restrict to, const byte *restrict from, int32_t count) {
    if (count > 64) {
        memcpy(to, from, (size_t)count);
    } else if (count >= 8) {
        for (int32_t i = 0; i < count - 8; i += 8) {
            memcpy(to + i, from + i, 8);
        }
        memcpy(to + count - 8, from + count - 8, 8);
    } else if (count >= 4) {
        memcpy(to, from, 4);
        memcpy(to + count - 4, from + count - 4, 4);
    } else {
        for (int32_t i = 0; i < count; i++) {
            to[i] = from[i];
        }
    }
}

/* Round half to even a number of less than 2^22: a float that large has no bits behind the point. */
INLINE int32_t round_even(float value) {
    const float moved = value + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &moved, sizeof bits);
    return bits - 0x4B400000;
}

/* A rounding as its numbers are used: limits before `zero` is added. */
typedef struct limits {
#if LANES > 1
    reals low, high;
    lanes zero;
    __m128i lowest, flip; /* `lowest` is the lower limit of bytes */
#else
    float low, high;
    int32_t zero, flip;
#endif
} limits;

INLINE limits find_limits(const kernel_rounding *with) {
    const float low = (float)(with->low - with->zero), high = (float)(with->high - with->zero);
#if LANES > 1
    const limits found = {REAL(set1)(low), REAL(set1)(high), REPEAT(with->zero), _mm_set1_epi8((char)with->low),
                          _mm_set1_epi8((char)with->flip)};
#else
    const limits found = {low, high, with->zero, with->flip};
#endif
    return found;
}

#if LANES > 1
/* Limit, round half to even, move and store 16 numbers. Those below -2^15 saturate: only the upper limit is needed
 * before, for those that no integer of 32 bits holds. */
INLINE void store_reals(const limits *with, const reals *values, byte *to) {
    lanes whole[VECS];
    UNROLLED
    for (int32_t v = 0; v < VECS; v++) {
        whole[v] = TO_LANES(REAL(min)(values[v], with->high));
    }
#if LANES == 8
    const __m256i mixed = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole[0], whole[1]), 0xD8);
    const __m128i zero = _mm_packs_epi32(_mm256_castsi256_si128(with->zero), _mm256_castsi256_si128(with->zero));
    __m128i made = _mm_packus_epi16(_mm_adds_epi16(_mm256_castsi256_si128(mixed), zero),
                                    _mm_adds_epi16(_mm256_extracti128_si256(mixed, 1), zero));
#else
    const __m128i zero = _mm_packs_epi32(with->zero, with->zero);
    __m128i made = _mm_packus_epi16(_mm_adds_epi16(_mm_packs_epi32(whole[0], whole[1]), zero),
                                    _mm_adds_epi16(_mm_packs_epi32(whole[2], whole[3]), zero));
#endif
    made = _mm_xor_si128(_mm_max_epu8(made, with->lowest), with->flip);
    memcpy(to, &made, WIDTH);
}

/* The same where the first half of the vectors has the even numbers, the other half the odd ones. */
INLINE void store_by_turns(const limits *with, const reals *values, byte *to) {
    lanes whole[VECS];
    UNROLLED
    for (int32_t v = 0; v < VECS; v++) {
        const reals limited = REAL(min)(REAL(max)(values[v], with->low), with->high);
        whole[v] = ADD_LANES(TO_LANES(limited), with->zero); /* of 0 to 255 */
    }
#if LANES == 8
    const __m256i mixed = _mm256_or_si256(whole[0], _mm256_slli_epi32(whole[1], 16));
    __m128i made = _mm_packus_epi16(_mm256_castsi256_si128(mixed), _mm256_extracti128_si256(mixed, 1));
#else
    __m128i made = _mm_packus_epi16(_mm_or_si128(whole[0], _mm_slli_epi32(whole[2], 16)),
                                    _mm_or_si128(whole[1], _mm_slli_epi32(whole[3], 16)));
#endif
    made = _mm_xor_si128(made, with->flip);
    memcpy(to, &made, WIDTH);
}
#endif

/* Round, move and limit 16 numbers. */
INLINE void round_values(const limits *with, const float *values, byte *to) {
#if LANES > 1
    reals read[VECS];
    UNROLLED
    for (int32_t v = 0; v < VECS; v++) {
        read[v] = REAL(loadu)(values + (ptrdiff_t)v * LANES);
    }
    store_reals(with, read, to);
#else
    for (int32_t i = 0; i < WIDTH; i++) {
        float value = values[i] < with->low ? with->low : values[i];
        value = value > with->high ? with->high : value;
        to[i] = (byte)((round_even(value) + with->zero) ^ with->flip);
    }
#endif
}

/* The same for `count` numbers of 16 bits. */
INLINE void round_shorts(const kernel_rounding *with, const float *values, int32_t count, void *to) {
    const float low = (float)(with->low - with->zero), high = (float)(with->high - with->zero);
    const int32_t zero = with->zero, flip = with->flip;
    uint16_t *made = to;
    for (int32_t i = 0; i < count; i++) {
        float value = values[i] < low ? low : values[i];
        value = value > high ? high : value;
        made[i] = (uint16_t)((round_even(value) + zero) ^ flip);
    }
}

/* Round the first `count` of at most 16 numbers, of 16 bits or, as `limits` has it, of 8. */
INLINE void round_some(const kernel_rounding *rounding, const limits *with, const float *values, int32_t count, byte *to) {
    if (rounding->bits > 8) {
        round_shorts(rounding, values, count, to);
    } else if (count == WIDTH) {
        round_values(with, values, to);
    } else {
        byte made[WIDTH];
        round_values(with, values, made);
        memcpy(to, made, (size_t)count);
    }
}

#endif
