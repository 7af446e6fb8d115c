/* Changes artifacts at random, and gives each to a driver: it must refuse it or run it, and never crash.
 *
 *     fuzz_driver INPUTS SEED DESCRIPTION FILE...
 *
 * DESCRIPTION has a line for each input and output: `input 1 602112` (ONNX's number of the type, bytes).
 * Built with -fsanitize=address,undefined, so that a wrong access ends it.
 */
#include "byoc_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16
#define MOST_BYTES ((size_t)1 << 24) /* of an arena; a header may ask for gigabytes */

static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (uint32_t)((state >> 16) % below) : 0;
}

static void *allocate(size_t bytes) {
    void *memory = aligned_alloc(BYOC_ALIGNMENT, (bytes + BYOC_ALIGNMENT) / BYOC_ALIGNMENT * BYOC_ALIGNMENT);
    if (!memory) {
        exit(3);
    }
    memset(memory, 0, bytes);
    return memory;
}

static void *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        exit(3);
    }
    *bytes = (size_t)ftell(file);
    rewind(file);
    void *content = allocate(*bytes);
    if (fread(content, 1, *bytes, file) != *bytes) {
        exit(3);
    }
    fclose(file);
    return content;
}

/* Change some words or bytes, with numbers that are likely to matter, or cut the end off. */
static size_t change(uint8_t *content, size_t bytes) {
    static const uint32_t likely[] = {0, 1, 2, 3, 255, 256, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff0};
    for (uint32_t i = draw(4) + 1; i && bytes >= 4; i--) {
        size_t place = draw((uint32_t)(bytes / 4)) * (size_t)4;
        uint32_t word;
        memcpy(&word, content + place, 4);
        switch (draw(6)) {
        case 0: word = likely[draw(10)]; break;
        case 1: word += draw(9) - 4; break;
        case 2: word ^= (uint32_t)1 << draw(32); break;
        case 3: memcpy(&word, content + draw((uint32_t)(bytes / 4)) * (size_t)4, 4); break;
        case 4: word = draw(64); break;
        default:
            if (draw(8) == 0) {
                return bytes - draw((uint32_t)bytes);
            }
            word *= 2;
        }
        memcpy(content + place, &word, 4);
    }
    return bytes;
}

/* Run a region by `submit` from buffers to addresses. Of an artifact that was not changed, outputs must be those that
 * `run` made; others may read what the last run left. */
static void run_in_buffers(
    const byoc_driver *driver, byoc_region *region, const byoc_region_info *info, void *const *inputs,
    void *const *expected, int is_intact
) {
    const byoc_driver_2 *table = BYOC_TABLE_2(driver);
    byoc_binding bound[2][MOST] = {{{NULL, NULL, 0}}};
    byoc_text options[] = {{"events", "1"}, {"cores", "5"}};
    byoc_call call = {sizeof call, bound[0], bound[1], 2, options, NULL, NULL};
    const char *why;
    for (size_t i = 0; i < info->input_count; i++) {
        byoc_buffer_info wanted = {sizeof wanted, BYOC_DEVICE_MEMORY, info->inputs[i].bytes + 64, NULL, -1};
        if (table->open_buffer(&wanted, &bound[0][i].buffer, &why) ||
            table->write_buffer(bound[0][i].buffer, 64, inputs[i], info->inputs[i].bytes)) {
            exit(4);
        }
        bound[0][i].offset = 64;
    }
    for (size_t i = 0; i < info->output_count; i++) {
        bound[1][i].data = allocate(info->outputs[i].bytes);
    }
    if (table->submit(region, &call)) {
        exit(5);
    }
    if (draw(4) == 0) {
        table->cancel(region);
    }
    int answer = table->wait(region, UINT64_MAX);
    const byoc_event *events = NULL;
    size_t event_count = 0;
    if (table->list_events(region, &events, &event_count) == BYOC_OK) {
        for (size_t i = 0; i < event_count; i++) {
            size_t letters = strlen(events[i].layer); /* each is read up to its end */
            for (size_t k = 0; k < events[i].node_count; k++) {
                letters += strlen(events[i].nodes[k]);
            }
            if (letters == SIZE_MAX) {
                exit(8);
            }
        }
    }
    for (size_t i = 0; i < info->output_count; i++) {
        if (answer == BYOC_OK && is_intact && memcmp(bound[1][i].data, expected[i], info->outputs[i].bytes)) {
            exit(6);
        }
        free(bound[1][i].data);
    }
    if (answer != BYOC_OK && answer != BYOC_CANCELLED && (is_intact || answer != BYOC_FAILED)) {
        exit(7);
    }
    for (size_t i = 0; i < info->input_count; i++) {
        table->close_buffer(bound[0][i].buffer);
    }
}

int main(int count, char **arguments) {
    byoc_blob seeds[MOST], blobs[MOST];
    byoc_tensor tensors[2][MOST];
    void *buffers[2][MOST];
    size_t tensor_count[2] = {0, 0}, files = 0;
    long refused = 0, run = 0, failed = 0, large = 0;
    if (count < 5 || count - 4 > MOST) {
        return 2;
    }
    state = strtoull(arguments[2], NULL, 10) * 2 + 1;
    FILE *description = fopen(arguments[3], "r");
    char side[16];
    int dtype;
    unsigned long long bytes;
    while (description && fscanf(description, "%15s %d %llu", side, &dtype, &bytes) == 3) {
        int which = strcmp(side, "output") == 0;
        byoc_tensor tensor = {"t", dtype, 0, NULL, (size_t)bytes};
        buffers[which][tensor_count[which]] = allocate((size_t)bytes);
        tensors[which][tensor_count[which]++] = tensor;
    }
    for (int i = 4; i < count; i++, files++) {
        const char *name = strrchr(arguments[i], '/');
        seeds[files].data = read_file(arguments[i], &seeds[files].bytes);
        seeds[files].name = name ? name + 1 : arguments[i];
    }
    for (long number = strtol(arguments[1], NULL, 10); number; number--) {
        byoc_region_info info = {sizeof info, "fuzzed", files, blobs, 0, NULL, tensor_count[0], tensors[0],
                                 tensor_count[1], tensors[1], NULL, 0};
        uint32_t chosen = draw((uint32_t)files);
        int is_intact = draw(16) == 0;
        for (size_t i = 0; i < files; i++) {
            void *copy = allocate(seeds[i].bytes);
            memcpy(copy, seeds[i].data, seeds[i].bytes);
            size_t left = i == chosen && !is_intact ? change(copy, seeds[i].bytes) : seeds[i].bytes;
            void *exact = allocate(left); /* so that a read behind the end is one behind the block */
            memcpy(exact, copy, left);
            free(copy);
            blobs[i].name = seeds[i].name;
            blobs[i].data = exact;
            blobs[i].bytes = left;
        }
        const byoc_driver *driver = byoc_get_driver(BYOC_ABI_VERSION_2);
        driver = driver ? driver : byoc_get_driver(BYOC_ABI_VERSION);
        byoc_versions versions = {sizeof versions, NULL, NULL, NULL, NULL, NULL, NULL};
        const char *why = NULL;
        byoc_region *region = NULL;
        int status = driver->compatible(&info, &why);
        if (BYOC_HAS(driver, read_versions) && BYOC_TABLE_2(driver)->read_versions(&info, &versions) == BYOC_OK &&
            !versions.driver) {
            return 8;
        }
        size_t size = driver->arena_size(&info);
        if (size != SIZE_MAX && size > MOST_BYTES) {
            large++;
        } else {
            info.arena_bytes = size == SIZE_MAX ? 4096 : size;
            info.arena = allocate(info.arena_bytes);
            status = status ? status : driver->open(&info, &region);
            if (status) {
                refused += why != NULL && strlen(driver->error(region)) < 1000;
            } else {
                status = driver->run(region, (const void *const *)buffers[0], buffers[1]);
                failed += status != 0;
                run += status == 0;
                if (!status && BYOC_HAS(driver, submit) && BYOC_HAS(driver, open_buffer)) {
                    run_in_buffers(driver, region, &info, buffers[0], buffers[1], is_intact);
                }
            }
            driver->close(region);
            free(info.arena);
        }
        for (size_t i = 0; i < files; i++) {
            free((void *)blobs[i].data);
        }
    }
    printf("%ld refused, %ld run, %ld failed while running, %ld too large to try\n", refused, run, failed, large);
    return 0;
}
