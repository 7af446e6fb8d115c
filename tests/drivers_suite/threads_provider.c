/* Runs regions of two sessions in threads, as onnxruntime would, while others are opened and released.
 *
 *     threads_provider RUNS SEED FOLDER DESCRIPTION
 *
 * As fuzz_provider.c, whose stand-ins for onnxruntime serve here, too. Built with -fsanitize=thread.
 */
#define main fuzz
#include "fuzz_provider.c"
#undef main

#include <pthread.h>

#define THREADS 4
#define SESSIONS 2

typedef struct job {
    compiled_region **sessions;
    const OrtApi *api;
    const char *digits;
    size_t length;
    int folder;
    long runs, number;
    int wrong;
} job;

static compiled_region *open_session(const job *own) {
    compiled_region *region;
    OrtStatus *status = make_region(own->api, "shared", (const uint8_t *)own->digits, own->length, &region);
    if (status) {
        return NULL;
    }
    for (size_t i = 0; i < region->description.input_count; i++) {
        region->input_positions[i] = i;
    }
    for (size_t i = 0; i < region->description.output_count; i++) {
        region->output_positions[i] = i;
    }
    return open_compiled_region(region, own->folder, &byoc_driver_dla.base) ? NULL : region;
}

static void *work(void *given) {
    job *own = given;
    state = (uint64_t)own->number * 2 + 1;
    for (long turn = 0; turn < own->runs; turn++) {
        run_region(own->sessions[(turn + own->number) % SESSIONS]); /* one in 64 inputs is wrong */
        if (turn % 16 == own->number) {
            compiled_region *another = open_session(own);
            own->wrong |= another == NULL;
            if (another) {
                run_region(another);
                release_region(another);
            }
        }
    }
    return NULL;
}

int main(int count, char **arguments) {
    OrtApi api = make_api();
    if (count != 5) {
        return 2;
    }
    int folder = open_folder(arguments[3]);
    char *digits = read_text(arguments[4]);
    size_t length = decode_digits(digits, strlen(digits));
    compiled_region *sessions[SESSIONS] = {0};
    job jobs[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        long runs = strtol(arguments[1], NULL, 10), number = i + strtol(arguments[2], NULL, 10);
        jobs[i] = (job){sessions, &api, digits, length, folder, runs, number, 0};
    }
    for (int i = 0; i < SESSIONS; i++) {
        sessions[i] = open_session(&jobs[0]);
        if (!sessions[i]) {
            return 3;
        }
    }
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        wrong |= pthread_create(&threads[i], NULL, work, &jobs[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        wrong |= jobs[i].wrong;
    }
    for (int i = 0; i < SESSIONS; i++) {
        release_region(sessions[i]);
    }
    close_folder(folder);
    free(digits);
    printf("%d threads, %d sessions, %ld runs each\n", THREADS, SESSIONS, jobs[0].runs);
    return wrong ? 6 : 0;
}
