/* The driver of the vanilla accelerator, which here is the processor: it executes a region's program.
 *
 * It is the example that a vendor copies: the table of `byoc_driver.h` in this file, what an artifact holds in
 * dla_program.c and dla_checks.c, and in dla_kernels.c what a real device would do. It allocates nothing: its
 * state and the program's memories are in the arena of the region.
 */
#include "byoc_driver.h"
#include "dla_kernels.h"

#include <string.h>

#define INTERFACE_VERSION 1u
#define SOCKET_BYTES 48u /* a word that is 0 or 1, and the words of a box */

struct byoc_region {
    const byoc_region_info *info;
    const uint8_t *program, *interface;
    size_t program_bytes;
    dla_memories memories;
    char message[120];
};

static const byoc_blob *find_blob(const byoc_region_info *info, const char *name) {
    for (size_t i = 0; i < info->blob_count; i++) {
        if (strcmp(info->blobs[i].name, name) == 0) {
            return &info->blobs[i];
        }
    }
    return NULL;
}

/* Write "command 17: it ...", or the sentence alone where the number is -1. */
static void write_message(char *to, size_t size, long number, const char *sentence) {
    char digits[24];
    size_t length = 0;
    if (number >= 0) {
        size_t count = 0;
        const char *word = "program.bin: command ";
        length = strlen(word);
        memcpy(to, word, length);
        do {
            digits[count++] = (char)('0' + number % 10);
            number /= 10;
        } while (number);
        while (count) {
            to[length++] = digits[--count];
        }
        to[length++] = ':';
        to[length++] = ' ';
    }
    size_t rest = strlen(sentence);
    rest = rest < size - length - 1 ? rest : size - length - 1;
    memcpy(to + length, sentence, rest);
    to[length + rest] = 0;
}

static size_t align(size_t bytes) {
    return (bytes + BYOC_ALIGNMENT - 1) / BYOC_ALIGNMENT * BYOC_ALIGNMENT;
}

static int32_t get_onnx_type(uint32_t dtype) {
    static const int32_t types[] = {BYOC_FLOAT32, BYOC_INT8, BYOC_UINT8, BYOC_INT32, BYOC_INT16, BYOC_INT64};
    return types[dtype];
}

/* Return the place of a socket's box in interface.bin, NULL for a tensor without one. Outputs follow inputs. */
static const uint8_t *find_socket(const uint8_t *interface, size_t number) {
    const uint8_t *socket = interface + 16 + number * SOCKET_BYTES;
    return dla_read_word(socket) ? socket + 4 : NULL;
}

static const char *check_sockets(const byoc_region_info *info, const byoc_blob *blob, size_t arena) {
    const uint8_t *bytes = blob->data;
    if (blob->bytes < 16 || memcmp(bytes, "DLAI", 4) != 0 || dla_read_word(bytes + 4) != INTERFACE_VERSION) {
        return "interface.bin is not of version 1";
    }
    if (dla_read_word(bytes + 8) != info->input_count || dla_read_word(bytes + 12) != info->output_count ||
        (blob->bytes - 16) / SOCKET_BYTES != info->input_count + info->output_count) {
        return "interface.bin is of another region";
    }
    for (size_t i = 0; i < info->input_count + info->output_count; i++) {
        int is_output = i >= info->input_count;
        const byoc_tensor *tensor = is_output ? &info->outputs[i - info->input_count] : &info->inputs[i];
        const uint8_t *socket = find_socket(bytes, i);
        if (!socket) {
            if (is_output && tensor->bytes) {
                return "interface.bin: an output has no address in the arena";
            }
            continue;
        }
        dla_box box = dla_read_box(socket);
        if (dla_check_box(&box, arena)) {
            return "interface.bin: a box leaves the arena";
        }
        if (get_onnx_type(box.dtype) != tensor->dtype || dla_box_bytes(&box) != tensor->bytes) {
            return "interface.bin: a box does not fit its tensor";
        }
    }
    return NULL;
}

/* Check the whole artifact. Returns a sentence, or NULL with the sizes of the memories. */
static const char *check_artifact(const byoc_region_info *info, dla_sizes *sizes, long *number) {
    const byoc_blob *program = find_blob(info, "program.bin"), *weights = find_blob(info, "weights.bin");
    const byoc_blob *interface = find_blob(info, "interface.bin");
    *number = -1;
    if (!program || !weights || !interface) {
        return "the artifact lacks program.bin, weights.bin or interface.bin";
    }
    const char *wrong = dla_check_program(program->data, program->bytes, sizes, number);
    if (wrong) {
        return wrong;
    }
    *number = -1;
    if (weights->bytes != sizes->weights) {
        return "weights.bin has another size than the program says";
    }
    return check_sockets(info, interface, sizes->arena);
}

static int check_compatible(const byoc_region_info *info, const char **why) {
    const byoc_blob *program = find_blob(info, "program.bin");
    if (!program || !find_blob(info, "weights.bin") || !find_blob(info, "interface.bin")) {
        *why = "the artifact lacks program.bin, weights.bin or interface.bin; compile the model again";
        return BYOC_INCOMPATIBLE;
    }
    if (program->bytes < DLA_FIRST_COMMAND || memcmp(program->data, "DLA1", 4) != 0) {
        *why = "program.bin is not a program of the dla";
        return BYOC_BAD_ARTIFACT;
    }
    if (!dla_is_known_version(dla_read_word((const uint8_t *)program->data + 4))) {
        *why = "the program is for another version of the instruction set than 4, 5, 6 and 7";
        return BYOC_INCOMPATIBLE;
    }
    *why = "";
    return BYOC_OK;
}

static size_t add_sizes(const dla_sizes *sizes) {
    return align(sizeof(byoc_region)) + align(sizes->arena) + align(sizes->scratchpad) + align(sizes->staging);
}

static size_t get_arena_size(const byoc_region_info *info) {
    dla_sizes sizes;
    long number;
    if (info->struct_size < sizeof *info || check_artifact(info, &sizes, &number)) {
        return SIZE_MAX;
    }
    uint64_t total = 4 * (uint64_t)BYOC_ALIGNMENT + sizeof(byoc_region) + sizes.arena;
    total += (uint64_t)sizes.scratchpad + sizes.staging;
    return total > SIZE_MAX ? SIZE_MAX : add_sizes(&sizes);
}

static int open_region(const byoc_region_info *info, byoc_region **region) {
    dla_sizes sizes;
    long number = -1;
    *region = NULL;
    if (info->struct_size < sizeof *info || !info->arena || (uintptr_t)info->arena % BYOC_ALIGNMENT ||
        info->arena_bytes < sizeof(byoc_region)) {
        return BYOC_BAD_ARGUMENT;
    }
    byoc_region *opened = info->arena;
    memset(opened, 0, sizeof *opened);
    *region = opened;
    const char *wrong = check_artifact(info, &sizes, &number);
    if (wrong) {
        write_message(opened->message, sizeof opened->message, number, wrong);
        return BYOC_BAD_ARTIFACT;
    }
    if (info->arena_bytes < add_sizes(&sizes)) {
        write_message(opened->message, sizeof opened->message, -1, "the arena is smaller than arena_size says");
        return BYOC_BAD_ARGUMENT;
    }
    uint8_t *memory = (uint8_t *)info->arena + align(sizeof *opened);
    const byoc_blob *program = find_blob(info, "program.bin");
    opened->info = info;
    opened->program = program->data;
    opened->program_bytes = program->bytes;
    opened->interface = find_blob(info, "interface.bin")->data;
    opened->memories.weights = find_blob(info, "weights.bin")->data;
    opened->memories.arena = memory;
    opened->memories.scratchpad = memory + align(sizes.arena);
    opened->memories.staging = opened->memories.scratchpad + align(sizes.scratchpad);
    return BYOC_OK;
}

static int run_region(byoc_region *region, const void *const *inputs, void *const *outputs) {
    const byoc_region_info *info = region->info;
    dla_command command;
    size_t place = DLA_FIRST_COMMAND;
    region->message[0] = 0;
    for (size_t i = 0; i < info->input_count; i++) {
        const uint8_t *socket = find_socket(region->interface, i);
        if (socket) {
            dla_box box = dla_read_box(socket);
            dla_write_box(region->memories.arena, &box, inputs[i]);
        }
    }
    for (long number = 0; place < region->program_bytes; number++) {
        const char *wrong = dla_read_command(region->program, region->program_bytes, &place, &command);
        if (!wrong) {
            wrong = dla_execute(&command, &region->memories);
        }
        if (wrong) {
            write_message(region->message, sizeof region->message, number, wrong);
            return BYOC_FAILED;
        }
    }
    for (size_t i = 0; i < info->output_count; i++) {
        const uint8_t *socket = find_socket(region->interface, info->input_count + i);
        if (socket) {
            dla_box box = dla_read_box(socket);
            dla_read_dense(region->memories.arena, &box, outputs[i]);
        }
    }
    return BYOC_OK;
}

static void close_region(byoc_region *region) {
    (void)region; /* all of it is in the arena, which the program owns */
}

static const char *get_error(const byoc_region *region) {
    return region ? region->message : "";
}

extern const byoc_driver byoc_driver_dla;
const byoc_driver byoc_driver_dla = {
    sizeof(byoc_driver), BYOC_ABI_VERSION, "dla", check_compatible, get_arena_size,
    open_region, run_region, close_region, get_error,
};

/* A program that links several drivers takes their tables by name, so there each is without an entry point. */
#ifndef BYOC_LINKED
const byoc_driver *byoc_get_driver(uint32_t abi_version) {
    return abi_version == BYOC_ABI_VERSION ? &byoc_driver_dla : NULL;
}
#endif
