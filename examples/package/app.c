/* The same application in C: two models of one package, which share the memory that they compute in. For each model one
 * variant is opened that runs here, and the application prints which, and why not the others.
 *
 * app FOLDER [PREFERRED], the folder that export-c wrote, and names of devices with commas between them, the best first. */
#include "models.h"

#include <stdio.h>
#include <stdlib.h>

/* Return the weights of a model, of so many bytes, in memory, or end the program. */
static void *read_weights(const char *folder, const char *model, size_t bytes) {
    char path[1024];
    void *content = aligned_alloc(64, (bytes + 63) / 64 * 64);
    snprintf(path, sizeof path, "%s/%s/weights.bin", folder, model);
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

/* Print which variant of a model was chosen, or not, and why. */
static void print_variant(const char *model, const char *variant, int is_chosen, const char *why) {
    printf("%s: variant %s was %s: %s\n", model, variant, is_chosen ? "chosen" : "not chosen", why);
}

int main(int count, char **given) {
    static float image[3 * 32 * 32], heat[64], scores[10];
    static detector finder;
    static classifier namer;
    const void *inputs[] = {image};
    void *heats[] = {heat}, *outputs[] = {scores};
    if (count < 2 || count > 3) {
        fprintf(stderr, "usage: %s FOLDER [PREFERRED]\n", given[0]);
        return 2;
    }
    const char *prefer = count > 2 ? given[2] : NULL;
    const void *first = read_weights(given[1], "detector", DETECTOR_WEIGHT_BYTES);
    const void *second = read_weights(given[1], "classifier", CLASSIFIER_WEIGHT_BYTES);
    size_t own_first = detector_own_bytes(first, DETECTOR_WEIGHT_BYTES);
    size_t own_second = classifier_own_bytes(second, CLASSIFIER_WEIGHT_BYTES);
    if (own_first == SIZE_MAX || own_second == SIZE_MAX) {
        own_first = own_second = 0; /* the weights are wrong, or nothing runs here, as the models say below */
    }
    void *shared = aligned_alloc(64, MODELS_SHARED_BYTES); /* the models run one after the other */
    void *memory = aligned_alloc(64, own_first + 64), *other = aligned_alloc(64, own_second + 64);
    if (detector_open_shared_preferred(&finder, first, DETECTOR_WEIGHT_BYTES, shared, memory, own_first, prefer)) {
        fprintf(stderr, "detector: %s\n", detector_error(&finder));
        return 1;
    }
    if (classifier_open_shared_preferred(&namer, second, CLASSIFIER_WEIGHT_BYTES, shared, other, own_second, prefer)) {
        fprintf(stderr, "classifier: %s\n", classifier_error(&namer));
        return 1;
    }
    for (size_t i = 0; i < DETECTOR_VARIANTS; i++) {
        print_variant("detector", detector_variants[i], i == detector_chosen(&finder), detector_why(&finder, i));
    }
    for (size_t i = 0; i < CLASSIFIER_VARIANTS; i++) {
        print_variant("classifier", classifier_variants[i], i == classifier_chosen(&namer),
                      classifier_why(&namer, i));
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
