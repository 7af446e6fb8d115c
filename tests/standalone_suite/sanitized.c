/* Gives an exported model many damaged files of weights, or runs two of it side by side.
 *
 *     sanitized fuzz WEIGHTS INPUTS SEED      built with -fsanitize=address,undefined
 *     sanitized threads WEIGHTS RUNS          built with -fsanitize=thread
 *
 * What a damaged file is opened to runs as well: it must be refused, or computed with, and nothing be read or
 * written behind its end. Of two open models that share their weights each thread runs its own, and both must
 * compute what the other does.
 */
#include "model.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64u
#define THREADS 3

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (uint32_t)((state >> 16) % below) : 0;
}

static unsigned char *allocate(size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, ALIGNMENT, bytes ? bytes : 1)) {
        exit(3);
    }
    return memory;
}

static unsigned char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        exit(3);
    }
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *content = allocate(*bytes);
    if (fread(content, 1, *bytes, file) != *bytes) {
        exit(3);
    }
    fclose(file);
    return content;
}

typedef struct call {
    const void *inputs[MODEL_INPUTS + 1];
    void *outputs[MODEL_OUTPUTS + 1];
} call;

static void make_call(call *made) {
    for (size_t i = 0; i < MODEL_INPUTS; i++) {
        unsigned char *memory = allocate(model_inputs[i].bytes);
        for (size_t j = 0; j < model_inputs[i].bytes; j++) {
            memory[j] = (unsigned char)(j % 4 == 3 ? 63 : j * 37);
        }
        made->inputs[i] = memory;
    }
    for (size_t i = 0; i < MODEL_OUTPUTS; i++) {
        made->outputs[i] = allocate(model_outputs[i].bytes);
    }
}

static void free_call(call *made) {
    for (size_t i = 0; i < MODEL_INPUTS; i++) {
        free((void *)(uintptr_t)made->inputs[i]);
    }
    for (size_t i = 0; i < MODEL_OUTPUTS; i++) {
        free(made->outputs[i]);
    }
}

/* Change some bytes, rather near the beginning, or the length. Returns the length. */
static size_t change(unsigned char *bytes, size_t count) {
    static const unsigned char likely[] = {0, 1, 2, 127, 128, 254, 255};
    for (uint32_t i = draw(4) + 1; i; i--) {
        size_t place = draw(3) ? draw((uint32_t)(count < 256 ? count : 256)) : draw((uint32_t)count);
        switch (draw(4)) {
        case 0: bytes[place] = likely[draw(sizeof likely)]; break;
        case 1: bytes[place] ^= (unsigned char)(1u << draw(8)); break;
        case 2: bytes[place] = (unsigned char)draw(256); break;
        default: return draw(8) ? count : draw((uint32_t)count);
        }
    }
    return count;
}

static int fuzz(const char *path, long inputs) {
    size_t bytes;
    long refused = 0, not_opened = 0, run = 0, failed = 0;
    unsigned char *whole = read_file(path, &bytes), *copy = allocate(bytes);
    call made;
    make_call(&made);
    for (long number = 0; number < inputs; number++) {
        memcpy(copy, whole, bytes);
        size_t left = number % 64 ? change(copy, bytes) : bytes;
        unsigned char *exact = allocate(left); /* so that a read behind the end is one behind the block */
        memcpy(exact, copy, left);
        size_t arena_bytes = model_arena_bytes(exact, left);
        if (!arena_bytes) {
            refused++;
        }
        unsigned char *arena = allocate(arena_bytes);
        model opened;
        if (model_open(&opened, exact, left, arena, arena_bytes)) {
            not_opened += arena_bytes != 0;
            if (!*model_error(&opened)) {
                return 4;
            }
        } else {
            int wrong = model_run(&opened, made.inputs, made.outputs);
            run += !wrong;
            failed += wrong != 0;
            model_close(&opened);
        }
        free(arena);
        free(exact);
    }
    free_call(&made);
    free(whole);
    free(copy);
    printf("%ld refused, %ld not opened, %ld run, %ld failed while running\n", refused, not_opened, run, failed);
    return run ? 0 : 5;
}

typedef struct job {
    const unsigned char *weights;
    size_t bytes;
    long runs;
    call made;
    int wrong;
} job;

static void *work(void *given) {
    job *own = given;
    size_t arena_bytes = model_arena_bytes(own->weights, own->bytes);
    for (long turn = 0; turn < own->runs && !own->wrong; turn++) {
        unsigned char *arena = allocate(arena_bytes);
        model opened;
        own->wrong = model_open(&opened, own->weights, own->bytes, arena, arena_bytes);
        for (int i = 0; i < 4 && !own->wrong; i++) {
            own->wrong = model_run(&opened, own->made.inputs, own->made.outputs);
        }
        model_close(&opened);
        free(arena);
    }
    return NULL;
}

static int run_threads(const char *path, long runs) {
    pthread_t threads[THREADS];
    job jobs[THREADS];
    size_t bytes;
    unsigned char *weights = read_file(path, &bytes);
    memset(jobs, 0, sizeof jobs);
    for (int i = 0; i < THREADS; i++) {
        jobs[i].weights = weights;
        jobs[i].bytes = bytes;
        jobs[i].runs = runs;
        make_call(&jobs[i].made);
        if (pthread_create(&threads[i], NULL, work, &jobs[i])) {
            return 3;
        }
    }
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        wrong |= jobs[i].wrong;
        for (size_t j = 0; j < MODEL_OUTPUTS; j++) {
            wrong |= memcmp(jobs[i].made.outputs[j], jobs[0].made.outputs[j], model_outputs[j].bytes) != 0;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        free_call(&jobs[i].made);
    }
    free(weights);
    printf("%d threads, %ld models each, 4 runs of each\n", THREADS, runs);
    return wrong ? 6 : 0;
}

int main(int count, char **arguments) {
    if (count == 5 && strcmp(arguments[1], "fuzz") == 0) {
        state = strtoull(arguments[4], NULL, 10) * 2 + 1;
        return fuzz(arguments[2], strtol(arguments[3], NULL, 10));
    }
    if (count == 4 && strcmp(arguments[1], "threads") == 0) {
        return run_threads(arguments[2], strtol(arguments[3], NULL, 10));
    }
    return 2;
}
