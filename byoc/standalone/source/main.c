/* A program that runs the model: on the sample it comes with, to test it, or several times, to measure it.
 *
 *   model [--weights FILE] [--sample FILE] [--runs NUMBER]
 *
 * It prints the largest error of each output against what onnxruntime computed, as a share of the output's
 * range, and leaves with 1 if one is above MODEL_TOLERANCE and no entry of `model_noises` explains it. With
 * --runs it also prints the processor time of a run at the largest sizes, the least of so many. This file alone allocates memory.
 * Built with -DMODEL_PROFILE, --runs prints the time of each kind of operator as well.
 */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A program with open dimensions is tested at all combinations of sizes, of which the last is the largest. */
#ifdef MODEL_DIMENSIONS
#define COMBINATIONS MODEL_COMBINATIONS
#define INPUTS_AT(number) model_inputs_at(&model_combinations[number])
#define OUTPUTS_AT(number) model_outputs_at(&model_combinations[number])
#define RUN(opened, number, inputs, outputs) model_run(opened, &model_combinations[number], inputs, outputs)
#else
#define COMBINATIONS 1
#define INPUTS_AT(number) ((void)(number), model_inputs)
#define OUTPUTS_AT(number) ((void)(number), model_outputs)
#define RUN(opened, number, inputs, outputs) ((void)(number), model_run(opened, inputs, outputs))
#endif

/* Memory that was allocated: each begins with the one before. */
static void *allocated;

static void release(void) {
    while (allocated) {
        void *before = *(void **)allocated;
        free(allocated);
        allocated = before;
    }
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    release();
    exit(2);
}

/* Return memory at a multiple of 64 bytes; it is kept until the program ends. */
static void *allocate(size_t bytes) {
    unsigned char *memory = bytes < SIZE_MAX - 128 ? malloc(bytes + 128) : NULL;
    if (!memory) {
        fail("memory", "there is too little");
        return NULL;
    }
    *(void **)(void *)memory = allocated;
    allocated = memory;
    memory += sizeof allocated;
    return memory + (64 - (uintptr_t)memory % 64);
}

/* Bytes of one call of fread: wasmtime 50 refuses 128 MiB and more. */
#define MOST_READ ((size_t)16 << 20)

static void *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) {
        fail(path, "cannot be read");
    }
    long size = ftell(file);
    rewind(file);
    unsigned char *content = allocate(size < 0 ? 0 : (size_t)size);
    size_t done = 0;
    while (size > 0 && done < (size_t)size) {
        size_t left = (size_t)size - done;
        size_t piece = left < MOST_READ ? left : MOST_READ;
        if (fread(content + done, 1, piece, file) != piece) {
            break;
        }
        done += piece;
    }
    if (size < 0 || done != (size_t)size) {
        fail(path, "cannot be read");
    }
    fclose(file);
    *bytes = (size_t)size;
    return content;
}

/* Print the most memory that the program had at once, nothing where no one says it. An emulator of programs counts
 * itself. */
static void print_peak_memory(void) {
#ifdef __wasm__
    printf("memory: %lu bytes at most\n", (unsigned long)__builtin_wasm_memory_size(0) * 65536ul);
#elif defined(__linux__)
    char line[128];
    unsigned long kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "VmHWM:", 6) == 0) {
            kilobytes = strtoul(line + 6, NULL, 10);
        }
    }
    if (file) {
        fclose(file);
    }
    if (kilobytes) {
        printf("memory: %lu bytes at most\n", kilobytes * 1024ul);
    }
#endif
}

static float widen_half(uint16_t half) {
    uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
    float value = exponent == 31  ? (fraction ? NAN : INFINITY)
                  : exponent == 0 ? ldexpf((float)fraction, -24)
                                  : ldexpf((float)(fraction + 1024), (int)exponent - 25);
    return half & 0x8000 ? -value : value;
}

/* Return an element of a tensor of floats, or of integers of 8 or 16 bits. */
static double read_number(const model_tensor *tensor, const void *data, size_t number) {
    const unsigned char *at = (const unsigned char *)data + number * (tensor->bytes / tensor->elements);
    float single;
    double value;
    uint16_t half;
    int16_t whole;
    uint32_t upper;
    switch (tensor->dtype) {
    case MODEL_UINT8:
        return *at;
    case MODEL_INT8:
        return *at - (*at > 127 ? 256 : 0);
    case MODEL_UINT16:
        memcpy(&half, at, sizeof half);
        return half;
    case MODEL_INT16:
        memcpy(&whole, at, sizeof whole);
        return whole;
    case MODEL_FLOAT64:
        memcpy(&value, at, sizeof value);
        return value;
    case MODEL_FLOAT16:
        memcpy(&half, at, sizeof half);
        return widen_half(half);
    case MODEL_BFLOAT16: /* the upper half of a float */
        memcpy(&half, at, sizeof half);
        upper = (uint32_t)half << 16;
        memcpy(&single, &upper, sizeof single);
        return single;
    default:
        memcpy(&single, at, sizeof single);
        return single;
    }
}

/* An error as a share of the range, and the mean of its squares. */
typedef struct difference {
    double largest, mean_square;
} difference;

/* Return whether numbers of a type may lie apart: others, such as indices and floats of 8 bits, have to be equal. */
static int is_measured(int32_t dtype) {
    static const int32_t measured[] = {MODEL_FLOAT32, MODEL_FLOAT64, MODEL_FLOAT16, MODEL_BFLOAT16,
                                       MODEL_UINT8,   MODEL_INT8,    MODEL_UINT16,  MODEL_INT16};
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        if (measured[i] == dtype) {
            return 1;
        }
    }
    return 0;
}

/* Return the error of an output as a share of the range of what is expected; 0 or infinity where it has to be equal,
 * and where numbers and others meet. */
static difference compare(const model_tensor *tensor, const void *found, const void *expected) {
    const difference none = {0, 0}, wrong = {INFINITY, INFINITY};
    double least = INFINITY, most = -INFINITY, worst = 0, squares = 0, count = 0;
    if (!is_measured(tensor->dtype)) {
        return memcmp(found, expected, tensor->bytes) ? wrong : none;
    }
    for (size_t i = 0; i < tensor->elements; i++) {
        double right = read_number(tensor, expected, i), made = read_number(tensor, found, i);
        if (isfinite(right) != isfinite(made) || (isnan(right) != 0) != (isnan(made) != 0)) {
            return wrong;
        }
        if (!isfinite(right)) {
            if (!isnan(right) && right != made) {
                return wrong;
            }
            continue;
        }
        least = right < least ? right : least;
        most = right > most ? right : most;
        worst = fabs(right - made) > worst ? fabs(right - made) : worst;
        squares += (right - made) * (right - made);
        count++;
    }
    double range = most > least ? most - least : fabs(most) > 0 && isfinite(most) ? fabs(most) : 1;
    difference result = {worst / range, count > 0 ? squares / count / (range * range) : 0};
    return result;
}

/* Return the largest error that is allowed of an output whose error has this mean square. */
static double find_limit(size_t output, double mean_square) {
    double limit = MODEL_TOLERANCE;
    for (const model_noise *noise = model_noises; noise->largest > 0; noise++) {
        if (noise->output == output && mean_square <= noise->mean_square && noise->largest > limit) {
            limit = noise->largest;
        }
    }
    return limit;
}

static size_t align(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* Let `inputs` point to a sample of some sizes; return the bytes of inputs and outputs. */
static size_t find_sample(const unsigned char *sample, size_t number, const void **inputs, size_t *input_bytes) {
    const model_tensor *given = INPUTS_AT(number), *made = OUTPUTS_AT(number);
    size_t bytes = 0;
    for (size_t i = 0; i < MODEL_INPUTS; i++) {
        inputs[i] = sample + bytes;
        bytes += align(given[i].bytes);
    }
    *input_bytes = bytes;
    for (size_t i = 0; i < MODEL_OUTPUTS; i++) {
        bytes += align(made[i].bytes);
    }
    return bytes;
}

static void print_sizes(size_t number) {
#ifdef MODEL_DIMENSIONS
    for (size_t i = 0; i < MODEL_DIMENSIONS; i++) {
        int64_t size;
        memcpy(&size, (const unsigned char *)&model_combinations[number] + i * sizeof size, sizeof size);
        printf("%s %s = %ld", i ? "," : " at", model_dimensions[i].name, (long)size);
    }
#else
    (void)number;
#endif
}

/* Run the model on a sample of some sizes; return whether all outputs are right. */
static int test(model *opened, size_t number, const void *const *inputs, void *const *outputs,
                const unsigned char *expected) {
    const model_tensor *made = OUTPUTS_AT(number);
    int right = 1;
    if (RUN(opened, number, inputs, outputs)) {
        fail("model_run", model_error(opened));
    }
    for (size_t i = 0; i < MODEL_OUTPUTS; i++) {
        difference error = compare(&made[i], outputs[i], expected);
        double limit = find_limit(number * MODEL_OUTPUTS + i, error.mean_square);
        printf("output %s", made[i].name);
        print_sizes(number);
        printf(": largest error %.3g of the range, at most %.3g is allowed\n", error.largest, limit);
        right &= error.largest <= limit;
        expected += align(made[i].bytes);
    }
    return right;
}

#ifdef MODEL_PROFILE
enum { MOST_KINDS = 128 };

static struct {
    const char *kind;
    double seconds;
} profile[MOST_KINDS];
static size_t kinds, current;
static clock_t since;

/* Count the time since the last call for the kind that was given there, and begin with the next. */
void model_profile(const char *kind) {
    clock_t now = clock();
    if (current < kinds) {
        profile[current].seconds += (double)(now - since) / CLOCKS_PER_SEC;
    }
    for (current = 0; kind && current < kinds && strcmp(profile[current].kind, kind) != 0; current++) {
    }
    if (!kind) {
        current = MOST_KINDS;
    } else if (current == kinds && kinds < MOST_KINDS) {
        profile[kinds].kind = kind;
        profile[kinds++].seconds = 0;
    }
    since = clock();
}

static void print_profile(long runs) {
    double total = 0;
    for (size_t i = 0; i < kinds; i++) {
        total += profile[i].seconds;
    }
    for (size_t i = 0; i < kinds; i++) {
        printf("profile: %s: %.6f s of a run, %.1f %%\n", profile[i].kind, profile[i].seconds / (double)runs,
               total > 0 ? 100 * profile[i].seconds / total : 0);
    }
}
#endif

static void measure(model *opened, const void *const *inputs, void *const *outputs, long runs) {
    double best = INFINITY;
#ifdef MODEL_PROFILE
    kinds = 0; /* without the run of the test, which touches memory first */
#endif
    for (long i = 0; i < runs; i++) {
        clock_t start = clock();
        RUN(opened, COMBINATIONS - 1, inputs, outputs);
        double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
        best = seconds < best ? seconds : best;
    }
    printf("run: %.6f s of processor time\n", best);
#ifdef MODEL_PROFILE
    print_profile(runs);
#endif
}

#ifdef MODEL_REGIONS
/* Print what crossed to each region and from it, in one run on the average. */
static void print_counters(const model *opened) {
    for (size_t i = 0; i < MODEL_REGIONS; i++) {
        byoc_counters found;
        if (model_read_counters(opened, i, &found) == 0 && found.runs) {
            printf("region %lu: %lu bytes from the program, %lu to it, %lu on the device\n", (unsigned long)i,
                   (unsigned long)(found.bytes_from_program / found.runs),
                   (unsigned long)(found.bytes_to_program / found.runs),
                   (unsigned long)(found.bytes_on_device / found.runs));
        }
    }
}
#endif

int main(int count, char **arguments) {
    const char *weights_path = MODEL_WEIGHTS_FILE, *sample_path = "sample.bin";
    long runs = 0;
    for (int i = 1; i < count; i++) {
        if (i + 1 == count) {
            fail(arguments[i], "it needs a value, or is no option");
        } else if (strcmp(arguments[i], "--weights") == 0) {
            weights_path = arguments[++i];
        } else if (strcmp(arguments[i], "--sample") == 0) {
            sample_path = arguments[++i];
        } else if (strcmp(arguments[i], "--runs") == 0) {
            runs = strtol(arguments[++i], NULL, 10);
        } else {
            fail(arguments[i], "there are --weights FILE, --sample FILE, --runs NUMBER");
        }
    }
    size_t weight_bytes, sample_bytes, input_bytes, wanted = 0;
#ifdef MODEL_EMBEDDED
    (void)weights_path;
    const void *weights = model_weights;
    weight_bytes = MODEL_WEIGHT_BYTES;
#else
    const void *weights = read_file(weights_path, &weight_bytes);
#endif
    unsigned char *sample = read_file(sample_path, &sample_bytes);
    const void *inputs[MODEL_INPUTS + 1] = {0};
    void *outputs[MODEL_OUTPUTS + 1] = {0};
    for (size_t number = 0; number < COMBINATIONS; number++) {
        wanted += find_sample(sample, number, inputs, &input_bytes);
    }
    for (size_t i = 0; i < MODEL_OUTPUTS; i++) {
        outputs[i] = allocate(model_outputs[i].bytes);
    }
    if (wanted != sample_bytes) {
        fail(sample_path, "is not the sample of this model");
    }
    static model opened;
    size_t arena_bytes = model_arena_bytes(weights, weight_bytes);
    if (model_open(&opened, weights, weight_bytes, allocate(arena_bytes), arena_bytes)) {
        fail("model_open", model_error(&opened));
    }
    if (model_check(weights, weight_bytes)) {
        fail("the weights", "are not as they were written");
    }
    printf("arena: %lu bytes, of which the plan %lu\n", (unsigned long)arena_bytes,
           (unsigned long)MODEL_PLAN_BYTES);
    int right = 1;
    for (size_t number = 0; number < COMBINATIONS; number++) {
        size_t bytes = find_sample(sample, number, inputs, &input_bytes);
        right &= test(&opened, number, inputs, outputs, sample + input_bytes);
        sample += bytes;
    }
    if (runs > 0) {
        measure(&opened, inputs, outputs, runs);
    }
#ifdef MODEL_REGIONS
    print_counters(&opened);
#endif
    print_peak_memory();
    model_close(&opened);
    release();
    puts(right ? "the outputs are right" : "an output is wrong");
    return right ? 0 : 1;
}
