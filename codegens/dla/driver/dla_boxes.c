/* Boxes of tensors: how many bytes, which ones, and whether two of them share some. */
#include "dla_boxes.h"

size_t dla_element_size(uint32_t dtype) {
    static const uint8_t sizes[] = {4, 1, 1, 4, 2, 8};
    return dtype <= DLA_INT64 ? sizes[dtype] : 4;
}

uint64_t dla_multiply_capped(uint64_t a, uint64_t b) {
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

uint64_t dla_box_bytes(const dla_box *box) {
    uint64_t elements = dla_multiply_capped(dla_multiply_capped(box->rows, box->cols), box->channels);
    return dla_multiply_capped(elements, dla_element_size(box->dtype));
}

/* Return one past the last byte of a box whose bytes are fewer than 2^32; UINT64_MAX if that is no number. */
static uint64_t find_end(const dla_box *box) {
    uint64_t slot = box->first_row % box->window;
    uint64_t last = slot + box->rows > box->window ? box->window - 1 : slot + box->rows - 1;
    const uint64_t parts[3] = {
        dla_multiply_capped(last, box->row_pitch),
        dla_multiply_capped(box->cols - 1, box->pixel_pitch),
        dla_multiply_capped(box->channels - 1, box->channel_pitch),
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
    if (box->dtype > DLA_INT64) {
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

int dla_has_extents(const dla_box *box, uint32_t rows, uint32_t cols, uint32_t channels) {
    return box->rows == rows && box->cols == cols && box->channels == channels;
}

int dla_have_same_extents(const dla_box *a, const dla_box *b) {
    return dla_has_extents(a, b->rows, b->cols, b->channels);
}

int dla_overlap(const dla_box *a, const dla_box *b) {
    return a->rows && b->rows && a->address < find_end(b) && b->address < find_end(a);
}

int dla_are_in_place(const dla_box *a, const dla_box *b) {
    return dla_have_same_extents(a, b) && a->address == b->address && a->row_pitch == b->row_pitch &&
           a->pixel_pitch == b->pixel_pitch && a->channel_pitch == b->channel_pitch && a->window == b->window &&
           a->first_row % a->window == b->first_row % b->window &&
           dla_element_size(a->dtype) == dla_element_size(b->dtype);
}
