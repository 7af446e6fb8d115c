/* Options, buffers, and runs in the background. */
#define _POSIX_C_SOURCE 200809L /* clocks, threads and mappings, which C99 alone does not have */
#include "dla_device.h"

#include <stdlib.h>
#include <string.h>

#if DLA_THREADS
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#endif

#define NANOSECONDS 1000000000u

const dla_settings dla_usual_settings = {(1u << DLA_CORES) - 1, DLA_NORMAL, 100, 0};

/* Read a decimal number from `least` to `most`. Returns 0 for anything else. */
static int read_number(const char *text, uint32_t least, uint32_t most, uint32_t *number) {
    uint32_t found = 0;
    if (!*text || strlen(text) > 6) {
        return 0;
    }
    for (; *text; text++) {
        if (*text < '0' || *text > '9') {
            return 0;
        }
        found = 10 * found + (uint32_t)(*text - '0');
    }
    *number = found;
    return found >= least && found <= most;
}

static const char *read_option(const byoc_text *option, dla_settings *settings) {
    static const char *const priorities[] = {"low", "normal", "high"};
    uint32_t number;
    if (strcmp(option->name, "cores") == 0) {
        return read_number(option->text, 1, (1u << DLA_CORES) - 1, &settings->cores)
                   ? NULL
                   : "option cores: a mask of the cores 0 to 3 is expected, from 1 to 15";
    }
    if (strcmp(option->name, "clock") == 0) {
        return read_number(option->text, 1, 100, &settings->clock) ? NULL
                                                                   : "option clock: 1 to 100 percent is expected";
    }
    if (strcmp(option->name, "events") == 0) {
        int is_right = read_number(option->text, 0, 1, &number);
        settings->events = is_right && number;
        return is_right ? NULL : "option events: 0 or 1 is expected";
    }
    if (strcmp(option->name, "priority") == 0) {
        for (int i = DLA_LOW; i <= DLA_HIGH; i++) {
            if (strcmp(option->text, priorities[i]) == 0) {
                settings->priority = i;
                return NULL;
            }
        }
        return "option priority: low, normal or high is expected";
    }
    return "there is an option that the dla does not have: it has cores, priority, clock and events";
}

const char *dla_read_options(size_t count, const byoc_text *options, dla_settings *settings) {
    for (size_t i = 0; i < count; i++) {
        const char *wrong = read_option(&options[i], settings);
        if (wrong) {
            return wrong;
        }
    }
    return NULL;
}

/* Buffers. */

static void *map_shared(const byoc_buffer_info *info) {
#if DLA_THREADS
    struct stat found;
    /* A page behind the end of the file would end the process, so the size is compared first. */
    if (info->descriptor < 0 || info->descriptor > INT32_MAX || fstat((int)info->descriptor, &found) ||
        found.st_size < 0 || (uint64_t)found.st_size < info->bytes) {
        return NULL;
    }
    void *mapped = mmap(NULL, info->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (int)info->descriptor, 0);
    return mapped == MAP_FAILED ? NULL : mapped;
#else
    (void)info;
    return NULL;
#endif
}

/* Find or make the memory of a buffer. Returns NULL, or a sentence. */
static const char *find_memory(const byoc_buffer_info *info, byoc_buffer *buffer) {
    switch (info->kind) {
    case BYOC_DEVICE_MEMORY:
        buffer->block = calloc(1, info->bytes + BYOC_ALIGNMENT);
        if (!buffer->block) {
            return "the device has no memory left";
        }
        buffer->data = (uint8_t *)buffer->block + BYOC_ALIGNMENT - (uintptr_t)buffer->block % BYOC_ALIGNMENT;
        return NULL;
    case BYOC_PROGRAM_MEMORY:
        buffer->data = info->memory;
        return info->memory && (uintptr_t)info->memory % BYOC_ALIGNMENT == 0
                   ? NULL
                   : "the memory of a buffer is not aligned to 64 bytes";
    default:
        buffer->block = map_shared(info);
        buffer->data = buffer->block;
        return buffer->block ? NULL : "the shared memory of a buffer cannot be mapped, or is smaller than the buffer";
    }
}

int dla_open_buffer(const byoc_buffer_info *info, byoc_buffer **buffer, const char **why) {
    *buffer = NULL;
    *why = "a buffer has no bytes, too many, or was described by another version of byoc_driver.h";
    if (info->struct_size < sizeof *info || !info->bytes || info->bytes > SIZE_MAX - BYOC_ALIGNMENT) {
        return BYOC_BAD_ARGUMENT;
    }
    *why = "the dla has no memory of this kind";
    if (info->kind < BYOC_DEVICE_MEMORY || info->kind > (DLA_THREADS ? BYOC_SHARED_MEMORY : BYOC_PROGRAM_MEMORY)) {
        return BYOC_INCOMPATIBLE;
    }
    byoc_buffer *made = calloc(1, sizeof *made);
    *why = made ? find_memory(info, made) : "there is no memory left";
    if (*why) {
        free(made);
        return info->kind == BYOC_DEVICE_MEMORY ? BYOC_FAILED : BYOC_BAD_ARGUMENT;
    }
    made->kind = info->kind;
    made->bytes = info->bytes;
    *buffer = made;
    *why = "";
    return BYOC_OK;
}

int dla_is_inside(const byoc_buffer *buffer, size_t offset, size_t bytes) {
    return offset <= buffer->bytes && bytes <= buffer->bytes - offset;
}

int dla_write_buffer(byoc_buffer *buffer, size_t offset, const void *from, size_t bytes) {
    if (!buffer || !dla_is_inside(buffer, offset, bytes)) {
        return BYOC_BAD_ARGUMENT;
    }
    memcpy(buffer->data + offset, from, bytes);
    return BYOC_OK;
}

int dla_read_buffer(byoc_buffer *buffer, size_t offset, void *to, size_t bytes) {
    if (!buffer || !dla_is_inside(buffer, offset, bytes)) {
        return BYOC_BAD_ARGUMENT;
    }
    memcpy(to, buffer->data + offset, bytes);
    return BYOC_OK;
}

void dla_close_buffer(byoc_buffer *buffer) {
    if (!buffer) {
        return;
    }
#if DLA_THREADS
    if (buffer->kind == BYOC_SHARED_MEMORY) {
        munmap(buffer->block, buffer->bytes);
        buffer->block = NULL;
    }
#endif
    free(buffer->block);
    free(buffer);
}

#if DLA_THREADS

/* Turns on the cores: of those who wait for a core, the ones of the highest priority go first. */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t busy;                             /* a mask */
    uint32_t waiting[DLA_HIGH + 1][DLA_CORES]; /* for each core, which one may wait for several of */
} cores = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, {{0}}};

/* Return a mask of the cores that are free, and that nobody of a higher priority waits for. */
static uint32_t find_free_cores(const dla_settings *settings) {
    uint32_t found = settings->cores & ~cores.busy;
    for (int higher = settings->priority + 1; higher <= DLA_HIGH; higher++) {
        for (uint32_t core = 0; core < DLA_CORES; core++) {
            found &= ~((uint32_t)(cores.waiting[higher][core] > 0) << core);
        }
    }
    return found;
}

static void count_waiting(const dla_settings *settings, int change) {
    for (uint32_t core = 0; core < DLA_CORES; core++) {
        if (settings->cores >> core & 1) {
            cores.waiting[settings->priority][core] += (uint32_t)change;
        }
    }
}

/* Wait for a core of a mask, and return its bit. */
static uint32_t take_core(const dla_settings *settings) {
    pthread_mutex_lock(&cores.lock);
    count_waiting(settings, 1);
    uint32_t found = find_free_cores(settings);
    while (!found) {
        pthread_cond_wait(&cores.changed, &cores.lock);
        found = find_free_cores(settings);
    }
    count_waiting(settings, -1);
    found &= ~found + 1; /* the lowest */
    cores.busy |= found;
    pthread_cond_broadcast(&cores.changed); /* others may no longer be passed over */
    pthread_mutex_unlock(&cores.lock);
    return found;
}

static void give_core(uint32_t core) {
    pthread_mutex_lock(&cores.lock);
    cores.busy &= ~core;
    pthread_cond_broadcast(&cores.changed);
    pthread_mutex_unlock(&cores.lock);
}

static void *serve(void *argument) {
    dla_worker *worker = argument;
    pthread_mutex_lock(&worker->lock);
    for (;;) {
        while (worker->state != DLA_WAITING && !worker->is_leaving) {
            pthread_cond_wait(&worker->changed, &worker->lock);
        }
        if (worker->state != DLA_WAITING) {
            break;
        }
        worker->state = DLA_RUNNING;
        pthread_mutex_unlock(&worker->lock);
        uint32_t core = take_core(&worker->settings);
        int answer = worker->work(worker->argument);
        if (worker->done) { /* before `wait` returns, since the program then frees what it needs */
            worker->done(worker->user, answer);
        }
        give_core(core);
        pthread_mutex_lock(&worker->lock);
        worker->answer = answer;
        worker->state = DLA_ENDED;
        pthread_cond_broadcast(&worker->changed);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

static int prepare(dla_worker *worker) {
    if (!worker->is_ready) {
        if (pthread_mutex_init(&worker->lock, NULL)) {
            return 0;
        }
        if (pthread_cond_init(&worker->changed, NULL)) {
            pthread_mutex_destroy(&worker->lock);
            return 0;
        }
        worker->is_ready = 1;
    }
    if (!worker->has_thread) {
        worker->has_thread = pthread_create(&worker->thread, NULL, serve, worker) == 0;
    }
    return worker->has_thread;
}

int dla_begin(dla_worker *worker) {
    if (!prepare(worker)) {
        return BYOC_FAILED;
    }
    pthread_mutex_lock(&worker->lock);
    worker->state = DLA_WAITING;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    return BYOC_OK;
}

int dla_wait(dla_worker *worker, uint64_t most_ns) {
    struct timespec end = {0, 0};
    if (!dla_is_begun(worker)) {
        return BYOC_BAD_ARGUMENT;
    }
    clock_gettime(CLOCK_REALTIME, &end); /* the clock of pthread_cond_timedwait */
    uint64_t most = (uint64_t)1 << 40;   /* seconds: some 35,000 years, which every time_t of 64 bits has */
    uint64_t seconds = most_ns / NANOSECONDS < most ? most_ns / NANOSECONDS : most;
    uint64_t rest = (uint64_t)end.tv_nsec + most_ns % NANOSECONDS;
    end.tv_sec += (time_t)(seconds + rest / NANOSECONDS);
    end.tv_nsec = (long)(rest % NANOSECONDS);
    pthread_mutex_lock(&worker->lock);
    int late = 0;
    while (worker->state != DLA_ENDED && !late) {
        late = most_ns == UINT64_MAX ? pthread_cond_wait(&worker->changed, &worker->lock)
                                     : pthread_cond_timedwait(&worker->changed, &worker->lock, &end);
    }
    int answer = worker->state == DLA_ENDED ? worker->answer : BYOC_BUSY;
    if (worker->state == DLA_ENDED) {
        worker->state = DLA_IDLE;
        worker->is_cancelled = 0;
    }
    pthread_mutex_unlock(&worker->lock);
    return answer;
}

int dla_is_begun(dla_worker *worker) {
    if (!worker->has_thread) {
        return 0;
    }
    pthread_mutex_lock(&worker->lock);
    int is_begun = worker->state != DLA_IDLE;
    pthread_mutex_unlock(&worker->lock);
    return is_begun;
}

void dla_cancel(dla_worker *worker) {
    if (worker->has_thread) {
        pthread_mutex_lock(&worker->lock);
        worker->is_cancelled = worker->state == DLA_WAITING || worker->state == DLA_RUNNING;
        pthread_mutex_unlock(&worker->lock);
    }
}

int dla_is_cancelled(dla_worker *worker) {
    if (!worker->has_thread) {
        return 0;
    }
    pthread_mutex_lock(&worker->lock);
    int is_cancelled = worker->is_cancelled;
    pthread_mutex_unlock(&worker->lock);
    return is_cancelled;
}

void dla_end_worker(dla_worker *worker) {
    if (worker->has_thread) {
        pthread_mutex_lock(&worker->lock);
        worker->is_cancelled = worker->is_leaving = 1;
        pthread_cond_broadcast(&worker->changed);
        pthread_mutex_unlock(&worker->lock);
        pthread_join(worker->thread, NULL);
    }
    if (worker->is_ready) {
        pthread_cond_destroy(&worker->changed);
        pthread_mutex_destroy(&worker->lock);
    }
    worker->has_thread = worker->is_ready = 0;
}

uint64_t dla_read_clock(void) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NANOSECONDS + (uint64_t)now.tv_nsec;
}

void dla_rest(uint64_t worked, uint32_t clock) {
    uint64_t rest = worked * (100 - clock) / clock;
    struct timespec time = {(time_t)(rest / NANOSECONDS), (long)(rest % NANOSECONDS)};
    while (rest && nanosleep(&time, &time) && errno == EINTR) {
    }
}

#else

/* Without threads a run has ended when it was begun. */

int dla_begin(dla_worker *worker) {
    worker->answer = worker->work(worker->argument);
    worker->state = DLA_ENDED;
    if (worker->done) {
        worker->done(worker->user, worker->answer);
    }
    return BYOC_OK;
}

int dla_wait(dla_worker *worker, uint64_t most_ns) {
    (void)most_ns;
    if (worker->state != DLA_ENDED) {
        return BYOC_BAD_ARGUMENT;
    }
    worker->state = DLA_IDLE;
    return worker->answer;
}

int dla_is_begun(dla_worker *worker) {
    return worker->state != DLA_IDLE;
}

void dla_cancel(dla_worker *worker) {
    (void)worker;
}

int dla_is_cancelled(dla_worker *worker) {
    (void)worker;
    return 0;
}

void dla_end_worker(dla_worker *worker) {
    (void)worker;
}

uint64_t dla_read_clock(void) {
    return 0;
}

void dla_rest(uint64_t worked, uint32_t clock) {
    (void)worked;
    (void)clock;
}

#endif
