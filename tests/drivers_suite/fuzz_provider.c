/* Changes descriptions of regions at random, and gives each to the provider's code, as onnxruntime
 * would: it must refuse it, or open and run the region with the driver of the dla, and never crash or
 * leak.
 *
 *     fuzz_provider INPUTS SEED FOLDER DESCRIPTION
 *
 * DESCRIPTION is a file with the digits of an EPContext node; FOLDER has the files that it names. Built
 * with -fsanitize=address,undefined. What the code uses of onnxruntime is stood in for: a table of
 * functions.
 */
#include "compiled_region.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const byoc_driver_2 byoc_driver_dla;

#define MOST_TENSORS 16u
#define MOST_BYTES ((size_t)1 << 24) /* of a tensor: an input that nothing reads may have any extents   \
                                      */

static _Thread_local uint64_t state = 1;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (uint32_t)((state >> 16) % below) : 0;
}

/* -- What stands in for onnxruntime
 * ----------------------------------------------------------------------- */

struct OrtStatus {
    char message[MESSAGE_BYTES];
};

struct OrtValue {
    void *data;
    size_t bytes;
};

struct OrtKernelContext {
    const region_description *described;
    OrtValue inputs[MOST_TENSORS], outputs[MOST_TENSORS];
};

static OrtStatus *create_status(int code, const char *message) {
    (void)code;
    OrtStatus *status = calloc(1, sizeof *status);
    strncpy(status->message, message, sizeof status->message - 1);
    return status;
}

static void release_status(OrtStatus *status) {
    free(status);
}

static OrtStatus *get_input(const OrtKernelContext *context, size_t number, const OrtValue **value) {
    *value = &context->inputs[number];
    return NULL;
}

static OrtStatus *get_output(
    OrtKernelContext *context, size_t number, const int64_t *shape, size_t rank, OrtValue **value
) {
    OrtValue *made = &context->outputs[number];
    made->bytes = get_element_size(context->described->outputs[number].dtype);
    for (size_t i = 0; i < rank; i++) {
        made->bytes *= (size_t)shape[i];
    }
    made->data = malloc(made->bytes + 1); /* exact but for one, so that a write behind it is seen */
    *value = made;
    return NULL;
}

static OrtStatus *get_bytes(const OrtValue *value, size_t *bytes) {
    *bytes = value->bytes;
    return NULL;
}

static OrtStatus *get_data(OrtValue *value, void **data) {
    *data = value->data;
    return NULL;
}

static OrtApi make_api(void) {
    OrtApi api;
    memset(&api, 0, sizeof api);
    api.entries[0] = (OrtEntry)create_status;
    api.entries[51] = (OrtEntry)get_data;
    api.entries[90] = (OrtEntry)get_input;
    api.entries[91] = (OrtEntry)get_output;
    api.entries[93] = (OrtEntry)release_status;
    api.entries[318] = (OrtEntry)get_bytes;
    return api;
}

/* -- Inputs
 * ----------------------------------------------------------------------------------------------- */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (!file || !text || !fread(text, 1, (1 << 20) - 1, file)) {
        exit(3);
    }
    fclose(file);
    return text;
}

/* Change some bytes, with numbers that are likely to matter, or the length. Returns the length. */
static size_t change(uint8_t *bytes, size_t count) {
    static const uint32_t likely[] = {0, 1, 2, 255, 256, 0x7fffffff, 0x80000000, 0xffffffff};
    for (uint32_t i = draw(3) + 1; i; i--) {
        size_t place = draw((uint32_t)count - 8);
        uint32_t word;
        memcpy(&word, bytes + place, sizeof word);
        switch (draw(8)) {
        case 0: word = likely[draw(8)]; break;
        case 1: word += draw(9) - 4; break;
        case 2: word ^= (uint32_t)1 << draw(32); break;
        case 3: memcpy(&word, bytes + draw((uint32_t)count - 8), sizeof word); break;
        case 4: word = draw(64); break;
        case 5: bytes[place] = "./\\:\0a"[draw(6)]; continue;
        case 6: bytes[16 + 4 * draw(4)] = (uint8_t)draw(8); continue; /* one of the numbers */
        default:
            if (draw(4) == 0) {
                count = 16 + draw((uint32_t)count - 16);
                word = (uint32_t)count;
                place = 12;
                break;
            }
            word *= 2;
        }
        memcpy(bytes + place, &word, sizeof word);
        if (count < 32) {
            break;
        }
    }
    return count;
}

static int is_small(const region_description *described) {
    int small = 1;
    for (size_t i = 0; i < described->input_count; i++) {
        small &= described->inputs[i].bytes <= MOST_BYTES;
    }
    for (size_t i = 0; i < described->output_count; i++) {
        small &= described->outputs[i].bytes <= MOST_BYTES;
    }
    return small;
}

/* Run an opened region as onnxruntime would. Returns whether it worked. */
static int run_region(compiled_region *region) {
    OrtKernelContext context;
    const region_description *described = &region->description;
    memset(&context, 0, sizeof context);
    context.described = described;
    if (described->input_count > MOST_TENSORS || described->output_count > MOST_TENSORS) {
        exit(3);
    }
    for (size_t i = 0; i < described->input_count; i++) {
        size_t odd = draw(2); /* an input that is not aligned is copied */
        context.inputs[i].bytes = described->inputs[i].bytes + (draw(64) == 0);
        uint8_t *memory = calloc(1, context.inputs[i].bytes + 1);
        context.inputs[i].data = memory + odd;
    }
    void *call = NULL;
    region->base.create_state(&region->base, NULL, &call);
    OrtStatus *status = region->base.compute(&region->base, call, &context);
    region->base.release_state(&region->base, call);
    for (size_t i = 0; i < MOST_TENSORS; i++) {
        uintptr_t data = (uintptr_t)context.inputs[i].data;
        free((void *)(data - data % 16)); /* where calloc began */
        free(context.outputs[i].data);
    }
    int worked = status == NULL;
    free(status);
    return worked;
}

int main(int count, char **arguments) {
    long refused = 0, not_opened = 0, run = 0, failed = 0, large = 0;
    OrtApi api = make_api();
    if (count != 5) {
        return 2;
    }
    state = strtoull(arguments[2], NULL, 10) * 2 + 1;
    int folder = open_folder(arguments[3]);
    char *digits = read_text(arguments[4]);
    size_t length = decode_digits(digits, strlen(digits));
    if (folder < 0 || length < 64) {
        return 3;
    }
    for (long number = strtol(arguments[1], NULL, 10); number; number--) {
        uint8_t *copy = malloc(length);
        memcpy(copy, digits, length);
        size_t left = number % 64 ? change(copy, length) : length;
        uint8_t *exact = malloc(left); /* so that a read behind the end is one behind the block */
        memcpy(exact, copy, left);
        compiled_region *region;
        OrtStatus *status = make_region(&api, "fuzzed", exact, left, &region);
        free(copy);
        free(exact);
        if (status) {
            refused++;
        } else {
            for (size_t i = 0; i < region->description.input_count; i++) {
                region->input_positions[i] = i;
            }
            for (size_t i = 0; i < region->description.output_count; i++) {
                region->output_positions[i] = draw(4) ? i : NOWHERE;
            }
            status = open_compiled_region(region, folder, &byoc_driver_dla.base);
            not_opened += status != NULL;
        }
        if (!status && !is_small(&region->description)) {
            large++;
        } else if (!status) {
            int worked = run_region(region) && run_region(region);
            run += worked;
            failed += !worked;
        }
        if (status && strncmp(status->message, "byoc: ", 6)) {
            return 4;
        }
        free(status);
        release_region(region);
    }
    close_folder(folder);
    free(digits);
    printf(
        "%ld refused, %ld not opened, %ld run, %ld failed while running", refused, not_opened, run,
        failed
    );
    printf(", %ld too large to try\n", large);
    return run ? 0 : 5;
}
