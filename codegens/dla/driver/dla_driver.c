/* The driver of the vanilla accelerator, which here is the processor: it executes a region's program.
 *
 * It is the example that a vendor copies: the tables of `byoc_driver.h` in this file, what an artifact holds in
 * dla_program.c, dla_checks.c and dla_layers.c, buffers and runs in the background in dla_device.c, and in
 * dla_kernels.c what a real device would do. A region's state and the program's memories are in the arena of the
 * region; the driver allocates nothing but buffers in device memory, and the thread of a region whose runs are
 * submitted.
 */
#include "byoc_driver.h"
#include "dla_device.h"
#include "dla_kernels.h"
#include "dla_layers.h"

#include <string.h>

#define DRIVER_VERSION "2.0"
#define INTERFACE_VERSION 1u
#define SOCKET_BYTES 48u /* a word that is 0 or 1, and the words of a box */

/* A run: of `run`, whose tensors are at addresses, or of `submit`, whose tensors `call` has. */
typedef struct dla_run {
    const void *const *inputs;
    void *const *outputs;
    const byoc_call *call;
} dla_run;

struct byoc_region {
    const byoc_region_info *info;
    const uint8_t *program, *interface;
    size_t program_bytes;
    dla_memories memories;
    dla_layers layers;
    dla_settings settings; /* of `open_with`; those of a run are the worker's */
    dla_worker worker;
    dla_run run;
    byoc_counters counters;
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

/* Check the names of layers, which an artifact may lack. Returns a sentence, or NULL. */
static const char *check_layers(const byoc_region_info *info, dla_layers *layers) {
    const byoc_blob *blob = find_blob(info, "layers.bin");
    memset(layers, 0, sizeof *layers);
    return blob ? dla_check_layers(blob, layers) : NULL;
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

/* Return the bytes of an arena: the region, the names of layers, and the program's memories. */
static uint64_t add_sizes(const dla_sizes *sizes, const dla_layers *layers) {
    uint64_t names = dla_layer_bytes(layers);
    uint64_t total = 5 * (uint64_t)BYOC_ALIGNMENT + sizeof(byoc_region) + sizes->arena;
    total += (uint64_t)sizes->scratchpad + sizes->staging;
    if (names > SIZE_MAX || total > SIZE_MAX - names) {
        return UINT64_MAX;
    }
    return align(sizeof(byoc_region)) + align((size_t)names) + align(sizes->arena) + align(sizes->scratchpad) +
           align(sizes->staging);
}

static size_t get_arena_size(const byoc_region_info *info) {
    dla_sizes sizes;
    dla_layers layers;
    long number;
    if (info->struct_size < sizeof *info || check_artifact(info, &sizes, &number) || check_layers(info, &layers)) {
        return SIZE_MAX;
    }
    uint64_t total = add_sizes(&sizes, &layers);
    return total > SIZE_MAX ? SIZE_MAX : (size_t)total;
}

static int open_with(
    const byoc_region_info *info, size_t option_count, const byoc_text *options, byoc_region **region
) {
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
    wrong = wrong ? wrong : check_layers(info, &opened->layers);
    if (wrong) {
        write_message(opened->message, sizeof opened->message, number, wrong);
        return BYOC_BAD_ARTIFACT;
    }
    opened->settings = dla_usual_settings;
    wrong = dla_read_options(option_count, options, &opened->settings);
    if (!wrong && info->arena_bytes < add_sizes(&sizes, &opened->layers)) {
        wrong = "the arena is smaller than arena_size says";
    }
    if (wrong) {
        write_message(opened->message, sizeof opened->message, -1, wrong);
        return BYOC_BAD_ARGUMENT;
    }
    uint8_t *memory = (uint8_t *)info->arena + align(sizeof *opened);
    const byoc_blob *program = find_blob(info, "program.bin");
    dla_place_layers(find_blob(info, "layers.bin"), &opened->layers, memory);
    memory += align((size_t)dla_layer_bytes(&opened->layers));
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

static int open_region(const byoc_region_info *info, byoc_region **region) {
    return open_with(info, 0, NULL, region);
}

/* Return where a binding's tensor lies, and count its bytes: in the program's memory, or where the device works. */
static uint8_t *find_tensor(byoc_region *region, const byoc_binding *binding, size_t bytes, uint64_t *from_program) {
    const byoc_buffer *buffer = binding->buffer;
    int is_outside = !buffer || buffer->kind == BYOC_PROGRAM_MEMORY;
    *(is_outside ? from_program : &region->counters.bytes_on_device) += bytes;
    return buffer ? buffer->data + binding->offset : binding->data;
}

/* Copy the inputs of a run to the device's memory. */
static void copy_inputs(byoc_region *region, const dla_run *run) {
    const byoc_region_info *info = region->info;
    for (size_t i = 0; i < info->input_count; i++) {
        const uint8_t *socket = find_socket(region->interface, i);
        if (socket) {
            dla_box box = dla_read_box(socket);
            const void *from = run->call ? NULL : run->inputs[i];
            if (run->call) {
                from = find_tensor(
                    region, &run->call->inputs[i], info->inputs[i].bytes, &region->counters.bytes_from_program
                );
            } else {
                region->counters.bytes_from_program += info->inputs[i].bytes;
            }
            dla_write_box(region->memories.arena, &box, from);
        }
    }
}

/* Copy the outputs of a run from the device's memory. */
static void copy_outputs(byoc_region *region, const dla_run *run) {
    const byoc_region_info *info = region->info;
    for (size_t i = 0; i < info->output_count; i++) {
        const uint8_t *socket = find_socket(region->interface, info->input_count + i);
        if (socket) {
            dla_box box = dla_read_box(socket);
            void *to = run->call ? NULL : run->outputs[i];
            if (run->call) {
                to = find_tensor(
                    region, &run->call->outputs[i], info->outputs[i].bytes, &region->counters.bytes_to_program
                );
            } else {
                region->counters.bytes_to_program += info->outputs[i].bytes;
            }
            dla_read_dense(region->memories.arena, &box, to);
        }
    }
}

/* Execute the commands, between which a run may be cancelled. */
static int execute_program(byoc_region *region, const dla_settings *settings) {
    dla_command command;
    size_t place = DLA_FIRST_COMMAND;
    int is_timed = settings->clock < 100 || (settings->events && region->layers.file);
    for (long number = 0; place < region->program_bytes; number++) {
        if (dla_is_cancelled(&region->worker)) {
            write_message(region->message, sizeof region->message, number, "the run was cancelled before it");
            return BYOC_CANCELLED;
        }
        uint64_t start = is_timed ? dla_read_clock() : 0;
        const char *wrong = dla_read_command(region->program, region->program_bytes, &place, &command);
        if (!wrong) {
            wrong = dla_execute(&command, &region->memories);
        }
        if (wrong) {
            write_message(region->message, sizeof region->message, number, wrong);
            return BYOC_FAILED;
        }
        if (is_timed) {
            uint64_t end = dla_read_clock();
            dla_rest(end - start, settings->clock);
            if (settings->events) {
                dla_add_event(&region->layers, command.layer, start, dla_read_clock());
            }
        }
    }
    return BYOC_OK;
}

static int execute(byoc_region *region, const dla_run *run, const dla_settings *settings) {
    uint64_t start = dla_read_clock();
    region->message[0] = 0;
    dla_begin_events(&region->layers, start);
    copy_inputs(region, run);
    int answer = execute_program(region, settings);
    if (answer == BYOC_OK) {
        copy_outputs(region, run);
        region->counters.runs++;
    }
    region->counters.busy_ns += dla_read_clock() - start;
    return answer;
}

static int run_region(byoc_region *region, const void *const *inputs, void *const *outputs) {
    dla_run run = {inputs, outputs, NULL};
    return execute(region, &run, &region->settings);
}

static int execute_submitted(void *argument) {
    byoc_region *region = argument;
    return execute(region, &region->run, &region->worker.settings);
}

/* Check one side of a call. Returns NULL, or a sentence. */
static const char *check_bindings(const byoc_binding *bindings, const byoc_tensor *tensors, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const byoc_binding *each = &bindings[i];
        if (each->buffer) {
            if (each->data || each->offset % BYOC_ALIGNMENT ||
                !dla_is_inside(each->buffer, each->offset, tensors[i].bytes)) {
                return "an input or output is not inside its buffer, or not at a multiple of 64 bytes";
            }
        } else if (!each->data && tensors[i].bytes) {
            return "an input or output has neither an address nor a buffer";
        }
    }
    return NULL;
}

static int submit_region(byoc_region *region, const byoc_call *call) {
    const byoc_region_info *info = region->info;
    if (dla_is_begun(&region->worker)) {
        return BYOC_BAD_ARGUMENT; /* without a message, which the run may be writing */
    }
    dla_settings settings = region->settings;
    const char *wrong = call->struct_size < sizeof *call ? "the call is of another version of byoc_driver.h" : NULL;
    wrong = wrong ? wrong : dla_read_options(call->option_count, call->options, &settings);
    wrong = wrong ? wrong : check_bindings(call->inputs, info->inputs, info->input_count);
    wrong = wrong ? wrong : check_bindings(call->outputs, info->outputs, info->output_count);
    if (wrong) {
        write_message(region->message, sizeof region->message, -1, wrong);
        return BYOC_BAD_ARGUMENT;
    }
    dla_run run = {NULL, NULL, call};
    region->run = run;
    region->worker.work = execute_submitted;
    region->worker.argument = region;
    region->worker.settings = settings;
    region->worker.done = call->done;
    region->worker.user = call->user;
    int answer = dla_begin(&region->worker);
    if (answer != BYOC_OK) {
        write_message(region->message, sizeof region->message, -1, "there is no thread for the run");
    }
    return answer;
}

static int wait_for_region(byoc_region *region, uint64_t most_ns) {
    return dla_wait(&region->worker, most_ns);
}

static void cancel_region(byoc_region *region) {
    dla_cancel(&region->worker);
}

static int read_counters(const byoc_region *region, byoc_counters *counters) {
    if (counters->struct_size < sizeof *counters) {
        return BYOC_BAD_ARGUMENT;
    }
    size_t size = counters->struct_size;
    *counters = region->counters;
    counters->struct_size = size;
    return BYOC_OK;
}

static int list_events(const byoc_region *region, const byoc_event **events, size_t *count) {
    *events = region->layers.events;
    *count = region->layers.event_count;
    return region->layers.file ? BYOC_OK : BYOC_INCOMPATIBLE;
}

/* The versions of the instruction set from DLA_OLDEST_VERSION to DLA_VERSION, as texts. */
static const char *const instruction_sets[] = {"4", "5", "6", "7"};
typedef char each_version_has_a_text
    [sizeof instruction_sets / sizeof *instruction_sets == DLA_VERSION - DLA_OLDEST_VERSION + 1 ? 1 : -1];

static int read_versions(const byoc_region_info *info, byoc_versions *versions) {
    uint32_t oldest = DLA_OLDEST_VERSION, newest = DLA_VERSION;
    if (versions->struct_size < sizeof *versions) {
        return BYOC_BAD_ARGUMENT;
    }
    if (info) {
        const byoc_blob *program = find_blob(info, "program.bin");
        if (!program || program->bytes < DLA_FIRST_COMMAND || memcmp(program->data, "DLA1", 4) != 0) {
            return BYOC_BAD_ARTIFACT;
        }
        oldest = newest = dla_read_word((const uint8_t *)program->data + 4);
        if (!dla_is_known_version(oldest)) {
            return BYOC_INCOMPATIBLE;
        }
    }
    versions->driver = DRIVER_VERSION;
    versions->firmware = instruction_sets[DLA_VERSION - DLA_OLDEST_VERSION];
    /* A later instruction set runs programs of the earlier ones. */
    versions->oldest_firmware = instruction_sets[oldest - DLA_OLDEST_VERSION];
    versions->newest_firmware = NULL;
    versions->oldest_artifact = instruction_sets[oldest - DLA_OLDEST_VERSION];
    versions->newest_artifact = instruction_sets[newest - DLA_OLDEST_VERSION];
    return BYOC_OK;
}

static void close_region(byoc_region *region) {
    if (region) {
        dla_end_worker(&region->worker); /* all else is in the arena, which the program owns */
    }
}

static const char *get_error(const byoc_region *region) {
    return region ? region->message : "";
}

extern const byoc_driver_2 byoc_driver_dla;
const byoc_driver_2 byoc_driver_dla = {
    {sizeof(byoc_driver_2), BYOC_ABI_VERSION_2, "dla", check_compatible, get_arena_size, open_region, run_region,
     close_region, get_error},
    open_with,
    submit_region,
    wait_for_region,
    cancel_region,
    dla_open_buffer,
    dla_write_buffer,
    dla_read_buffer,
    dla_close_buffer,
    read_counters,
    list_events,
    read_versions,
};

/* A program that links several drivers takes their tables by name, so there each is without an entry point. */
#ifndef BYOC_LINKED
static const byoc_driver version_1 = {
    sizeof(byoc_driver), BYOC_ABI_VERSION, "dla", check_compatible, get_arena_size,
    open_region, run_region, close_region, get_error,
};

const byoc_driver *byoc_get_driver(uint32_t abi_version) {
    if (abi_version == BYOC_ABI_VERSION_2) {
        return &byoc_driver_dla.base;
    }
    return abi_version == BYOC_ABI_VERSION ? &version_1 : NULL;
}
#endif
