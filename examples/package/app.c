/* The same application in C: two models of one package, which share the memory that they compute in.
 *
 * app DETECTOR_WEIGHTS CLASSIFIER_WEIGHTS, the files weights.bin beside the models. */
#include "models.h"

#include <stdio.h>
#include <stdlib.h>

/* Return a file of so many bytes in memory, or end the program. */
static void *read_file(const char *path, size_t bytes) {
    void *content = aligned_alloc(64, (bytes + 63) / 64 * 64);
    FILE *file = fopen(path, "rb");
    if (!content || !file || fread(content, 1, bytes, file) != bytes) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    return content;
}

/* Print the largest of some scores, and which it is. */
static void print_best(const char *what, const float *scores, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++) {
        best = scores[i] > scores[best] ? i : best;
    }
    printf("%s %lu, score %.4f\n", what, (unsigned long)best, (double)scores[best]);
}

int main(int count, char **files) {
    static float image[3 * 32 * 32], heat[64], scores[10];
    static detector finder;
    static classifier namer;
    const void *inputs[] = {image};
    void *heats[] = {heat}, *outputs[] = {scores};
    if (count != 3) {
        fprintf(stderr, "usage: %s DETECTOR_WEIGHTS CLASSIFIER_WEIGHTS\n", files[0]);
        return 2;
    }
    const void *first = read_file(files[1], DETECTOR_WEIGHT_BYTES);
    const void *second = read_file(files[2], CLASSIFIER_WEIGHT_BYTES);
    size_t own_first = detector_own_bytes(first, DETECTOR_WEIGHT_BYTES);
    size_t own_second = classifier_own_bytes(second, CLASSIFIER_WEIGHT_BYTES);
    if (own_first == SIZE_MAX || own_second == SIZE_MAX) {
        fprintf(stderr, "the weights are not those of these models\n");
        return 1;
    }
    void *shared = aligned_alloc(64, MODELS_SHARED_BYTES); /* the models run one after the other */
    void *memory = aligned_alloc(64, own_first + 64), *other = aligned_alloc(64, own_second + 64);
    if (detector_open_shared(&finder, first, DETECTOR_WEIGHT_BYTES, shared, memory, own_first)) {
        fprintf(stderr, "detector: %s\n", detector_error(&finder));
        return 1;
    }
    if (classifier_open_shared(&namer, second, CLASSIFIER_WEIGHT_BYTES, shared, other, own_second)) {
        fprintf(stderr, "classifier: %s\n", classifier_error(&namer));
        return 1;
    }
    for (size_t number = 0; number < 2; number++) {
        for (size_t i = 0; i < sizeof image / sizeof *image; i++) {
            image[i] = (float)((i + 97 * number) % 251) / 251;
        }
        if (detector_run(&finder, inputs, heats) || classifier_run(&namer, inputs, outputs)) {
            fprintf(stderr, "%s%s\n", detector_error(&finder), classifier_error(&namer));
            return 1;
        }
        print_best("place", heat, sizeof heat / sizeof *heat);
        print_best("class", scores, sizeof scores / sizeof *scores);
    }
    detector_close(&finder);
    classifier_close(&namer);
    return 0;
}
