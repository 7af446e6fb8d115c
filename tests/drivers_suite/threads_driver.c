/* Runs regions of one artifact in several threads: submitted, waited for in pieces, called back, cancelled by others.
 *
 *     threads_driver ROUNDS SEED DESCRIPTION FILE...
 *
 * As fuzz_driver.c, whose artifacts are read here, too. Built with -fsanitize=thread, or address.
 */
#define main fuzz
#include "fuzz_driver.c"
#undef main

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4

typedef struct job {
    const byoc_driver *driver;
    byoc_region_info info;
    byoc_buffer *shared[MOST]; /* inputs, in memory that all threads registered */
    void *expected[MOST];
    uint64_t seed;
    long rounds;
    long ended_well, cancelled;
    int wrong;
} job;

/* What the end of a run tells. It has no lock of its own: `wait` has to show what `done` wrote. */
typedef struct ending {
    int calls, answer;
} ending;

typedef struct canceller {
    const byoc_driver *driver;
    byoc_region *region;
    unsigned spins;
} canceller;

static atomic_long spun;

static void note_end(void *user, int answer) {
    ending *own = user;
    own->calls++;
    own->answer = answer;
}

static void *cancel_soon(void *argument) {
    canceller *own = argument;
    for (unsigned i = 0; i < own->spins; i++) {
        atomic_fetch_add(&spun, 1);
    }
    BYOC_TABLE_2(own->driver)->cancel(own->region);
    return NULL;
}

static uint32_t draw_of(job *own, uint32_t below) {
    own->seed = own->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(own->seed >> 33) % below;
}

/* Submit one run, wait for it in pieces, perhaps while another thread cancels it. Returns 0 if all is as it has to be. */
static int run_once(job *own, byoc_region *region, byoc_buffer *const *made) {
    const byoc_driver_2 *table = BYOC_TABLE_2(own->driver);
    const byoc_region_info *info = &own->info;
    byoc_binding inputs[MOST] = {{NULL, NULL, 0}}, outputs[MOST] = {{NULL, NULL, 0}};
    for (size_t i = 0; i < info->input_count; i++) {
        inputs[i].buffer = own->shared[i];
    }
    for (size_t i = 0; i < info->output_count; i++) {
        outputs[i].buffer = made[i];
    }
    ending end = {0, -1};
    byoc_text priority = {"priority", draw_of(own, 2) ? "high" : "low"};
    byoc_call call = {sizeof call, inputs, outputs, 1, &priority, note_end, &end};
    if (table->submit(region, &call)) {
        return 1;
    }
    int refused = table->submit(region, &call) == BYOC_BAD_ARGUMENT; /* it has one run at a time */
    pthread_t thread;
    canceller other = {own->driver, region, draw_of(own, 2000)};
    int is_cancelled = draw_of(own, 3) == 0;
    if (is_cancelled && pthread_create(&thread, NULL, cancel_soon, &other)) {
        return 1;
    }
    int answer;
    do {
        answer = table->wait(region, draw_of(own, 2) ? 1000 : UINT64_MAX);
    } while (answer == BYOC_BUSY);
    if (is_cancelled) {
        pthread_join(thread, NULL);
    }
    int wrong = !refused || end.calls != 1 || end.answer != answer || table->wait(region, 0) != BYOC_BAD_ARGUMENT;
    own->cancelled += answer == BYOC_CANCELLED;
    own->ended_well += answer == BYOC_OK;
    for (size_t i = 0; answer == BYOC_OK && i < info->output_count; i++) {
        void *found = allocate(info->outputs[i].bytes);
        wrong |= table->read_buffer(made[i], 0, found, info->outputs[i].bytes) ||
                 memcmp(found, own->expected[i], info->outputs[i].bytes);
        free(found);
    }
    return wrong || (answer != BYOC_OK && !(is_cancelled && answer == BYOC_CANCELLED));
}

static byoc_buffer *open_memory(job *own, int32_t kind, size_t bytes, void *memory) {
    byoc_buffer_info info = {sizeof info, kind, bytes, memory, -1};
    byoc_buffer *buffer;
    const char *why;
    if (BYOC_TABLE_2(own->driver)->open_buffer(&info, &buffer, &why)) {
        exit(4);
    }
    return buffer;
}

static void *work(void *argument) {
    job *own = argument;
    const byoc_driver_2 *table = BYOC_TABLE_2(own->driver);
    for (long round = 0; round < own->rounds; round++) {
        byoc_region *region;
        byoc_buffer *made[MOST] = {NULL};
        byoc_text options[] = {{"cores", draw_of(own, 2) ? "1" : "15"}, {"events", "1"}};
        own->info.arena = allocate(own->info.arena_bytes);
        if (table->open_with(&own->info, 2, options, &region)) {
            exit(5);
        }
        for (size_t i = 0; i < own->info.output_count; i++) {
            made[i] = open_memory(own, BYOC_DEVICE_MEMORY, own->info.outputs[i].bytes, NULL);
        }
        for (int i = 0; i < 4; i++) {
            const byoc_event *events;
            size_t count;
            byoc_counters counters = {sizeof counters, 0, 0, 0, 0, 0};
            own->wrong |= run_once(own, region, made);
            own->wrong |= table->read_counters(region, &counters) || table->list_events(region, &events, &count);
        }
        own->driver->close(region);
        for (size_t i = 0; i < own->info.output_count; i++) {
            table->close_buffer(made[i]);
        }
        free(own->info.arena);
    }
    return NULL;
}

int main(int count, char **arguments) {
    byoc_blob blobs[MOST];
    byoc_tensor tensors[2][MOST];
    size_t tensor_count[2] = {0, 0}, files = 0;
    job jobs[THREADS] = {{NULL, {0}, {NULL}, {NULL}, 0, 0, 0, 0, 0}};
    pthread_t threads[THREADS];
    void *given[MOST] = {NULL}, *expected[MOST] = {NULL};
    char side[16];
    int dtype;
    unsigned long long bytes;
    if (count < 5 || count - 4 > MOST) {
        return 2;
    }
    FILE *description = fopen(arguments[3], "r");
    while (description && fscanf(description, "%15s %d %llu", side, &dtype, &bytes) == 3) {
        int which = strcmp(side, "output") == 0;
        byoc_tensor tensor = {"t", dtype, 0, NULL, (size_t)bytes};
        (which ? expected : given)[tensor_count[which]] = allocate((size_t)bytes);
        tensors[which][tensor_count[which]++] = tensor;
    }
    if (description) {
        fclose(description);
    }
    for (int i = 4; i < count; i++, files++) {
        const char *name = strrchr(arguments[i], '/');
        blobs[files].name = name ? name + 1 : arguments[i];
        blobs[files].data = read_file(arguments[i], &blobs[files].bytes);
    }
    const byoc_driver *driver = byoc_get_driver(BYOC_ABI_VERSION_2);
    byoc_region_info info = {sizeof info, "shared", files, blobs, 0, NULL, tensor_count[0], tensors[0],
                             tensor_count[1], tensors[1], NULL, 0};
    byoc_region *region;
    info.arena_bytes = driver->arena_size(&info);
    info.arena = allocate(info.arena_bytes);
    if (driver->open(&info, &region) || driver->run(region, (const void *const *)given, expected)) {
        return 3;
    }
    driver->close(region);
    free(info.arena);
    for (int i = 0; i < THREADS; i++) {
        jobs[i].driver = driver;
        jobs[i].info = info;
        jobs[i].seed = strtoull(arguments[2], NULL, 10) + (uint64_t)i;
        jobs[i].rounds = strtol(arguments[1], NULL, 10);
        memcpy(jobs[i].expected, expected, sizeof expected);
        for (size_t k = 0; k < info.input_count; k++) {
            jobs[i].shared[k] = open_memory(&jobs[i], BYOC_PROGRAM_MEMORY, info.inputs[k].bytes, given[k]);
        }
        if (pthread_create(&threads[i], NULL, work, &jobs[i])) {
            return 3;
        }
    }
    long ended_well = 0, cancelled = 0;
    int wrong = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        ended_well += jobs[i].ended_well;
        cancelled += jobs[i].cancelled;
        wrong |= jobs[i].wrong;
        for (size_t k = 0; k < info.input_count; k++) {
            BYOC_TABLE_2(driver)->close_buffer(jobs[i].shared[k]);
        }
    }
    for (size_t i = 0; i < info.input_count; i++) {
        free(given[i]);
    }
    for (size_t i = 0; i < info.output_count; i++) {
        free(expected[i]);
    }
    for (size_t i = 0; i < files; i++) {
        free((void *)blobs[i].data);
    }
    printf("%ld runs ended well, %ld were cancelled\n", ended_well, cancelled);
    return wrong;
}
