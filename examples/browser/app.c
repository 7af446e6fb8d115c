/* What a page calls: the model in a module of WebAssembly, with memory that the page fills and reads. */
#include "model.h"

#include <stdlib.h>

static model opened;
static void *inputs[MODEL_INPUTS + 1], *outputs[MODEL_OUTPUTS + 1];

/* Return memory at a multiple of 64 bytes, 0 where there is too little. */
void *reserve(size_t bytes) {
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

/* Open the model with the weights that lie at `weights`. Returns 0, or another number, and `explain` says why. */
int start(const void *weights, size_t bytes) {
    const size_t needed = model_arena_bytes(weights, bytes);
    for (size_t i = 0; i < MODEL_INPUTS; i++) {
        inputs[i] = reserve(model_inputs[i].bytes);
    }
    for (size_t i = 0; i < MODEL_OUTPUTS; i++) {
        outputs[i] = reserve(model_outputs[i].bytes);
    }
    return model_open(&opened, weights, bytes, reserve(needed), needed);
}

void *find_input(size_t number) {
    return inputs[number];
}

void *find_output(size_t number) {
    return outputs[number];
}

size_t count_input_bytes(size_t number) {
    return model_inputs[number].bytes;
}

size_t count_output_bytes(size_t number) {
    return model_outputs[number].bytes;
}

/* Run the model on what the inputs hold. Returns 0, or another number, and `explain` says why. */
int run(void) {
    return model_run(&opened, (const void *const *)inputs, outputs);
}

const char *explain(void) {
    return model_error(&opened);
}
