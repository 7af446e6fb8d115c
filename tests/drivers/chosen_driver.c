/* A driver of version 2 that gives out its inputs, without a function that a test names by an environment variable.
 *
 * CHOSEN_WITHOUT is such a name: `submit`. CHOSEN_END is one, too, before which the table ends, as one does that was compiled
 * with an older byoc_driver.h. A program that links it is compiled with WITHOUT_SUBMIT or WITHOUT_BUFFERS. */
#include "byoc_driver.h"

#include <stdlib.h>
#include <string.h>

struct byoc_region {
    const byoc_region_info *info;
    int answer;
    uint64_t runs;
};

struct byoc_buffer {
    unsigned char *data;
};

extern uint64_t chosen_bytes_in_program, chosen_bytes_in_buffers;

static int compatible(const byoc_region_info *info, const char **why) {
    (void)info;
    *why = "";
    return BYOC_OK;
}

static size_t arena_size(const byoc_region_info *info) {
    (void)info;
    return sizeof(byoc_region);
}

static int open_region(const byoc_region_info *info, byoc_region **region) {
    *region = info->arena;
    memset(*region, 0, sizeof **region);
    (*region)->info = info;
    return BYOC_OK;
}

/* What the program counts on: bytes of inputs and outputs at addresses, and bytes in buffers. */
uint64_t chosen_bytes_in_program, chosen_bytes_in_buffers;

/* Each output is an input, of the same bytes; a first input of 13 ends a run. */
static int run(byoc_region *region, const void *const *inputs, void *const *outputs) {
    const byoc_region_info *info = region->info;
    if (*(const float *)inputs[0] == 13.0f) {
        return BYOC_FAILED;
    }
    for (size_t i = 0; i < info->output_count; i++) {
        memcpy(outputs[i], inputs[i % info->input_count], info->outputs[i].bytes);
    }
    region->runs++;
    return BYOC_OK;
}

static void close_region(byoc_region *region) {
    (void)region;
}

static const char *get_error(const byoc_region *region) {
    (void)region;
    return "";
}

static int open_with(const byoc_region_info *info, size_t count, const byoc_text *options, byoc_region **region) {
    (void)count;
    (void)options;
    return open_region(info, region);
}

static void *find_tensor(const byoc_binding *binding, size_t bytes) {
    *(binding->buffer ? &chosen_bytes_in_buffers : &chosen_bytes_in_program) += bytes;
    return binding->buffer ? binding->buffer->data + binding->offset : binding->data;
}

static int submit(byoc_region *region, const byoc_call *call) {
    const byoc_region_info *info = region->info;
    const void *inputs[8] = {0};
    void *outputs[8] = {0};
    for (size_t i = 0; i < info->input_count; i++) {
        inputs[i] = find_tensor(&call->inputs[i], info->inputs[i].bytes);
    }
    for (size_t i = 0; i < info->output_count; i++) {
        outputs[i] = find_tensor(&call->outputs[i], info->outputs[i].bytes);
    }
    region->answer = run(region, inputs, outputs);
    return BYOC_OK;
}

static int wait_for(byoc_region *region, uint64_t most_ns) {
    (void)most_ns;
    return region->answer;
}

static void cancel(byoc_region *region) {
    (void)region;
}

static int open_buffer(const byoc_buffer_info *info, byoc_buffer **buffer, const char **why) {
    *why = "";
    *buffer = malloc(sizeof **buffer);
    (*buffer)->data = malloc(info->bytes);
    return BYOC_OK;
}

static int write_buffer(byoc_buffer *buffer, size_t offset, const void *from, size_t bytes) {
    memcpy(buffer->data + offset, from, bytes);
    return BYOC_OK;
}

static int read_buffer(byoc_buffer *buffer, size_t offset, void *to, size_t bytes) {
    memcpy(to, buffer->data + offset, bytes);
    return BYOC_OK;
}

static void close_buffer(byoc_buffer *buffer) {
    free(buffer->data);
    free(buffer);
}

static int read_counters(const byoc_region *region, byoc_counters *counters) {
    counters->runs = region->runs;
    counters->bytes_from_program = chosen_bytes_in_program;
    counters->bytes_on_device = chosen_bytes_in_buffers;
    return BYOC_OK;
}

static int list_events(const byoc_region *region, const byoc_event **events, size_t *count) {
    (void)region;
    *events = NULL;
    *count = 0;
    return BYOC_OK;
}

static int read_versions(const byoc_region_info *info, byoc_versions *versions) {
    (void)info;
    versions->driver = "3.1";
    return BYOC_OK;
}

#ifdef WITHOUT_SUBMIT
#define SUBMIT NULL
#else
#define SUBMIT submit
#endif
#ifdef WITHOUT_BUFFERS
#define OPEN_BUFFER NULL
#else
#define OPEN_BUFFER open_buffer
#endif

extern const byoc_driver_2 byoc_driver_chosen;
const byoc_driver_2 byoc_driver_chosen = {
    {sizeof(byoc_driver_2), BYOC_ABI_VERSION_2, "chosen", compatible, arena_size, open_region, run, close_region,
     get_error},
    open_with,
    SUBMIT,
    wait_for,
    cancel,
    OPEN_BUFFER,
    write_buffer,
    read_buffer,
    close_buffer,
    read_counters,
    list_events,
    read_versions,
};

#ifndef BYOC_LINKED
#define FUNCTION(name) {#name, offsetof(byoc_driver_2, name)}

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    FUNCTION(open_with),     FUNCTION(submit),       FUNCTION(wait),          FUNCTION(cancel),
    FUNCTION(open_buffer),   FUNCTION(write_buffer), FUNCTION(read_buffer),   FUNCTION(close_buffer),
    FUNCTION(read_counters), FUNCTION(list_events),  FUNCTION(read_versions),
};

const byoc_driver *byoc_get_driver(uint32_t abi_version) {
    static byoc_driver_2 table;
    const char *without = getenv("CHOSEN_WITHOUT"), *end = getenv("CHOSEN_END");
    table = byoc_driver_chosen;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (without && strcmp(functions[i].name, without) == 0) {
            memset((unsigned char *)&table + functions[i].offset, 0, sizeof table.submit);
        }
        if (end && strcmp(functions[i].name, end) == 0) {
            table.base.struct_size = functions[i].offset;
        }
    }
    return abi_version == BYOC_ABI_VERSION_2 ? &table.base : NULL;
}
#endif
