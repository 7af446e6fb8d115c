/* The table of tensors on devices, and the buffers that are free. */
#include "device_tensors.h"

#include <pthread.h>
#include <stdlib.h>

/* A buffer that was opened; it is kept until the session ends. */
typedef struct opened_buffer {
    struct opened_buffer *next;
    const byoc_driver *driver;
    byoc_buffer *buffer;
    size_t bytes;
    int is_taken;
} opened_buffer;

/* A tensor that has readers left. */
typedef struct noted_tensor {
    struct noted_tensor *next;
    const void *address;
    byoc_buffer *buffer;
    size_t readers;
} noted_tensor;

struct device_tensors {
    pthread_mutex_t lock;
    opened_buffer *buffers;
    noted_tensor *tensors;
};

device_tensors *make_device_tensors(void) {
    device_tensors *table = calloc(1, sizeof *table);
    if (table && pthread_mutex_init(&table->lock, NULL)) {
        free(table);
        return NULL;
    }
    return table;
}

void release_device_tensors(device_tensors *table) {
    if (!table) {
        return;
    }
    while (table->tensors) {
        noted_tensor *tensor = table->tensors;
        table->tensors = tensor->next;
        free(tensor);
    }
    while (table->buffers) {
        opened_buffer *opened = table->buffers;
        table->buffers = opened->next;
        BYOC_TABLE_2(opened->driver)->close_buffer(opened->buffer);
        free(opened);
    }
    pthread_mutex_destroy(&table->lock);
    free(table);
}

int can_pass_tensors(const byoc_driver *driver) {
    return BYOC_HAS(driver, submit) && BYOC_HAS(driver, wait) && BYOC_HAS(driver, open_buffer) &&
           BYOC_HAS(driver, close_buffer);
}

static byoc_buffer *take_free(device_tensors *table, const byoc_driver *driver, size_t bytes) {
    for (opened_buffer *each = table->buffers; each; each = each->next) {
        if (!each->is_taken && each->driver == driver && each->bytes == bytes) {
            each->is_taken = 1;
            return each->buffer;
        }
    }
    return NULL;
}

byoc_buffer *take_buffer(device_tensors *table, const byoc_driver *driver, size_t bytes) {
    pthread_mutex_lock(&table->lock);
    byoc_buffer *buffer = take_free(table, driver, bytes);
    pthread_mutex_unlock(&table->lock);
    if (buffer) {
        return buffer;
    }
    byoc_buffer_info info = {sizeof info, BYOC_DEVICE_MEMORY, bytes, NULL, -1};
    const char *why;
    opened_buffer *opened = calloc(1, sizeof *opened);
    if (!opened || BYOC_TABLE_2(driver)->open_buffer(&info, &opened->buffer, &why) != BYOC_OK ||
        !opened->buffer) {
        free(opened);
        return NULL;
    }
    opened->driver = driver;
    opened->bytes = bytes;
    opened->is_taken = 1;
    pthread_mutex_lock(&table->lock);
    opened->next = table->buffers;
    table->buffers = opened;
    pthread_mutex_unlock(&table->lock);
    return opened->buffer;
}

/* The same with the table locked. */
static void give_locked(device_tensors *table, const byoc_buffer *buffer) {
    for (opened_buffer *each = table->buffers; each && buffer; each = each->next) {
        if (each->buffer == buffer) {
            each->is_taken = 0;
        }
    }
}

void give_buffer(device_tensors *table, byoc_buffer *buffer) {
    pthread_mutex_lock(&table->lock);
    give_locked(table, buffer);
    pthread_mutex_unlock(&table->lock);
}

static noted_tensor *find_noted(device_tensors *table, const void *address) {
    noted_tensor *each = table->tensors;
    while (each && each->address != address) {
        each = each->next;
    }
    return each;
}

int note_tensor(device_tensors *table, const void *address, byoc_buffer *buffer, size_t readers) {
    noted_tensor *fresh = calloc(1, sizeof *fresh);
    if (!fresh) {
        return 0;
    }
    pthread_mutex_lock(&table->lock);
    noted_tensor *noted = find_noted(table, address);
    if (noted) { /* of a call that failed before its readers ran */
        give_locked(table, noted->buffer);
        free(fresh);
    } else {
        noted = fresh;
        noted->next = table->tensors;
        table->tensors = noted;
    }
    noted->address = address;
    noted->buffer = buffer;
    noted->readers = readers;
    pthread_mutex_unlock(&table->lock);
    return 1;
}

int find_tensor(device_tensors *table, const void *address, byoc_buffer **buffer) {
    pthread_mutex_lock(&table->lock);
    const noted_tensor *noted = find_noted(table, address);
    *buffer = noted ? noted->buffer : NULL;
    pthread_mutex_unlock(&table->lock);
    return noted != NULL;
}

void end_reading(device_tensors *table, const void *address) {
    pthread_mutex_lock(&table->lock);
    noted_tensor *noted = find_noted(table, address);
    if (noted && --noted->readers == 0) {
        noted_tensor **link = &table->tensors;
        while (*link != noted) {
            link = &(*link)->next;
        }
        *link = noted->next;
        give_locked(table, noted->buffer);
        free(noted);
    }
    pthread_mutex_unlock(&table->lock);
}
