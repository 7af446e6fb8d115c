/* A driver of version 2 that gives out its inputs, and tells the lie that the environment variable LIE names.
 *
 * Without a lie it is a good one. */
#include "byoc_driver.h"

#include <stdlib.h>
#include <string.h>

struct byoc_region {
    const byoc_region_info *info;
    int answer;
};

struct byoc_buffer {
    unsigned char *data;
};

static int tells(const char *lie) {
    const char *told = getenv("LIE");
    return told && strcmp(told, lie) == 0;
}

/* Answer with a number that means nothing, and say nothing, where a lie is told. */
static int answer_or(const char *lie, int answer) {
    return tells(lie) ? 77 : answer;
}

static int compatible(const byoc_region_info *info, const char **why) {
    (void)info;
    *why = NULL;
    return answer_or("compatible fails", tells("compatible is negative") ? -1 : BYOC_OK);
}

static size_t arena_size(const byoc_region_info *info) {
    static size_t grown;
    (void)info;
    grown += tells("the arena grows") ? (size_t)1 << 20 : 0;
    return tells("the arena is SIZE_MAX")    ? SIZE_MAX
           : tells("the arena is enormous")  ? SIZE_MAX - 1
           : tells("the arena has no bytes") ? 0
                                             : sizeof(byoc_region) + grown;
}

static int open_region(const byoc_region_info *info, byoc_region **region) {
    *region = NULL;
    if (tells("open gives nothing") || tells("open fails")) {
        return answer_or("open fails", BYOC_OK);
    }
    *region = calloc(1, sizeof **region);
    (*region)->info = info;
    return BYOC_OK;
}

static int run(byoc_region *region, const void *const *inputs, void *const *outputs) {
    const byoc_region_info *info = region->info;
    for (size_t i = 0; i < info->output_count; i++) {
        memcpy(outputs[i], inputs[i % info->input_count], info->outputs[i].bytes);
    }
    return answer_or("run fails", BYOC_OK);
}

static void close_region(byoc_region *region) {
    free(region);
}

static const char *get_error(const byoc_region *region) {
    static char text[1 << 16];
    (void)region;
    if (tells("the message is long")) {
        memset(text, 'a', sizeof text - 1);
        return text;
    }
    return tells("the message is no text") ? "\xff\xfe\n\tnot\r\na text" : NULL;
}

static int open_with(const byoc_region_info *info, size_t count, const byoc_text *options, byoc_region **region) {
    (void)count;
    (void)options;
    return open_region(info, region);
}

static void *find_tensor(const byoc_binding *binding) {
    return binding->buffer ? binding->buffer->data + binding->offset : binding->data;
}

static int submit(byoc_region *region, const byoc_call *call) {
    const byoc_region_info *info = region->info;
    const void *inputs[8] = {0};
    void *outputs[8] = {0};
    for (size_t i = 0; i < info->input_count; i++) {
        inputs[i] = find_tensor(&call->inputs[i]);
    }
    for (size_t i = 0; i < info->output_count; i++) {
        outputs[i] = find_tensor(&call->outputs[i]);
    }
    region->answer = run(region, inputs, outputs);
    for (int i = 0; call->done && i < (tells("done is called twice") ? 2 : 1) && !tells("done is not called"); i++) {
        call->done(call->user, region->answer);
    }
    return answer_or("submit fails", tells("the message is long") || tells("the message is no text") ? -2 : BYOC_OK);
}

static int wait_for(byoc_region *region, uint64_t most_ns) {
    (void)most_ns;
    return answer_or("wait fails", tells("wait is always busy") ? 5 : region->answer); /* BYOC_BUSY */
}

static void cancel(byoc_region *region) {
    (void)region;
}

static int open_buffer(const byoc_buffer_info *info, byoc_buffer **buffer, const char **why) {
    *why = NULL;
    *buffer = NULL;
    if (tells("a buffer is nothing") || tells("buffers fail")) {
        return answer_or("buffers fail", BYOC_OK);
    }
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
    if (buffer) {
        free(buffer->data);
    }
    free(buffer);
}

static int read_counters(const byoc_region *region, byoc_counters *counters) {
    (void)region;
    (void)counters;
    return answer_or("counters fail", BYOC_OK);
}

static int list_events(const byoc_region *region, const byoc_event **events, size_t *count) {
    static byoc_event event;
    (void)region;
    event.node_count = tells("a layer has nodes that are nowhere") ? 3 : 0;
    *events = tells("events are nowhere") ? NULL : &event;
    *count = 1;
    return BYOC_OK;
}

static int read_versions(const byoc_region_info *info, byoc_versions *versions) {
    (void)info;
    memset(&versions->driver, 0, sizeof *versions - offsetof(byoc_versions, driver));
    if (tells("versions are no numbers")) {
        versions->driver = "";
        versions->oldest_artifact = versions->newest_artifact = versions->firmware = "a..b99999999999999999999999";
        versions->oldest_firmware = "";
    }
    return answer_or("versions fail", BYOC_OK);
}

/* It is not const here, so that its lies can be put into it before a program that links it begins. */
extern byoc_driver_2 byoc_driver_hostile;
byoc_driver_2 byoc_driver_hostile = {
    {sizeof(byoc_driver_2), BYOC_ABI_VERSION_2, "hostile", compatible, arena_size, open_region, run, close_region,
     get_error},
    open_with,   submit,      wait_for,      cancel,      open_buffer,   write_buffer,
    read_buffer, close_buffer, read_counters, list_events, read_versions,
};

#define MEMBER(name) {#name, offsetof(byoc_driver, name)}
#define FUNCTION(name) {#name, offsetof(byoc_driver_2, name)}

static const struct {
    const char *name;
    size_t offset;
} members[] = {
    MEMBER(name),           MEMBER(compatible), MEMBER(arena_size), MEMBER(open),          MEMBER(run),
    MEMBER(close),          MEMBER(error),      FUNCTION(submit),   FUNCTION(wait),        FUNCTION(open_buffer),
    FUNCTION(close_buffer),
};

__attribute__((constructor)) static void put_lies(void) {
    const char *told = getenv("LIE");
    byoc_driver_2 *table = &byoc_driver_hostile;
    for (size_t i = 0; told && i < sizeof members / sizeof members[0]; i++) {
        if (strncmp(told, "without ", 8) == 0 && strcmp(members[i].name, told + 8) == 0) {
            memset((unsigned char *)table + members[i].offset, 0, sizeof table->submit);
        }
    }
    table->base.abi_version = tells("version 9") ? 9 : tells("version 0") ? 0 : BYOC_ABI_VERSION_2;
    table->base.struct_size = tells("a table of 8 bytes") ? 8 : sizeof *table;
    table->base.name = tells("another codegen's") ? "another" : table->base.name;
}

const byoc_driver *byoc_get_driver(uint32_t abi_version) {
    return tells("no table") || abi_version != BYOC_ABI_VERSION_2 ? NULL : &byoc_driver_hostile.base;
}
