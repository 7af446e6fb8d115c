/* Execution of one command of a checked program. */
#ifndef DLA_KERNELS_H
#define DLA_KERNELS_H

#include "dla_program.h"

/* The memories of a program; all are little-endian on every machine. */
typedef struct dla_memories {
    uint8_t *arena, *scratchpad, *staging;
    const uint8_t *weights;
} dla_memories;

/* Execute a command. Returns NULL, or the end of a sentence where a sum leaves the range of its type. */
const char *dla_execute(const dla_command *command, const dla_memories *memories);

/* Copy a dense tensor in the machine's byte order into a box, and back. */
void dla_write_box(uint8_t *memory, const dla_box *box, const void *dense);
void dla_read_dense(const uint8_t *memory, const dla_box *box, void *dense);

#endif
