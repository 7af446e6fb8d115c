/* A region that a driver runs, as onnxruntime calls it: its artifact, and the handles that are open.
 *
 * A handle of a driver serves one call at a time. So there is a stack of them: a call takes one, or
 * opens one more if other threads have them all, and puts it back.
 */
#ifndef BYOC_COMPILED_REGION_H
#define BYOC_COMPILED_REGION_H

#include "bundle_files.h"
#include "device_tensors.h"
#include "ort_abi.h"
#include "region_description.h"

#include <pthread.h>

#define MESSAGE_BYTES 600u

typedef struct region_handle region_handle;

/* Where a tensor of the region is among a node's inputs or outputs; outputs that nobody reads are
 * nowhere. */
#define NOWHERE SIZE_MAX

typedef struct compiled_region {
    OrtNodeComputeInfo base; /* first, so that onnxruntime's pointer is one to the whole */
    const OrtApi *api;
    char *name; /* the node's, for messages */
    region_description description;
    byoc_blob *blobs;
    const byoc_driver *driver;
    size_t *input_positions, *output_positions;
    device_tensors *device;  /* of the session; NULL where nothing passes on the device */
    uint8_t *passed_inputs;  /* which inputs a region left on the device */
    size_t *output_readers;  /* of outputs that stay there; 0 for others */
    pthread_mutex_t lock; /* of `free_handles` */
    region_handle *free_handles;
} compiled_region;

/* Make a region from what its node holds. `*made` is NULL where there is no memory.
 *
 * Returns NULL, or a status; either way the region is to be released. */
OrtStatus *make_region(
    const OrtApi *api, const char *name, const uint8_t *bytes, size_t count, compiled_region **made
);

/* Read the files of a region, and open its first handle. Positions have been filled in. */
OrtStatus *open_compiled_region(compiled_region *region, int folder, const byoc_driver *driver);

/* Let the tensors of an opened region pass on the device, where some are marked so and its driver can.
 */
void use_device(compiled_region *region, device_tensors *device);

/* Close all handles, and free everything; NULL is allowed. */
void release_region(compiled_region *region);

/* Return a status with the message `byoc: NAME: WHAT: WHY`; `what` may be empty. */
OrtStatus *make_failure(const OrtApi *api, const char *name, const char *what, const char *why);

/* The same with the region's name. */
OrtStatus *fail_region(const compiled_region *region, const char *what, const char *why);

/* What a driver answered, as a status: its sentence, or the meaning of its answer. */
OrtStatus *fail_in_driver(const compiled_region *region, int answer, const char *why);

#endif
