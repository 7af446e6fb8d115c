/* The commands of a program: copies between memories, and which kernel computes what. */
#include "dla_kernels.h"
#include "dla_values.h"

static void copy_box(const uint8_t *from, const dla_box *source, uint8_t *to, const dla_box *target) {
    size_t element = dla_element_size(source->dtype);
    int dense = source->channel_pitch == element && target->channel_pitch == element;
    for (uint32_t row = 0; row < target->rows; row++) {
        for (uint32_t col = 0; col < target->cols; col++) {
            const uint8_t *read = from + find_element(source, row, col, 0);
            uint8_t *write = to + find_element(target, row, col, 0);
            if (dense) {
                memmove(write, read, element * target->channels);
                continue;
            }
            for (uint32_t channel = 0; channel < target->channels; channel++) {
                memmove(write, read, element);
                read += source->channel_pitch;
                write += target->channel_pitch;
            }
        }
    }
}

/* The bytes of four-bit weights are numbers, scales and zero points, as the manual has them. */
static void unpack_weights(const dla_command *c, const uint8_t *from, uint8_t *to) {
    uint32_t outputs = c->y.cols, inputs = c->y.channels, blocks = inputs / c->block + (inputs % c->block != 0);
    size_t pitch = c->x.channel_pitch, width = (size_t)inputs / 2 + inputs % 2;
    const uint8_t *numbers = from + find_element(&c->x, 0, 0, 0), *scales = numbers + outputs * width * pitch;
    const uint8_t *zeros = scales + 4 * (size_t)outputs * blocks * pitch;
    for (uint32_t output = 0; output < outputs; output++) {
        for (uint32_t input = 0; input < inputs; input++) {
            size_t block = (size_t)output * blocks + input / c->block;
            uint8_t both = numbers[(output * width + input / 2) * pitch], bytes[4];
            for (size_t i = 0; i < sizeof bytes; i++) {
                bytes[i] = scales[(4 * block + i) * pitch];
            }
            int number = input % 2 ? both >> 4 : both & 15, zero = c->has_zeros ? zeros[block * pitch] : 8;
            write_float(to + find_element(&c->y, 0, output, input), (float)(number - zero) * read_float(bytes));
        }
    }
}

/* Return a box of the same elements without gaps, at the start of a memory. */
static dla_box make_dense(const dla_box *box) {
    dla_box dense = *box;
    uint32_t element = (uint32_t)dla_element_size(box->dtype);
    dense.address = 0;
    dense.first_row = 0;
    dense.window = box->rows;
    dense.channel_pitch = element;
    dense.pixel_pitch = element * box->channels;
    dense.row_pitch = dense.pixel_pitch * box->cols;
    return dense;
}

static const char *compute(const dla_command *c, const uint8_t *memory, uint8_t *to, const dla_box *result) {
    switch (c->opcode) {
    case DLA_CONV:
        return dla_execute_conv(c, memory, to, result);
    case DLA_POOL:
        return dla_execute_pool(c, memory, to, result);
    case DLA_MATMUL:
        return dla_execute_matmul(c, memory, to, result);
    case DLA_NORMALIZE:
        dla_execute_normalize(c, memory, to, result);
        return NULL;
    case DLA_MINMAX:
        dla_execute_minmax(c, memory, to, result);
        return NULL;
    case DLA_QUANTIZE:
        dla_execute_quantize(c, memory, to, result);
        return NULL;
    default:
        return dla_execute_elements(c, memory, to, result);
    }
}

const char *dla_execute(const dla_command *c, const dla_memories *m) {
    if (c->opcode == DLA_LOAD) {
        copy_box(c->kind == DLA_WEIGHTS ? m->weights : m->arena, &c->x, m->scratchpad, &c->y);
        return NULL;
    }
    if (c->opcode == DLA_UNPACK) {
        unpack_weights(c, c->kind == DLA_WEIGHTS ? m->weights : m->arena, m->scratchpad);
        return NULL;
    }
    if (c->opcode == DLA_STORE) {
        copy_box(m->scratchpad, &c->x, m->arena, &c->y);
        return NULL;
    }
    if (c->opcode == DLA_END) {
        return NULL;
    }
    const dla_box *result = dla_result_box(c);
    if (!dla_needs_staging(c)) {
        return compute(c, m->scratchpad, m->scratchpad, result);
    }
    dla_box dense = make_dense(result);
    const char *wrong = compute(c, m->scratchpad, m->staging, &dense);
    if (!wrong) {
        copy_box(m->staging, &dense, m->scratchpad, result);
    }
    return wrong;
}

/* Copy an element from this processor's byte order to that of memories, or back. */
static void copy_element(uint8_t *to, const uint8_t *from, size_t bytes) {
    const uint16_t one = 1;
    uint8_t is_little;
    memcpy(&is_little, &one, sizeof is_little);
    for (size_t i = 0; i < bytes; i++) {
        to[i] = from[is_little ? i : bytes - 1 - i];
    }
}

void dla_write_box(uint8_t *memory, const dla_box *box, const void *dense) {
    size_t element = dla_element_size(box->dtype);
    const uint8_t *from = dense;
    for (uint32_t row = 0; row < box->rows; row++) {
        for (uint32_t col = 0; col < box->cols; col++) {
            for (uint32_t channel = 0; channel < box->channels; channel++) {
                copy_element(memory + find_element(box, row, col, channel), from, element);
                from += element;
            }
        }
    }
}

void dla_read_dense(const uint8_t *memory, const dla_box *box, void *dense) {
    size_t element = dla_element_size(box->dtype);
    uint8_t *to = dense;
    for (uint32_t row = 0; row < box->rows; row++) {
        for (uint32_t col = 0; col < box->cols; col++) {
            for (uint32_t channel = 0; channel < box->channels; channel++) {
                copy_element(to, memory + find_element(box, row, col, channel), element);
                to += element;
            }
        }
    }
}
