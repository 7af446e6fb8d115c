/* A box: the rows, columns and channels of a tensor that lie in one memory. */
#ifndef DLA_BOXES_H
#define DLA_BOXES_H

#include <stddef.h>
#include <stdint.h>

enum { DLA_FLOAT32 = 0, DLA_INT8 = 1, DLA_UINT8 = 2, DLA_INT32 = 3, DLA_INT16 = 4, DLA_INT64 = 5 };

/* A box of a tensor in one memory; `rows` is 0 where an operand is left out. */
typedef struct dla_box {
    uint32_t tensor, address, first_row, window, rows, cols, channels;
    uint32_t row_pitch, pixel_pitch, channel_pitch, dtype;
} dla_box;

/* Return the bytes of an element. */
size_t dla_element_size(uint32_t dtype);

/* Return a product, at most UINT64_MAX. */
uint64_t dla_multiply_capped(uint64_t a, uint64_t b);

/* Return the bytes of a box's elements, without gaps. */
uint64_t dla_box_bytes(const dla_box *box);

/* Return NULL if a box is in a memory of so many bytes, else the end of a sentence. */
const char *dla_check_box(const dla_box *box, size_t memory_bytes);

int dla_has_extents(const dla_box *box, uint32_t rows, uint32_t cols, uint32_t channels);
int dla_have_same_extents(const dla_box *a, const dla_box *b);

/* Return whether two boxes of one memory may have a byte in common; one that is left out has none. */
int dla_overlap(const dla_box *a, const dla_box *b);

/* Return whether each element of a box lies where the same one of the other does. */
int dla_are_in_place(const dla_box *a, const dla_box *b);

#endif
