/* Programs of the vanilla accelerator: commands as structures, and how they are read and checked.
 *
 * The format and the meaning of each command are in ../machine, the reference manual.
 */
#ifndef DLA_PROGRAM_H
#define DLA_PROGRAM_H

#include "dla_boxes.h"

enum { DLA_ARENA = 0, DLA_WEIGHTS = 1 };
enum { DLA_FIRST = 1, DLA_LAST = 2 };
enum { DLA_MAX = 0, DLA_AVERAGE = 1 };
enum {
    DLA_SIGMOID, DLA_TANH, DLA_EXP, DLA_SQRT, DLA_HARD_SIGMOID, DLA_HARD_SWISH, DLA_LEAKY_RELU, DLA_ELU,
    DLA_ERF, DLA_GELU, DLA_GELU_TANH, DLA_RECIPROCAL, DLA_SWISH, DLA_IDENTITY, DLA_HARD_GATE,
    DLA_NUMBER
};
enum { DLA_SOFTMAX = 0, DLA_LAYER = 1, DLA_RMS = 2 };
enum {
    DLA_LOAD = 1, DLA_STORE, DLA_CONV, DLA_POOL, DLA_ADD, DLA_MUL, DLA_SCALE, DLA_TABLE, DLA_FUNCTION, DLA_END,
    DLA_MATMUL, DLA_NORMALIZE, DLA_UNPACK, DLA_MINMAX, DLA_QUANTIZE
};

/* The version of the instruction set, and the oldest whose programs are part of it. */
#define DLA_VERSION 7u
#define DLA_OLDEST_VERSION 4u

typedef struct dla_pair {
    uint32_t rows, cols;
} dla_pair;

/* What makes integers of integers: zero points, factors over 2**shift, and the limits of the result. */
typedef struct dla_scaling {
    int32_t x_zero, other_zero, y_zero;
    uint32_t mantissa, other_mantissa, shift;
    float low, high;
} dla_scaling;

/* A command. Operands that a command does not have are zeros. */
typedef struct dla_command {
    uint32_t opcode;
    uint32_t layer;        /* its number */
    uint32_t kind;         /* of LOAD and UNPACK: the memory; of CONV: the flags; of others: the kind */
    dla_box x;             /* the first operand that is read */
    dla_box other;         /* `b` of ADD, MUL and MATMUL, `weights` of CONV, `table` of TABLE, `scale` of NORMALIZE,
                            * `before` of MINMAX, `limits` of QUANTIZE */
    dla_box parameters;    /* of CONV; `bias` of NORMALIZE; `channels` of POOL, ADD, MUL and SCALE */
    dla_box accumulator, residual; /* of CONV */
    dla_box y;             /* as the program has it: where CONV writes depends on its flags */
    dla_pair kernel, strides, dilations, overhang;
    uint32_t pads[4];      /* top, left, bottom, right */
    uint32_t groups, padding_counts;
    uint32_t block, has_zeros; /* of UNPACK */
    dla_scaling scaling;   /* of all channels, unless there are `parameters`; in float32 low and high alone */
    uint32_t function;     /* of CONV; of FUNCTION it is the kind */
    float alpha, beta;     /* of CONV and FUNCTION; of NORMALIZE: epsilon and nothing */
    int32_t residual_zero; /* of CONV, as the next */
    float residual_scale;
} dla_command;

/* The sizes of a program's memories in bytes, and of the results that overlap what they are made from. */
typedef struct dla_sizes {
    size_t arena, scratchpad, weights, staging;
} dla_sizes;

/* Read a little-endian word. */
uint32_t dla_read_word(const uint8_t *bytes);

/* Read a box of eleven words. */
dla_box dla_read_box(const uint8_t *bytes);

/* Read the command at `*place`, and move `*place` behind it. Returns NULL, or the end of a sentence. */
const char *dla_read_command(const uint8_t *program, size_t bytes, size_t *place, dla_command *command);

/* Check a whole program. Returns NULL and sets the sizes, or the end of a sentence, with the number of the
 * command in `*number`, -1 for the header. */
const char *dla_check_program(const uint8_t *program, size_t bytes, dla_sizes *sizes, long *number);

/* Return whether programs of a version can be run. */
int dla_is_known_version(uint32_t version);

/* The place of a program's first command. */
#define DLA_FIRST_COMMAND 20u

/* Return the rows of a table of a command's numbers by channel: of CONV 3 or 9, of others all of their scaling. */
uint32_t dla_count_rows(const dla_command *command);

/* Return whether a CONV of integers makes its result in real numbers. */
int dla_has_output_stage(const dla_command *command);

/* Return whether a CONV makes real numbers of integers that QUANTIZE made; then `residual` are their limits. */
int dla_is_dynamic(const dla_command *command);

/* Return whether a number is a zero point of what a CONV of integers reads. */
int dla_is_input_zero(const dla_command *command, int32_t zero);

/* Return the box that a command writes. */
const dla_box *dla_result_box(const dla_command *command);

/* Return whether the result has to be made elsewhere first, since it overlaps what it is made from. */
int dla_needs_staging(const dla_command *command);

#endif
