/* Checking programs: after `dla_check_program` no command leaves its memories. */
#include "dla_program.h"

#include <string.h>

#define MAX_VALUES (1u << 28) /* that a padded tile, or all windows of a command together, may hold */

int dla_is_known_version(uint32_t version) {
    return version >= DLA_OLDEST_VERSION && version <= DLA_VERSION;
}

static int is_byte(const dla_box *box) {
    return box->dtype == DLA_INT8 || box->dtype == DLA_UINT8;
}

/* Whether a box has activations in integers. */
static int is_activation(const dla_box *box) {
    return is_byte(box) || box->dtype == DLA_INT16;
}

/* Check the windows along rows or columns: sizes of kernel and tile, and that the tile and its padding hold
 * all positions. `*padded` and `*reached` are the positions with padding, and those of all windows. */
static const char *check_axis(
    uint64_t size, uint64_t before, uint64_t after, uint64_t beyond, uint64_t kernel, uint64_t stride,
    uint64_t dilation, uint64_t count, uint64_t *padded, uint64_t *reached
) {
    if (!kernel || !stride || !dilation) {
        return "a kernel, stride or dilation is 0";
    }
    uint64_t steps = dla_multiply_capped(count - 1, stride), within = dla_multiply_capped(kernel - 1, dilation);
    if (steps >= UINT64_MAX / 4 || within >= UINT64_MAX / 4) {
        return "its windows leave x and the padding";
    }
    uint64_t span = steps + within + 1;
    if (span > before + size + after + beyond) {
        return "its windows leave x and the padding";
    }
    *padded = span > before + size ? span : before + size;
    *reached = dla_multiply_capped(count, kernel);
    return NULL;
}

static const char *check_windows(const dla_command *c) {
    uint64_t padded[2], reached[2];
    const char *wrong = check_axis(
        c->x.rows, c->pads[0], c->pads[2], c->overhang.rows, c->kernel.rows, c->strides.rows,
        c->dilations.rows, c->y.rows, &padded[0], &reached[0]
    );
    if (!wrong) {
        wrong = check_axis(
            c->x.cols, c->pads[1], c->pads[3], c->overhang.cols, c->kernel.cols, c->strides.cols,
            c->dilations.cols, c->y.cols, &padded[1], &reached[1]
        );
    }
    if (wrong) {
        return wrong;
    }
    if (dla_multiply_capped(dla_multiply_capped(padded[0], padded[1]), c->x.channels) > MAX_VALUES ||
        dla_multiply_capped(dla_multiply_capped(reached[0], reached[1]), c->x.channels) > MAX_VALUES) {
        return "its windows hold too many values";
    }
    return NULL;
}

static int is_zero_point(int32_t zero) {
    return zero >= -128 && zero <= 255;
}

int dla_is_input_zero(const dla_command *c, int32_t zero) {
    return c->x.dtype == DLA_INT16 ? zero >= INT16_MIN && zero <= INT16_MAX : is_zero_point(zero);
}

/* Check a table of numbers, which is one row and column. */
static const char *check_table(const dla_box *table, uint64_t elements, uint32_t dtype, size_t memory) {
    const char *wrong = dla_check_box(table, memory);
    if (wrong) {
        return wrong;
    }
    if (table->rows != 1 || table->cols != 1 || table->channels != elements || table->dtype != dtype) {
        return "its parameters do not fit";
    }
    return NULL;
}

static const char *check_conv(const dla_command *c, size_t memory) {
    int floats = c->x.dtype == DLA_FLOAT32, first = c->kind & DLA_FIRST, last = c->kind & DLA_LAST;
    const char *wrong = dla_check_box(&c->other, memory);
    if (wrong) {
        return wrong;
    }
    if (c->kind > (DLA_FIRST | DLA_LAST)) {
        return "its flags are unknown";
    }
    if (floats ? c->y.dtype != DLA_FLOAT32 || c->other.dtype != DLA_FLOAT32
               : !is_activation(&c->x) || (c->y.dtype == DLA_FLOAT32 && !dla_is_dynamic(c)) ||
                     c->other.dtype != DLA_INT8) {
        return "its types do not go together";
    }
    if (c->function > DLA_NUMBER) {
        return "its function is unknown";
    }
    if (!dla_is_input_zero(c, c->scaling.x_zero)) {
        return "its zero point is not one of its type";
    }
    if (!c->groups || c->x.channels % c->groups || c->y.channels % c->groups) {
        return "its groups do not divide its channels";
    }
    uint64_t weights = dla_multiply_capped(dla_multiply_capped(c->y.channels, c->kernel.rows), c->kernel.cols);
    weights = dla_multiply_capped(weights, c->x.channels / c->groups);
    weights = dla_multiply_capped(weights, dla_element_size(c->other.dtype));
    if (c->other.rows != 1 || c->other.cols != 1 || c->other.channel_pitch != dla_element_size(c->other.dtype) ||
        weights != dla_box_bytes(&c->other)) {
        return "its weights do not fit";
    }
    if (c->parameters.rows || (!floats && (first || last))) {
        uint64_t rows = floats ? 1 : dla_count_rows(c);
        if ((wrong = check_table(&c->parameters, rows * c->y.channels, floats ? DLA_FLOAT32 : DLA_INT32, memory))) {
            return wrong;
        }
        if (!floats && last && dla_has_output_stage(c) && rows == 3) {
            return "its output stage lacks parameters";
        }
    }
    if (first && last) {
        if (c->accumulator.rows) {
            return "it has an accumulator that it does not use";
        }
    } else {
        if ((wrong = dla_check_box(&c->accumulator, memory)) != NULL) {
            return wrong;
        }
        if (!dla_have_same_extents(&c->accumulator, &c->y) ||
            c->accumulator.dtype != (floats ? DLA_FLOAT32 : c->x.dtype == DLA_INT16 ? DLA_INT64 : DLA_INT32)) {
            return "its accumulator does not fit";
        }
    }
    if (dla_is_dynamic(c) && last) {
        if ((wrong = check_table(&c->residual, 2, DLA_FLOAT32, memory)) != NULL) {
            return wrong;
        }
    } else if (c->residual.rows) {
        if ((wrong = dla_check_box(&c->residual, memory)) != NULL) {
            return wrong;
        }
        if (!dla_have_same_extents(&c->residual, &c->y) ||
            (floats ? c->residual.dtype != DLA_FLOAT32 : !is_activation(&c->residual) || !dla_has_output_stage(c))) {
            return "its residual does not fit";
        }
    }
    return check_windows(c);
}

/* Check the numbers by channel of a command that may have some. */
static const char *check_channels(const dla_command *c, size_t memory) {
    if (!c->parameters.rows) {
        return NULL;
    }
    if (c->y.dtype == DLA_FLOAT32) {
        return "floats have no numbers by channel";
    }
    return check_table(&c->parameters, (uint64_t)dla_count_rows(c) * c->y.channels, DLA_INT32, memory);
}

static int can_broadcast(const dla_box *from, const dla_box *to) {
    return (from->rows == 1 || from->rows == to->rows) && (from->cols == 1 || from->cols == to->cols) &&
           (from->channels == 1 || from->channels == to->channels);
}

static const char *check_matmul(const dla_command *c, size_t memory) {
    const char *wrong = dla_check_box(&c->other, memory);
    if (wrong) {
        return wrong;
    }
    if (!dla_has_extents(&c->x, c->y.rows, c->y.cols, c->x.channels) ||
        !dla_has_extents(&c->other, c->y.rows, c->x.channels, c->y.channels)) {
        return "its matrices do not fit";
    }
    int floats = c->y.dtype == DLA_FLOAT32;
    if (floats ? c->x.dtype != DLA_FLOAT32 || c->other.dtype != DLA_FLOAT32 : !is_byte(&c->x) || !is_byte(&c->other)) {
        return "its types do not go together";
    }
    if (!is_zero_point(c->scaling.x_zero) || !is_zero_point(c->scaling.other_zero)) {
        return "a zero point is not in [-128, 255]";
    }
    return NULL;
}

/* Check the scale or bias of NORMALIZE, if there is one. */
static const char *check_factor(const dla_command *c, const dla_box *factor, size_t memory) {
    if (!factor->rows) {
        return NULL;
    }
    return c->kind == DLA_SOFTMAX ? "it has a scale or bias" : check_table(factor, c->x.channels, DLA_FLOAT32, memory);
}

static const char *check_normalize(const dla_command *c, size_t memory) {
    if (c->kind > DLA_RMS) {
        return "its kind is unknown";
    }
    if (!dla_have_same_extents(&c->x, &c->y) || c->x.dtype != DLA_FLOAT32 || c->y.dtype != DLA_FLOAT32) {
        return "its types or extents do not go together";
    }
    const char *wrong = check_factor(c, &c->other, memory);
    return wrong ? wrong : check_factor(c, &c->parameters, memory);
}

/* Check MINMAX and QUANTIZE, the limits of which are two floats. */
static const char *check_limits(const dla_command *c, size_t memory) {
    int finds = c->opcode == DLA_MINMAX;
    if (c->x.dtype != DLA_FLOAT32) {
        return "its types do not go together";
    }
    if (!finds && (!dla_have_same_extents(&c->x, &c->y) || (c->y.dtype != DLA_FLOAT32 && c->y.dtype != DLA_INT16))) {
        return "its types or extents do not go together";
    }
    if (finds && !c->other.rows) {
        return check_table(&c->y, 2, DLA_FLOAT32, memory);
    }
    const char *wrong = check_table(&c->other, 2, DLA_FLOAT32, memory);
    return wrong || !finds ? wrong : check_table(&c->y, 2, DLA_FLOAT32, memory);
}

static const char *check_compute(const dla_command *c, size_t memory) {
    const char *wrong = dla_check_box(&c->x, memory);
    int floats = c->y.dtype == DLA_FLOAT32;
    if (wrong) {
        return wrong;
    }
    /* CONV without LAST does not write `y`, which gives its extents all the same. */
    if (c->opcode == DLA_CONV && !(c->kind & DLA_LAST)) {
        if (!c->y.rows || !c->y.cols || !c->y.channels) {
            return "an operand has no tensor or no elements";
        }
    } else if ((wrong = dla_check_box(&c->y, memory)) != NULL) {
        return wrong;
    }
    if (c->scaling.shift > 62) {
        return "its shift is above 62";
    }
    if (c->x.dtype == DLA_INT64 || c->other.dtype == DLA_INT64 || (c->y.dtype == DLA_INT64 && dla_result_box(c) == &c->y)) {
        return "an operand is int64, which accumulators alone are";
    }
    switch (c->opcode) {
    case DLA_CONV:
        return check_conv(c, memory);
    case DLA_POOL:
        if (c->kind > DLA_AVERAGE) {
            return "its kind is unknown";
        }
        if (c->x.channels != c->y.channels ||
            (c->x.dtype != c->y.dtype && !(is_activation(&c->x) && is_activation(&c->y))) || c->x.dtype == DLA_INT32) {
            return "its types or channels do not go together";
        }
        wrong = check_channels(c, memory);
        return wrong ? wrong : check_windows(c);
    case DLA_ADD:
    case DLA_MUL:
        if ((wrong = dla_check_box(&c->other, memory)) != NULL) {
            return wrong;
        }
        if (!can_broadcast(&c->x, &c->y) || !can_broadcast(&c->other, &c->y)) {
            return "an operand cannot be broadcast";
        }
        if ((c->x.dtype == DLA_FLOAT32) != floats || (c->other.dtype == DLA_FLOAT32) != floats) {
            return "its types do not go together";
        }
        return check_channels(c, memory);
    case DLA_SCALE:
        return dla_have_same_extents(&c->x, &c->y) ? check_channels(c, memory) : "its extents do not go together";
    case DLA_TABLE:
        if ((wrong = dla_check_box(&c->other, memory)) != NULL) {
            return wrong;
        }
        if (!dla_have_same_extents(&c->x, &c->y) || !is_byte(&c->x) || !is_byte(&c->y) || !is_byte(&c->other) ||
            !dla_has_extents(&c->other, 1, c->other.cols == 1 ? 1 : c->y.channels, 256)) {
            return "its table or extents do not fit";
        }
        return NULL;
    case DLA_MATMUL:
        return check_matmul(c, memory);
    case DLA_NORMALIZE:
        return check_normalize(c, memory);
    case DLA_MINMAX:
    case DLA_QUANTIZE:
        return check_limits(c, memory);
    default: /* FUNCTION */
        if (c->kind > DLA_NUMBER) {
            return "its kind is unknown";
        }
        if (!dla_have_same_extents(&c->x, &c->y) || c->x.dtype != DLA_FLOAT32 || !floats) {
            return "its types or extents do not go together";
        }
        return NULL;
    }
}

static const char *check_unpack(const dla_command *c) {
    if (c->x.dtype != DLA_UINT8 || c->y.dtype != DLA_FLOAT32 || c->x.rows != 1 || c->x.cols != 1 || c->y.rows != 1 ||
        !c->block || c->has_zeros > 1) {
        return "its weights are not of four bits";
    }
    uint64_t outputs = c->y.cols, inputs = c->y.channels, blocks = (inputs + c->block - 1) / c->block;
    uint64_t each = (inputs + 1) / 2 + blocks * (4 + c->has_zeros);
    return dla_multiply_capped(outputs, each) == c->x.channels ? NULL : "its weights do not fit";
}

static const char *check_command(const dla_command *c, const dla_sizes *sizes) {
    if (c->opcode == DLA_END) {
        return NULL;
    }
    if (c->opcode != DLA_LOAD && c->opcode != DLA_UNPACK && c->opcode != DLA_STORE) {
        return check_compute(c, sizes->scratchpad);
    }
    size_t source = sizes->scratchpad, target = sizes->arena;
    if (c->opcode != DLA_STORE) {
        if (c->kind > DLA_WEIGHTS) {
            return "its memory is unknown";
        }
        source = c->kind == DLA_WEIGHTS ? sizes->weights : sizes->arena;
        target = sizes->scratchpad;
    }
    const char *wrong = dla_check_box(&c->x, source);
    if (!wrong) {
        wrong = dla_check_box(&c->y, target);
    }
    if (!wrong && c->opcode == DLA_UNPACK) {
        return check_unpack(c);
    }
    if (!wrong && (!dla_have_same_extents(&c->x, &c->y) || c->x.dtype != c->y.dtype)) {
        wrong = "its boxes differ in extents or type";
    }
    return wrong;
}

const char *dla_check_program(const uint8_t *program, size_t bytes, dla_sizes *sizes, long *number) {
    *number = -1;
    if (bytes < DLA_FIRST_COMMAND || memcmp(program, "DLA1", 4) != 0) {
        return "it does not begin with the magic bytes DLA1";
    }
    if (!dla_is_known_version(dla_read_word(program + 4))) {
        return "it has another version than 4, 5, 6 and 7";
    }
    sizes->arena = dla_read_word(program + 8);
    sizes->scratchpad = dla_read_word(program + 12);
    sizes->weights = dla_read_word(program + 16);
    sizes->staging = 0;
    size_t place = DLA_FIRST_COMMAND;
    dla_command command;
    command.opcode = 0;
    while (place < bytes) {
        *number += 1;
        if (command.opcode == DLA_END) {
            return "it follows END";
        }
        const char *wrong = dla_read_command(program, bytes, &place, &command);
        if (!wrong) {
            wrong = check_command(&command, sizes);
        }
        if (wrong) {
            return wrong;
        }
        if (dla_needs_staging(&command)) {
            uint64_t needed = dla_box_bytes(dla_result_box(&command));
            sizes->staging = needed > sizes->staging ? (size_t)needed : sizes->staging;
        }
    }
    return command.opcode == DLA_END ? NULL : "the program ends without END";
}
