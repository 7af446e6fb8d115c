/* Reading and checking programs: after `dla_check_program` no command leaves its memories. */
#include "dla_program.h"

#include <string.h>

#define BOX_WORDS 11u
#define MAX_VALUES (1u << 28) /* that a padded tile, or all windows of a command together, may hold */

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

size_t dla_element_size(uint32_t dtype) {
    return dtype == DLA_INT8 || dtype == DLA_UINT8 ? 1 : 4;
}

static uint64_t multiply_capped(uint64_t a, uint64_t b) {
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

uint64_t dla_box_bytes(const dla_box *box) {
    uint64_t elements = multiply_capped(multiply_capped(box->rows, box->cols), box->channels);
    return multiply_capped(elements, dla_element_size(box->dtype));
}

/* Return one past the last byte of a box whose bytes are fewer than 2^32; UINT64_MAX if that is no number. */
static uint64_t find_end(const dla_box *box) {
    uint64_t slot = box->first_row % box->window;
    uint64_t last = slot + box->rows > box->window ? box->window - 1 : slot + box->rows - 1;
    uint64_t parts[3] = {
        multiply_capped(last, box->row_pitch),
        multiply_capped(box->cols - 1, box->pixel_pitch),
        multiply_capped(box->channels - 1, box->channel_pitch),
    };
    uint64_t end = box->address + dla_element_size(box->dtype);
    for (int i = 0; i < 3; i++) {
        if (parts[i] > UINT64_MAX - end) {
            return UINT64_MAX;
        }
        end += parts[i];
    }
    return end;
}

const char *dla_check_box(const dla_box *box, size_t memory_bytes) {
    if (!box->tensor || !box->rows || !box->cols || !box->channels) {
        return "an operand has no tensor or no elements";
    }
    if (box->dtype > DLA_INT32) {
        return "an operand has an unknown type";
    }
    if (box->rows > box->window) {
        return "an operand has more rows than its window";
    }
    if (find_end(box) > memory_bytes || dla_box_bytes(box) > memory_bytes) {
        return "an operand leaves its memory";
    }
    return NULL;
}

/* The words of each command behind its opcode and their number; 0 where there is none. */
static uint32_t count_words(uint32_t opcode) {
    static const uint8_t words[] = {0, 24, 23, 83, 43, 42, 41, 29, 34, 26, 1};
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
    command->low = next_float(from);
    command->high = next_float(from);
}

static void read_multiplier(reader *from, dla_command *command) {
    command->mantissa = next_word(from);
    command->shift = next_word(from);
}

static void read_fields(reader *from, dla_command *command) {
    next_word(from); /* the layer, for people */
    switch (command->opcode) {
    case DLA_LOAD:
        command->kind = next_word(from);
        command->x = next_box(from);
        command->y = next_box(from);
        break;
    case DLA_STORE:
        command->x = next_box(from);
        command->y = next_box(from);
        break;
    case DLA_CONV:
        read_conv(from, command);
        read_window(from, command);
        command->groups = next_word(from);
        command->x_zero = next_signed(from);
        command->y_zero = next_signed(from);
        read_range(from, command);
        break;
    case DLA_POOL:
        command->kind = next_word(from);
        command->x = next_box(from);
        command->y = next_box(from);
        read_window(from, command);
        command->overhang = next_pair(from);
        command->padding_counts = next_word(from);
        command->x_zero = next_signed(from);
        command->y_zero = next_signed(from);
        read_multiplier(from, command);
        read_range(from, command);
        break;
    case DLA_ADD:
    case DLA_MUL:
        command->x = next_box(from);
        command->other = next_box(from);
        command->y = next_box(from);
        command->x_zero = next_signed(from);
        command->other_zero = next_signed(from);
        command->y_zero = next_signed(from);
        command->mantissa = next_word(from);
        if (command->opcode == DLA_ADD) {
            command->other_mantissa = next_word(from);
        }
        command->shift = next_word(from);
        read_range(from, command);
        break;
    case DLA_SCALE:
        command->x = next_box(from);
        command->y = next_box(from);
        command->x_zero = next_signed(from);
        command->y_zero = next_signed(from);
        read_multiplier(from, command);
        read_range(from, command);
        break;
    case DLA_TABLE:
        command->x = next_box(from);
        command->other = next_box(from);
        command->y = next_box(from);
        break;
    case DLA_FUNCTION:
        command->kind = next_word(from);
        command->x = next_box(from);
        command->y = next_box(from);
        read_range(from, command);
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

const dla_box *dla_result_box(const dla_command *command) {
    int partial = command->opcode == DLA_CONV && !(command->kind & DLA_LAST);
    return partial ? &command->accumulator : &command->y;
}

static int has_extents(const dla_box *box, uint32_t rows, uint32_t cols, uint32_t channels) {
    return box->rows == rows && box->cols == cols && box->channels == channels;
}

static int have_same_extents(const dla_box *a, const dla_box *b) {
    return has_extents(a, b->rows, b->cols, b->channels);
}

static int is_byte(const dla_box *box) {
    return box->dtype == DLA_INT8 || box->dtype == DLA_UINT8;
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
    uint64_t steps = multiply_capped(count - 1, stride), within = multiply_capped(kernel - 1, dilation);
    if (steps >= UINT64_MAX / 4 || within >= UINT64_MAX / 4) {
        return "its windows leave x and the padding";
    }
    uint64_t span = steps + within + 1;
    if (span > before + size + after + beyond) {
        return "its windows leave x and the padding";
    }
    *padded = span > before + size ? span : before + size;
    *reached = multiply_capped(count, kernel);
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
    if (multiply_capped(multiply_capped(padded[0], padded[1]), c->x.channels) > MAX_VALUES ||
        multiply_capped(multiply_capped(reached[0], reached[1]), c->x.channels) > MAX_VALUES) {
        return "its windows hold too many values";
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
               : !is_byte(&c->x) || c->y.dtype == DLA_FLOAT32 || c->other.dtype != DLA_INT8) {
        return "its types do not go together";
    }
    if (c->x_zero < -128 || c->x_zero > 255) {
        return "its zero point is not one of its type";
    }
    if (!c->groups || c->x.channels % c->groups || c->y.channels % c->groups) {
        return "its groups do not divide its channels";
    }
    uint64_t weights = multiply_capped(multiply_capped(c->y.channels, c->kernel.rows), c->kernel.cols);
    weights = multiply_capped(multiply_capped(weights, c->x.channels / c->groups), dla_element_size(c->other.dtype));
    if (c->other.rows != 1 || c->other.cols != 1 || c->other.channel_pitch != dla_element_size(c->other.dtype) ||
        weights != dla_box_bytes(&c->other)) {
        return "its weights do not fit";
    }
    if (c->parameters.rows || (!floats && (first || last))) {
        uint64_t channels = floats ? c->y.channels : 3 * (uint64_t)c->y.channels;
        if ((wrong = dla_check_box(&c->parameters, memory)) != NULL) {
            return wrong;
        }
        if (c->parameters.rows != 1 || c->parameters.cols != 1 || c->parameters.channels != channels ||
            c->parameters.dtype != (floats ? DLA_FLOAT32 : DLA_INT32)) {
            return "its parameters do not fit";
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
        if (!have_same_extents(&c->accumulator, &c->y) ||
            c->accumulator.dtype != (floats ? DLA_FLOAT32 : DLA_INT32)) {
            return "its accumulator does not fit";
        }
    }
    if (c->residual.rows) {
        if ((wrong = dla_check_box(&c->residual, memory)) != NULL) {
            return wrong;
        }
        if (!floats || !have_same_extents(&c->residual, &c->y) || c->residual.dtype != DLA_FLOAT32) {
            return "its residual does not fit";
        }
    }
    return check_windows(c);
}

static int can_broadcast(const dla_box *from, const dla_box *to) {
    return (from->rows == 1 || from->rows == to->rows) && (from->cols == 1 || from->cols == to->cols) &&
           (from->channels == 1 || from->channels == to->channels);
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
    if (c->shift > 62) {
        return "its shift is above 62";
    }
    switch (c->opcode) {
    case DLA_CONV:
        return check_conv(c, memory);
    case DLA_POOL:
        if (c->kind > DLA_AVERAGE) {
            return "its kind is unknown";
        }
        if (c->x.channels != c->y.channels || c->x.dtype != c->y.dtype || c->x.dtype == DLA_INT32) {
            return "its types or channels do not go together";
        }
        return check_windows(c);
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
        return NULL;
    case DLA_SCALE:
        if (!have_same_extents(&c->x, &c->y) || (c->x.dtype == DLA_FLOAT32) != floats) {
            return "its types or extents do not go together";
        }
        return NULL;
    case DLA_TABLE:
        if ((wrong = dla_check_box(&c->other, memory)) != NULL) {
            return wrong;
        }
        if (!have_same_extents(&c->x, &c->y) || !is_byte(&c->x) || !is_byte(&c->y) || !is_byte(&c->other) ||
            !has_extents(&c->other, 1, 1, 256)) {
            return "its table or extents do not fit";
        }
        return NULL;
    default: /* FUNCTION */
        if (c->kind > DLA_ELU) {
            return "its kind is unknown";
        }
        if (!have_same_extents(&c->x, &c->y) || c->x.dtype != DLA_FLOAT32 || !floats) {
            return "its types or extents do not go together";
        }
        return NULL;
    }
}

static const char *check_command(const dla_command *c, const dla_sizes *sizes) {
    if (c->opcode == DLA_END) {
        return NULL;
    }
    if (c->opcode != DLA_LOAD && c->opcode != DLA_STORE) {
        return check_compute(c, sizes->scratchpad);
    }
    size_t source = sizes->scratchpad, target = sizes->arena;
    if (c->opcode == DLA_LOAD) {
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
    if (!wrong && (!have_same_extents(&c->x, &c->y) || c->x.dtype != c->y.dtype)) {
        wrong = "its boxes differ in extents or type";
    }
    return wrong;
}

static int overlap(const dla_box *a, const dla_box *b) {
    return a->rows && b->rows && a->address < find_end(b) && b->address < find_end(a);
}

static int are_in_place(const dla_box *a, const dla_box *b) {
    return have_same_extents(a, b) && a->address == b->address && a->row_pitch == b->row_pitch &&
           a->pixel_pitch == b->pixel_pitch && a->channel_pitch == b->channel_pitch && a->window == b->window &&
           a->first_row % a->window == b->first_row % b->window &&
           dla_element_size(a->dtype) == dla_element_size(b->dtype);
}

int dla_needs_staging(const dla_command *c) {
    const dla_box *result = dla_result_box(c);
    if (c->opcode == DLA_LOAD || c->opcode == DLA_STORE || c->opcode == DLA_END) {
        return 0; /* between two memories */
    }
    if (c->opcode == DLA_CONV || c->opcode == DLA_POOL) {
        const dla_box *same = &c->accumulator; /* an element of it is read just before the result's */
        const dla_box *read[4] = {&c->x, &c->other, &c->parameters, &c->residual};
        for (int i = 0; i < 4; i++) {
            if (overlap(read[i], result)) {
                return 1;
            }
        }
        return result != same && overlap(same, result);
    }
    return (overlap(&c->x, result) && !are_in_place(&c->x, result)) ||
           (overlap(&c->other, result) && !are_in_place(&c->other, result));
}

const char *dla_check_program(const uint8_t *program, size_t bytes, dla_sizes *sizes, long *number) {
    *number = -1;
    if (bytes < DLA_FIRST_COMMAND || memcmp(program, "DLA1", 4) != 0) {
        return "it does not begin with the magic bytes DLA1";
    }
    if (dla_read_word(program + 4) != 1) {
        return "it has another version than 1";
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
