/* The device around the program: its cores, its memory, its clock, and runs in the background.
 *
 * A real device has these in its firmware and kernel module. Here a core is a turn among threads, device memory is
 * what malloc gives, and a run in the background has a thread of its own. Programs that link the driver start no
 * threads unless they are built with BYOC_THREADS: a run that is submitted is done at once then, and there is no clock.
 */
#ifndef DLA_DEVICE_H
#define DLA_DEVICE_H

#include "byoc_driver.h"

#if (defined(__linux__) || defined(__APPLE__)) && (!defined(BYOC_LINKED) || defined(BYOC_THREADS))
#define DLA_THREADS 1
#include <pthread.h>
#else
#define DLA_THREADS 0
#endif

#define DLA_CORES 4u

enum { DLA_LOW, DLA_NORMAL, DLA_HIGH };

/* How a region is run: options of `open_with`, or of a run. */
typedef struct dla_settings {
    uint32_t cores; /* a mask */
    int priority;
    uint32_t clock; /* percent */
    int events;
} dla_settings;

/* Read options into settings. Returns NULL, or a sentence. */
const char *dla_read_options(size_t count, const byoc_text *options, dla_settings *settings);

/* The settings without options. */
extern const dla_settings dla_usual_settings;

/* Memory that is known by a handle: the device's, or memory outside that it reaches. */
struct byoc_buffer {
    uint8_t *data;
    size_t bytes;
    int kind;
    void *block; /* what is to be freed, or unmapped */
};

int dla_open_buffer(const byoc_buffer_info *info, byoc_buffer **buffer, const char **why);
int dla_write_buffer(byoc_buffer *buffer, size_t offset, const void *from, size_t bytes);
int dla_read_buffer(byoc_buffer *buffer, size_t offset, void *to, size_t bytes);
void dla_close_buffer(byoc_buffer *buffer);

/* Return whether so many bytes from an offset on are inside a buffer. */
int dla_is_inside(const byoc_buffer *buffer, size_t offset, size_t bytes);

/* What the device does: returns an answer of BYOC_OK, ... */
typedef int (*dla_work)(void *argument);

/* A run in the background, of one region; all zeros before the first. */
typedef struct dla_worker {
#if DLA_THREADS
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
#endif
    int is_ready, has_thread, is_leaving;
    int state;        /* DLA_IDLE, ... */
    int is_cancelled; /* the run is to end early */
    int answer;
    dla_work work;
    void *argument;
    dla_settings settings;
    void (*done)(void *user, int answer);
    void *user;
} dla_worker;

enum { DLA_IDLE, DLA_WAITING, DLA_RUNNING, DLA_ENDED };

/* Begin work; the worker's fields from `work` on are filled in. Returns BYOC_OK, or BYOC_FAILED without a thread. */
int dla_begin(dla_worker *worker);

/* Wait for the end, as `wait` of byoc_driver.h. BYOC_BAD_ARGUMENT where nothing was begun. */
int dla_wait(dla_worker *worker, uint64_t most_ns);

/* Return whether something was begun whose end nobody waited for. */
int dla_is_begun(dla_worker *worker);

void dla_cancel(dla_worker *worker);
int dla_is_cancelled(dla_worker *worker);

/* End the worker: what runs is cancelled. */
void dla_end_worker(dla_worker *worker);

/* The time in nanoseconds, 0 where there is no clock. */
uint64_t dla_read_clock(void);

/* Rest as long as a slower clock than 100 % makes of so many nanoseconds of work. */
void dla_rest(uint64_t worked, uint32_t clock);

#endif
