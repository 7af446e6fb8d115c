/* Elements in memory, and the arithmetic of integers with a scale.
 *
 * Memories are little-endian, so elements are read and written byte by byte where the machine is not; compilers
 * make one instruction of it where it is.
 */
#ifndef DLA_VALUES_H
#define DLA_VALUES_H

#include "dla_program.h"

#include <string.h>

static inline float read_float(const uint8_t *place) {
    uint32_t word = dla_read_word(place);
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static inline void write_word(uint8_t *place, uint32_t word) {
    for (int i = 0; i < 4; i++) {
        place[i] = (uint8_t)(word >> 8 * i);
    }
}

static inline void write_float(uint8_t *place, float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    write_word(place, word);
}

static inline int64_t read_integer(const uint8_t *place, uint32_t dtype) {
    int8_t small;
    int16_t half;
    int32_t large;
    int64_t sum;
    uint32_t word;
    uint64_t both;
    switch (dtype) {
    case DLA_INT8:
        memcpy(&small, place, 1);
        return small;
    case DLA_UINT8:
        return *place;
    case DLA_INT16:
        word = place[0] | (uint32_t)place[1] << 8;
        half = (int16_t)(word >= 0x8000u ? (int32_t)word - 0x10000 : (int32_t)word);
        return half;
    case DLA_INT64:
        both = dla_read_word(place) | (uint64_t)dla_read_word(place + 4) << 32;
        memcpy(&sum, &both, sizeof sum);
        return sum;
    default:
        word = dla_read_word(place);
        memcpy(&large, &word, sizeof large);
        return large;
    }
}

static inline void write_integer(uint8_t *place, uint32_t dtype, int64_t value) {
    switch (dtype) {
    case DLA_INT32:
        write_word(place, (uint32_t)value);
        break;
    case DLA_INT64:
        write_word(place, (uint32_t)value);
        write_word(place + 4, (uint32_t)((uint64_t)value >> 32));
        break;
    case DLA_INT16:
        place[1] = (uint8_t)((uint64_t)value >> 8);
        place[0] = (uint8_t)value;
        break;
    default:
        *place = (uint8_t)value;
    }
}

static inline size_t find_row(const dla_box *box, uint32_t row) {
    uint64_t slot = ((uint64_t)box->first_row + row) % box->window;
    return box->address + (size_t)slot * box->row_pitch;
}

static inline size_t find_element(const dla_box *box, uint32_t row, uint32_t col, uint32_t channel) {
    return find_row(box, row) + (size_t)col * box->pixel_pitch + (size_t)channel * box->channel_pitch;
}

/* The element of an operand that is broadcast to a result with more rows, columns or channels. */
static inline size_t find_broadcast(const dla_box *box, uint32_t row, uint32_t col, uint32_t channel) {
    return find_element(
        box, box->rows == 1 ? 0 : row, box->cols == 1 ? 0 : col, box->channels == 1 ? 0 : channel
    );
}

/* Return a quotient rounded to the nearest integer, halves to even; the denominator is at most 2**62. */
static inline int64_t divide_half_even(int64_t numerator, int64_t denominator) {
    int64_t quotient = numerator / denominator, rest = numerator % denominator;
    if (rest < 0) {
        quotient -= 1;
        rest += denominator;
    }
    int64_t other = denominator - rest; /* the distance to the next integer */
    return quotient + (rest > other || (rest == other && (quotient & 1)));
}

static inline int64_t shift_half_even(int64_t value, uint32_t shift) {
    return divide_half_even(value, (int64_t)1 << shift);
}

/* Multiply by a mantissa. Returns 0 if the product leaves the range of int64. */
static inline int multiply(int64_t value, uint32_t mantissa, int64_t *product) {
    if (mantissa && (value > INT64_MAX / mantissa || value < -(INT64_MAX / mantissa))) {
        return 0;
    }
    *product = value * (int64_t)mantissa;
    return 1;
}

static inline float clamp_float(float value, const dla_scaling *s) {
    return value < s->low ? s->low : value > s->high ? s->high : value;
}

/* Return a value within limits; of what is no number, `low`. */
static inline double limit(double value, double low, double high) {
    value = value > low ? value : low;
    return value > high ? high : value;
}

/* Write an integer plus the zero point of the result, within the range of the scaling and of the type. */
static inline void write_shifted(uint8_t *place, uint32_t dtype, double value, const dla_scaling *s) {
    static const double lows[] = {0, -128, 0, -2147483648.0, -32768};
    static const double highs[] = {0, 127, 255, 2147483647.0, 32767};
    double limited = limit(value + s->y_zero, s->low, s->high);
    write_integer(place, dtype, (int64_t)limit(limited, lows[dtype], highs[dtype]));
}

static inline const char *write_rescaled(uint8_t *place, uint32_t dtype, int64_t value, const dla_scaling *s) {
    int64_t product;
    if (!multiply(value, s->mantissa, &product)) {
        return "a product leaves the range of int64";
    }
    write_shifted(place, dtype, (double)shift_half_even(product, s->shift), s);
    return NULL;
}

/* Return an element of a table of int32 [rows][channels], which is one row and column. */
static inline int32_t read_row(
    const dla_box *table, const uint8_t *memory, uint64_t row, uint32_t channels, uint32_t channel
) {
    size_t place = find_element(table, 0, 0, 0) + (size_t)(row * channels + channel) * table->channel_pitch;
    return (int32_t)read_integer(memory + place, DLA_INT32);
}

#endif
