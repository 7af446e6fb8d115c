/* Conversions between types of elements: floats of 4 to 16 bits, integers of 2 and 4 bits, and all others. See
 * kernels.h. */
#include "kernels.h"

#include <math.h>
#include <string.h>

/* A type of floats in at most 16 bits: a sign, an exponent, and `fraction` bits behind the point. `most` is the code of
 * the largest number, without its sign. `infinity` and `nan` are 0 where there is none; with `unsigned_nan` the code
 * of minus zero is NaN, and zero has no sign. */
typedef struct float_form {
    int32_t bits, fraction, bias, most, infinity, nan, unsigned_nan;
} float_form;

static const float_form *find_form(int32_t type) {
    static const float_form forms[KERNEL_FLOAT6E3M2 + 1] = {
        [KERNEL_FLOAT16] = {16, 10, 15, 0x7BFF, 0x7C00, 0x7E00, 0},
        [KERNEL_BFLOAT16] = {16, 7, 127, 0x7F7F, 0x7F80, 0x7FC0, 0},
        [KERNEL_FLOAT8E4M3FN] = {8, 3, 7, 0x7E, 0, 0x7F, 0},
        [KERNEL_FLOAT8E4M3FNUZ] = {8, 3, 8, 0x7F, 0, 0, 1},
        [KERNEL_FLOAT8E5M2] = {8, 2, 15, 0x7B, 0x7C, 0x7E, 0},
        [KERNEL_FLOAT8E5M2FNUZ] = {8, 2, 16, 0x7F, 0, 0, 1},
        [KERNEL_FLOAT4E2M1] = {4, 1, 1, 7, 0, 0, 0},
        [KERNEL_FLOAT6E2M3] = {6, 3, 1, 31, 0, 0, 0},
        [KERNEL_FLOAT6E3M2] = {6, 2, 3, 31, 0, 0, 0},
    };
    return forms[type].bits ? &forms[type] : NULL;
}

/* Return the number that a code stands for; bits above those of its type are not looked at. */
static float decode(const float_form *form, uint32_t code) {
    const uint32_t sign = (uint32_t)1 << (form->bits - 1), magnitude = code & (sign - 1);
    const uint32_t exponent = magnitude >> form->fraction, part = magnitude & (((uint32_t)1 << form->fraction) - 1);
    float value;
    if (magnitude > (uint32_t)form->most || (form->unsigned_nan && magnitude == 0 && (code & sign))) {
        value = form->infinity && magnitude == (uint32_t)form->infinity ? INFINITY : NAN;
    } else if (exponent == 0) {
        value = ldexpf((float)part, 1 - form->bias - form->fraction);
    } else {
        value = ldexpf((float)(part + ((uint32_t)1 << form->fraction)), (int)exponent - form->bias - form->fraction);
    }
    return (code & sign) ? -value : value;
}

/* Return the code that is nearest to a number, of two as near the even one. With `saturate` what is too large becomes
 * the largest number, as it does without where the type has neither infinity nor NaN. */
static uint32_t encode(const float_form *form, float value, int32_t saturate) {
    const uint32_t top = (uint32_t)1 << (form->bits - 1), sign = signbit(value) ? top : 0;
    const uint32_t most = (uint32_t)form->most;
    uint32_t magnitude = most + 1;
    if (isnan(value) && !form->unsigned_nan && !form->nan) {
        return sign ^ top; /* zero, of the other sign: ONNX leaves it open, and ml_dtypes does it */
    }
    if (isnan(value)) {
        return form->unsigned_nan ? top : sign | (uint32_t)form->nan;
    }
    if (!isinf(value)) {
        double fraction = fabs((double)value);
        int exponent;
        (void)frexp(fraction, &exponent);
        exponent = fraction == 0 || exponent - 1 < 1 - form->bias ? 1 - form->bias : exponent - 1;
        fraction = nearbyint(ldexp(fraction, form->fraction - exponent));
        /* The fraction of a normal number begins with a 1, which adds one to its exponent here. */
        fraction += ldexp((double)(exponent + form->bias - 1), form->fraction);
        magnitude = fraction > (double)most ? most + 1 : (uint32_t)fraction;
    }
    if (magnitude > most) {
        const int32_t beyond = form->infinity ? form->infinity : form->nan;
        return saturate || !(beyond || form->unsigned_nan) ? sign | most : beyond ? sign | (uint32_t)beyond : top;
    }
    return form->unsigned_nan && magnitude == 0 ? 0 : sign | magnitude;
}

/* Return the exponent of a float as float8e8m0 has it: a power of two, without a sign; 255 is NaN. */
static uint32_t encode_exponent(float value, int32_t saturate, int32_t rounding) {
    uint32_t bits, exponent, part;
    int up;
    memcpy(&bits, &value, sizeof bits);
    exponent = bits >> 23 & 255;
    part = bits & 0x7FFFFF;
    if (exponent == 255) {
        return 255;
    }
    /* Halfway between two powers, the upper one is taken, but below the least normal number. */
    up = rounding == KERNEL_UP ? part > 0 : rounding == KERNEL_NEAREST && part + (exponent > 0) > 0x400000;
    return exponent + (up && !(saturate && exponent == 254) ? 1 : 0);
}

static int is_whole(int32_t type) {
    switch (type) {
    case KERNEL_UINT8:
    case KERNEL_INT8:
    case KERNEL_UINT16:
    case KERNEL_INT16:
    case KERNEL_INT32:
    case KERNEL_INT64:
    case KERNEL_BOOL:
    case KERNEL_UINT32:
    case KERNEL_UINT64:
    case KERNEL_UINT4:
    case KERNEL_INT4:
    case KERNEL_UINT2:
    case KERNEL_INT2:
        return 1;
    default:
        return 0;
    }
}

#define READ(type)                                                                                                    \
    do {                                                                                                              \
        type found;                                                                                                   \
        memcpy(&found, (const unsigned char *)data + at * sizeof found, sizeof found);                                \
        return found;                                                                                                 \
    } while (0)
#define WRITE(type, value)                                                                                            \
    do {                                                                                                              \
        const type made = (type)(value);                                                                              \
        memcpy((unsigned char *)data + at * sizeof made, &made, sizeof made);                                         \
    } while (0)

/* Return an integer; one of uint64 as the int64 of the same bits. */
static int64_t read_whole(int32_t type, const void *data, size_t at) {
    switch (type) {
    case KERNEL_INT8:
        READ(int8_t);
    case KERNEL_UINT16:
        READ(uint16_t);
    case KERNEL_INT16:
        READ(int16_t);
    case KERNEL_INT32:
        READ(int32_t);
    case KERNEL_UINT32:
        READ(uint32_t);
    case KERNEL_INT64:
    case KERNEL_UINT64:
        READ(int64_t);
    case KERNEL_UINT4:
        return ((const unsigned char *)data)[at] & 15;
    case KERNEL_INT4:
        return ((((const unsigned char *)data)[at] & 15) ^ 8) - 8;
    case KERNEL_UINT2:
        return ((const unsigned char *)data)[at] & 3;
    case KERNEL_INT2:
        return ((((const unsigned char *)data)[at] & 3) ^ 2) - 2;
    default:
        READ(uint8_t);
    }
}

/* Write the lowest bits of an integer. */
static void write_whole(int32_t type, void *data, size_t at, int64_t value) {
    switch (type) {
    case KERNEL_UINT16:
    case KERNEL_INT16:
        WRITE(uint16_t, value);
        break;
    case KERNEL_INT32:
    case KERNEL_UINT32:
        WRITE(uint32_t, value);
        break;
    case KERNEL_INT64:
    case KERNEL_UINT64:
        WRITE(int64_t, value);
        break;
    case KERNEL_BOOL:
        WRITE(uint8_t, value != 0);
        break;
    case KERNEL_UINT4:
    case KERNEL_INT4:
        WRITE(uint8_t, value & 15);
        break;
    case KERNEL_UINT2:
    case KERNEL_INT2:
        WRITE(uint8_t, value & 3);
        break;
    default:
        WRITE(uint8_t, value);
        break;
    }
}

static double read_real(int32_t type, const void *data, size_t at) {
    const float_form *form = find_form(type);
    const unsigned char *bytes = data;
    uint16_t code;
    if (form && form->bits > 8) {
        memcpy(&code, bytes + at * sizeof code, sizeof code);
        return decode(form, code);
    }
    if (form) {
        return decode(form, bytes[at]);
    }
    switch (type) {
    case KERNEL_FLOAT32:
        READ(float);
    case KERNEL_FLOAT64:
        READ(double);
    case KERNEL_FLOAT8E8M0:
        return bytes[at] == 255 ? NAN : ldexp(1, bytes[at] - 127);
    case KERNEL_UINT64:
        return (double)(uint64_t)read_whole(type, data, at);
    default:
        return (double)read_whole(type, data, at);
    }
}

/* Write a float. What has fewer bits than 32 is rounded to 32 bits first, as ONNX's reference does. */
static void write_real(const kernel_rules *rules, void *data, size_t at, double value) {
    const float_form *form = find_form(rules->type);
    if (form && form->bits > 8) {
        WRITE(uint16_t, encode(form, (float)value, rules->saturate));
    } else if (form) {
        WRITE(uint8_t, encode(form, (float)value, rules->saturate));
    } else if (rules->type == KERNEL_FLOAT8E8M0) {
        WRITE(uint8_t, encode_exponent((float)value, rules->saturate, rules->rounding));
    } else if (rules->type == KERNEL_FLOAT64) {
        WRITE(double, value);
    } else {
        WRITE(float, value);
    }
}

/* Return a float without what is behind the point; what no int64 holds, and NaN, becomes the least one. */
static int64_t cut_off(double value) {
    return value > -9.2e18 && value < 9.2e18 ? (int64_t)value : INT64_MIN;
}

/* Convert between floats and bfloat16, their upper halves: all that computes in bfloat16 does so in floats. */
static void widen(int64_t count, const unsigned char *x, float *y) {
    for (int64_t at = 0; at < count; at++) {
        uint16_t code;
        memcpy(&code, x + at * 2, sizeof code);
        const uint32_t bits = (uint32_t)code << 16;
        memcpy(y + at, &bits, sizeof bits);
    }
}

static void narrow(int64_t count, const float *x, unsigned char *y) {
    for (int64_t at = 0; at < count; at++) {
        uint32_t bits;
        memcpy(&bits, x + at, sizeof bits);
        /* Half of a step is added, less one where the lower neighbour is even; a carry may make infinity. */
        const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
        const uint16_t code = (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? bits >> 31 << 15 | 0x7FC0 : rounded);
        memcpy(y + at * 2, &code, sizeof code);
    }
}

void kernel_convert(const kernel_conversion *conversion, const void *x, void *y) {
    const int32_t from = conversion->type, to = conversion->rules.type;
    if (from == KERNEL_BFLOAT16 && to == KERNEL_FLOAT32) {
        widen(conversion->count, x, y);
        return;
    }
    if (from == KERNEL_FLOAT32 && to == KERNEL_BFLOAT16) {
        narrow(conversion->count, x, y);
        return;
    }
    for (size_t at = 0; at < (size_t)conversion->count; at++) {
        if (is_whole(from) && is_whole(to)) {
            write_whole(to, y, at, read_whole(from, x, at));
        } else if (is_whole(from) && from != KERNEL_UINT64 && to != KERNEL_FLOAT64) {
            write_real(&conversion->rules, y, at, (float)read_whole(from, x, at)); /* rounded once */
        } else if (!is_whole(to)) {
            write_real(&conversion->rules, y, at, read_real(from, x, at));
        } else {
            const double value = read_real(from, x, at);
            /* What uint64 holds and int64 does not keeps its bits. */
            const int is_large = to == KERNEL_UINT64 && value >= 9.2e18 && value < 18446744073709551616.0;
            const int64_t whole = is_large ? (int64_t)(uint64_t)value : cut_off(value);
            write_whole(to, y, at, to == KERNEL_BOOL ? value != 0 : whole);
        }
    }
}

/* Return the number of the scale of an element. */
static size_t find_scale(const kernel_scales *scales, int64_t outer, int64_t place, int64_t inner) {
    return (size_t)(outer * scales->outer_step + place / scales->block * scales->step + inner * scales->inner_step);
}

/* Round to a type of floats. */
static double round_to(int32_t type, double value) {
    const float_form *form = find_form(type);
    if (form) {
        return decode(form, encode(form, (float)value, 0));
    }
    return type == KERNEL_FLOAT64 ? value : (float)value;
}

static double limit(double value, double low, double high) {
    return value > high ? high : value >= low ? value : low; /* NaN becomes the lowest */
}

void kernel_quantize_by(const kernel_scales *scales, const void *x, const void *scale, const void *zeros, void *y) {
    const kernel_rules *rules = &scales->rules;
    size_t at = 0;
    for (int64_t outer = 0; outer < scales->outer; outer++) {
        for (int64_t place = 0; place < scales->extent; place++) {
            for (int64_t inner = 0; inner < scales->inner; inner++, at++) {
                const size_t own = find_scale(scales, outer, place, inner);
                double value = read_real(scales->type, x, at) / read_real(scales->scale_type, scale, own);
                value = round_to(scales->precision, value);
                if (!is_whole(rules->type)) {
                    write_real(rules, y, at, zeros ? value + read_real(rules->type, zeros, own) : value);
                    continue;
                }
                value = nearbyint(value) + (zeros ? (double)read_whole(rules->type, zeros, own) : 0);
                write_whole(rules->type, y, at, (int64_t)limit(value, scales->low, scales->high));
            }
        }
    }
}

void kernel_dequantize_by(const kernel_scales *scales, const void *x, const void *scale, const void *zeros, void *y) {
    size_t at = 0;
    for (int64_t outer = 0; outer < scales->outer; outer++) {
        for (int64_t place = 0; place < scales->extent; place++) {
            for (int64_t inner = 0; inner < scales->inner; inner++, at++) {
                const size_t own = find_scale(scales, outer, place, inner);
                double value = (float)read_real(scales->type, x, at);
                value -= zeros ? read_real(scales->type, zeros, own) : 0;
                write_real(&scales->rules, y, at, (float)(value * read_real(scales->scale_type, scale, own)));
            }
        }
    }
}
