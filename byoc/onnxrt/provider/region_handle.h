/* Handles of a region: regions that its driver has opened, of which each serves one call at a time. */
#ifndef BYOC_REGION_HANDLE_H
#define BYOC_REGION_HANDLE_H

#include "compiled_region.h"

/* An opened region of the driver, with room for the pointers of a call. */
struct region_handle {
    region_handle *next;
    byoc_region_info info;
    byoc_region *opened;
    void *arena;
    const void **inputs;
    void **outputs;
    byoc_binding *input_bindings, *output_bindings; /* of a region whose tensors pass on the device */
    void **input_copies,
        **spare_outputs; /* for inputs that are not aligned; for outputs that nobody reads */
};

/* Describe a region to its driver, without an arena. */
byoc_region_info make_info(const compiled_region *region);

/* Open one more handle. */
OrtStatus *open_handle(const compiled_region *region, region_handle **made);

/* Take a handle that is free, or open one. */
OrtStatus *take_handle(compiled_region *region, region_handle **taken);

/* Put a handle back after its call. */
void put_back(compiled_region *region, region_handle *handle);

void close_handle(const compiled_region *region, region_handle *handle);

#endif
