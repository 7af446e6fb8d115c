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

/* Parts of it: `result` is the box of what is made, in `to`; all else is read from `memory`, the scratchpad. */
const char *dla_execute_conv(const dla_command *command, const uint8_t *memory, uint8_t *to, const dla_box *result);
const char *dla_execute_pool(const dla_command *command, const uint8_t *memory, uint8_t *to, const dla_box *result);
const char *dla_execute_matmul(const dla_command *command, const uint8_t *memory, uint8_t *to, const dla_box *result);
void dla_execute_minmax(const dla_command *command, const uint8_t *memory, uint8_t *to, const dla_box *result);
void dla_execute_quantize(const dla_command *command, const uint8_t *memory, uint8_t *to, const dla_box *result);
void dla_execute_normalize(const dla_command *command, const uint8_t *memory, uint8_t *to, const dla_box *result);
const char *dla_execute_elements(const dla_command *command, const uint8_t *memory, uint8_t *to, const dla_box *result);

/* The function of a number, by its kind. */
double dla_evaluate_function(uint32_t kind, double x, float alpha, float beta);

/* The scale and the zero point of ONNX's DynamicQuantizeLinear. */
typedef struct dla_levels {
    float scale, zero;
} dla_levels;

/* Return those that QUANTIZE has for limits in memory, a box of the least and the greatest number. */
dla_levels dla_find_levels(const uint8_t *memory, const dla_box *limits);

/* Return the scaling of a channel: the command's own, or that of its `parameters`. */
dla_scaling dla_read_scaling(const dla_command *command, const uint8_t *memory, uint32_t channel);

/* Copy a dense tensor in the machine's byte order into a box, and back. */
void dla_write_box(uint8_t *memory, const dla_box *box, const void *dense);
void dla_read_dense(const uint8_t *memory, const dla_box *box, void *dense);

#endif
