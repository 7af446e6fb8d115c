/* Reading of region descriptions. */
#include "region_description.h"

#include <stdlib.h>
#include <string.h>

#define HEADER 32u
#define VERSION 1u
#define MOST_BYTES ((size_t)1 << 24) /* of a description */
#define MOST_RANK 64u

static const char *const BROKEN = "the node's description of its region breaks off";
static const char *const NO_MEMORY = "there is no memory left";

/* What is left to be read. */
typedef struct reader {
    const uint8_t *at, *end;
} reader;

size_t get_element_size(int32_t type) {
    /* by ONNX's number: texts, and types of less than a byte, do not cross */
    static const uint8_t sizes[] = {0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2, 1, 1, 1, 1};
    return type >= 0 && (size_t)type < sizeof sizes ? sizes[type] : 0;
}

/* Return the value of a hexadecimal digit, 16 for another character. */
static unsigned decode_digit(char digit) {
    static const char digits[] = "0123456789abcdef";
    const char *found = digit ? strchr(digits, digit) : NULL;
    return found ? (unsigned)(found - digits) : 16;
}

size_t decode_digits(char *digits, size_t count) {
    for (size_t i = 0; i + 1 < count; i += 2) {
        unsigned high = decode_digit(digits[i]), low = decode_digit(digits[i + 1]);
        if (high > 15 || low > 15) {
            return 0;
        }
        digits[i / 2] = (char)(high << 4 | low);
    }
    return count % 2 ? 0 : count / 2;
}

static uint64_t read_number(const uint8_t *at, unsigned bytes) {
    uint64_t number = 0;
    for (unsigned i = 0; i < bytes; i++) {
        number |= (uint64_t)at[i] << 8 * i;
    }
    return number;
}

static int take_number(reader *from, unsigned bytes, uint64_t *number) {
    if ((size_t)(from->end - from->at) < bytes) {
        return 0;
    }
    *number = read_number(from->at, bytes);
    from->at += bytes;
    return 1;
}

/* Take a text: its length, its bytes, and a zero, which stands nowhere else in it. */
static int take_text(reader *from, const char **text) {
    uint64_t length;
    if (!take_number(from, 4, &length) || (uint64_t)(from->end - from->at) <= length) {
        return 0;
    }
    *text = (const char *)from->at;
    from->at += length + 1;
    return memchr(*text, 0, length + 1) == *text + length;
}

static const char *take_file(reader *from, described_file *file) {
    if (!take_text(from, &file->name) || !take_text(from, &file->path) ||
        !take_number(from, 8, &file->bytes) || (size_t)(from->end - from->at) < SHA256_BYTES) {
        return BROKEN;
    }
    memcpy(file->digest, from->at, SHA256_BYTES);
    from->at += SHA256_BYTES;
    return NULL;
}

static const char *take_tensor(reader *from, byoc_tensor *tensor, int64_t **shapes) {
    uint64_t type, rank, extent, elements = 1;
    if (!take_text(from, &tensor->name) || !take_number(from, 4, &type) ||
        !take_number(from, 4, &rank)) {
        return BROKEN;
    }
    size_t size = type < 256 ? get_element_size((int32_t)type) : 0;
    if (!size || rank > MOST_RANK) {
        return "the node's description of its region has a tensor of an unknown type or rank";
    }
    tensor->dtype = (int32_t)type;
    tensor->rank = (int32_t)rank;
    tensor->shape = *shapes;
    for (uint64_t i = 0; i < rank; i++) {
        if (!take_number(from, 8, &extent)) {
            return BROKEN;
        }
        if (extent > INT64_MAX || (extent && elements > (uint64_t)PTRDIFF_MAX / size / extent)) {
            return "the node's description of its region has a tensor that no memory holds";
        }
        elements *= extent;
        *(*shapes)++ = (int64_t)extent;
    }
    tensor->bytes = (size_t)elements * size;
    return NULL;
}

/* Take what follows the header, into arrays that are large enough. */
static const char *take_content(reader *from, region_description *to) {
    int64_t *shapes = to->shapes;
    const char *wrong = NULL;
    if (!take_text(from, &to->codegen) || !take_text(from, &to->region)) {
        return BROKEN;
    }
    for (size_t i = 0; i < to->file_count && !wrong; i++) {
        wrong = take_file(from, &to->files[i]);
    }
    for (size_t i = 0; i < to->text_count && !wrong; i++) {
        if (!take_text(from, &to->texts[i].name) || !take_text(from, &to->texts[i].text)) {
            wrong = BROKEN;
        }
    }
    for (size_t i = 0; i < to->input_count && !wrong; i++) {
        wrong = take_tensor(from, &to->inputs[i], &shapes);
    }
    for (size_t i = 0; i < to->output_count && !wrong; i++) {
        wrong = take_tensor(from, &to->outputs[i], &shapes);
    }
    if (!wrong && from->at != from->end) {
        wrong = "the node's description of its region goes on behind its end";
    }
    return wrong;
}

/* Return an array of zeros for a number that a description states; each element takes bytes of it. */
static void *make_array(uint64_t count, size_t size) {
    return calloc(count ? (size_t)count : 1, size);
}

const char *read_description(const uint8_t *bytes, size_t count, region_description *description) {
    region_description *to = description;
    memset(to, 0, sizeof *to);
    if (count < HEADER || count > MOST_BYTES || memcmp(bytes, "BYOCREGN", 8) != 0) {
        return "the node does not describe a region of byoc";
    }
    if (read_number(bytes + 8, 4) != VERSION) {
        return "the node's description of its region is not of version 1; take a newer provider";
    }
    if (read_number(bytes + 12, 4) != count) {
        return BROKEN;
    }
    size_t *const counts[] = {&to->file_count, &to->text_count, &to->input_count, &to->output_count};
    static const size_t least[] = {50, 10, 13, 13}; /* bytes that each takes */
    for (unsigned i = 0; i < 4; i++) {
        *counts[i] = (size_t)read_number(bytes + 16 + 4 * i, 4);
        if (*counts[i] > count / least[i]) {
            return BROKEN;
        }
    }
    to->memory = malloc(count);
    to->shapes = make_array(count / 8, sizeof *to->shapes);
    to->files = make_array(to->file_count, sizeof *to->files);
    to->texts = make_array(to->text_count, sizeof *to->texts);
    to->inputs = make_array(to->input_count, sizeof *to->inputs);
    to->outputs = make_array(to->output_count, sizeof *to->outputs);
    if (!to->memory || !to->shapes || !to->files || !to->texts || !to->inputs || !to->outputs) {
        return NO_MEMORY;
    }
    memcpy(to->memory, bytes, count);
    reader from = {to->memory + HEADER, to->memory + count};
    return take_content(&from, to);
}

void free_description(region_description *description) {
    free(description->memory);
    free(description->shapes);
    free(description->files);
    free(description->texts);
    free(description->inputs);
    free(description->outputs);
    memset(description, 0, sizeof *description);
}
