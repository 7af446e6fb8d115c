/* Reading commands: words of a program as structures. */
#include "dla_program.h"

#include <string.h>

#define BOX_WORDS 11u

uint32_t dla_read_word(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* What is left of a command while its fields are read. */
typedef struct reader {
    const uint8_t *bytes;
} reader;

static uint32_t next_word(reader *from) {
    uint32_t word = dla_read_word(from->bytes);
    from->bytes += 4;
    return word;
}

static int32_t next_signed(reader *from) {
    uint32_t word = next_word(from);
    int32_t value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static float next_float(reader *from) {
    uint32_t word = next_word(from);
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static dla_pair next_pair(reader *from) {
    dla_pair pair;
    pair.rows = next_word(from);
    pair.cols = next_word(from);
    return pair;
}

static dla_box next_box(reader *from) {
    dla_box box = dla_read_box(from->bytes);
    from->bytes += 4 * BOX_WORDS;
    return box;
}

dla_box dla_read_box(const uint8_t *bytes) {
    reader from = {bytes};
    dla_box box;
    box.tensor = next_word(&from);
    box.address = next_word(&from);
    box.first_row = next_word(&from);
    box.window = next_word(&from);
    box.rows = next_word(&from);
    box.cols = next_word(&from);
    box.channels = next_word(&from);
    box.row_pitch = next_word(&from);
    box.pixel_pitch = next_word(&from);
    box.channel_pitch = next_word(&from);
    box.dtype = next_word(&from);
    return box;
}

/* The words of each command behind its opcode and their number; 0 where there is none. */
static uint32_t count_words(uint32_t opcode) {
    static const uint8_t words[] = {0, 24, 23, 88, 54, 53, 52, 40, 34, 26, 1, 41, 47, 26, 34, 34};
    return opcode < sizeof words ? words[opcode] : 0;
}

static void read_conv(reader *from, dla_command *command) {
    command->kind = next_word(from);
    command->x = next_box(from);
    command->other = next_box(from);
    command->parameters = next_box(from);
    command->accumulator = next_box(from);
    command->residual = next_box(from);
    command->y = next_box(from);
}

static void read_window(reader *from, dla_command *command) {
    command->kernel = next_pair(from);
    command->strides = next_pair(from);
    command->dilations = next_pair(from);
    for (int i = 0; i < 4; i++) {
        command->pads[i] = next_word(from);
    }
}

static void read_range(reader *from, dla_command *command) {
    command->scaling.low = next_float(from);
    command->scaling.high = next_float(from);
}

static void read_multiplier(reader *from, dla_command *command) {
    command->scaling.mantissa = next_word(from);
    command->scaling.shift = next_word(from);
}

static void read_parameters(reader *from, dla_command *command) {
    command->alpha = next_float(from);
    command->beta = next_float(from);
}

static void read_fields(reader *from, dla_command *command) {
    command->layer = next_word(from);
    switch (command->opcode) {
    case DLA_LOAD:
        command->kind = next_word(from);
        command->x = next_box(from);
        command->y = next_box(from);
        break;
    case DLA_UNPACK:
        command->kind = next_word(from);
        command->x = next_box(from);
        command->y = next_box(from);
        command->block = next_word(from);
        command->has_zeros = next_word(from);
        break;
    case DLA_STORE:
        command->x = next_box(from);
        command->y = next_box(from);
        break;
    case DLA_CONV:
        read_conv(from, command);
        read_window(from, command);
        command->groups = next_word(from);
        command->scaling.x_zero = next_signed(from);
        command->scaling.y_zero = next_signed(from);
        read_range(from, command);
        command->function = next_word(from);
        read_parameters(from, command);
        command->residual_zero = next_signed(from);
        command->residual_scale = next_float(from);
        break;
    case DLA_POOL:
        command->kind = next_word(from);
        command->x = next_box(from);
        command->y = next_box(from);
        read_window(from, command);
        command->overhang = next_pair(from);
        command->padding_counts = next_word(from);
        command->scaling.x_zero = next_signed(from);
        command->scaling.y_zero = next_signed(from);
        read_multiplier(from, command);
        read_range(from, command);
        command->parameters = next_box(from);
        break;
    case DLA_ADD:
    case DLA_MUL:
    case DLA_MATMUL:
        command->x = next_box(from);
        command->other = next_box(from);
        command->y = next_box(from);
        command->scaling.x_zero = next_signed(from);
        command->scaling.other_zero = next_signed(from);
        command->scaling.y_zero = next_signed(from);
        command->scaling.mantissa = next_word(from);
        if (command->opcode == DLA_ADD) {
            command->scaling.other_mantissa = next_word(from);
        }
        command->scaling.shift = next_word(from);
        read_range(from, command);
        if (command->opcode != DLA_MATMUL) {
            command->parameters = next_box(from);
        }
        break;
    case DLA_SCALE:
        command->x = next_box(from);
        command->y = next_box(from);
        command->scaling.x_zero = next_signed(from);
        command->scaling.y_zero = next_signed(from);
        read_multiplier(from, command);
        read_range(from, command);
        command->parameters = next_box(from);
        break;
    case DLA_TABLE:
    case DLA_MINMAX:
    case DLA_QUANTIZE:
        command->x = next_box(from);
        command->other = next_box(from);
        command->y = next_box(from);
        break;
    case DLA_FUNCTION:
        command->kind = next_word(from);
        command->x = next_box(from);
        command->y = next_box(from);
        read_parameters(from, command);
        break;
    case DLA_NORMALIZE:
        command->kind = next_word(from);
        command->x = next_box(from);
        command->other = next_box(from);
        command->parameters = next_box(from);
        command->y = next_box(from);
        command->alpha = next_float(from);
        break;
    default: /* END */
        break;
    }
}

const char *dla_read_command(const uint8_t *program, size_t bytes, size_t *place, dla_command *command) {
    if (bytes - *place < 8) {
        return "the program breaks off inside it";
    }
    memset(command, 0, sizeof *command);
    command->opcode = dla_read_word(program + *place);
    uint32_t words = count_words(command->opcode);
    if (!words) {
        return "no command has its opcode";
    }
    if (dla_read_word(program + *place + 4) != words) {
        return "it has a wrong number of words";
    }
    *place += 8;
    if ((bytes - *place) / 4 < words) {
        return "the program breaks off inside it";
    }
    reader from = {program + *place};
    read_fields(&from, command);
    *place += (size_t)words * 4;
    return NULL;
}

uint32_t dla_count_rows(const dla_command *command) {
    switch (command->opcode) {
    case DLA_CONV:
        return command->parameters.channels == 3 * (uint64_t)command->y.channels ? 3 : 9;
    case DLA_ADD:
        return 8;
    case DLA_MUL:
        return 7;
    default: /* SCALE and POOL */
        return 6;
    }
}

int dla_has_output_stage(const dla_command *command) {
    return command->function != DLA_IDENTITY || command->x.dtype == DLA_INT16;
}

int dla_is_dynamic(const dla_command *command) {
    return command->opcode == DLA_CONV && command->x.dtype == DLA_INT16 && command->y.dtype == DLA_FLOAT32;
}

const dla_box *dla_result_box(const dla_command *command) {
    int partial = command->opcode == DLA_CONV && !(command->kind & DLA_LAST);
    return partial ? &command->accumulator : &command->y;
}

int dla_needs_staging(const dla_command *c) {
    const dla_box *result = dla_result_box(c);
    if (c->opcode == DLA_LOAD || c->opcode == DLA_UNPACK || c->opcode == DLA_STORE || c->opcode == DLA_END) {
        return 0; /* between two memories */
    }
    if (c->opcode == DLA_CONV || c->opcode == DLA_POOL) {
        const dla_box *same = &c->accumulator; /* an element of it is read just before the result's */
        const dla_box *read[4] = {&c->x, &c->other, &c->parameters, &c->residual};
        for (int i = 0; i < 4; i++) {
            if (dla_overlap(read[i], result)) {
                return 1;
            }
        }
        return result != same && dla_overlap(same, result);
    }
    if (c->opcode == DLA_MATMUL) {
        return dla_overlap(&c->x, result) || dla_overlap(&c->other, result);
    }
    return (dla_overlap(&c->x, result) && !dla_are_in_place(&c->x, result)) ||
           (dla_overlap(&c->other, result) && !dla_are_in_place(&c->other, result)) ||
           dla_overlap(&c->parameters, result);
}
