/* Tensors that pass from one region to the next on the device, without onnxruntime's memory.
 *
 * onnxruntime allocates each tensor in its own memory, and knows nothing of others. So a region that
 * leaves an output in a buffer of its driver notes the buffer under the address that onnxruntime gave
 * the output, and the regions that read it find it there: onnxruntime gives an address to no other
 * tensor before its last reader has ended. Nothing is written to the address. Which tensors pass so is
 * decided when a model is loaded (passed_tensors.h): those that no one else reads.
 *
 * One table serves a session, whose regions run on several threads.
 */
#ifndef BYOC_DEVICE_TENSORS_H
#define BYOC_DEVICE_TENSORS_H

#include "byoc_driver.h"

typedef struct device_tensors device_tensors;

/* Return an empty table, NULL without memory. */
device_tensors *make_device_tensors(void);

/* Close all buffers, and free the table; NULL is allowed. */
void release_device_tensors(device_tensors *table);

/* Return whether tensors can pass on the device of a driver. */
int can_pass_tensors(const byoc_driver *driver);

/* Take a buffer that is free, or open one. Returns NULL where the device has no memory left. */
byoc_buffer *take_buffer(device_tensors *table, const byoc_driver *driver, size_t bytes);

/* Give a buffer back that `take_buffer` gave; NULL is allowed. */
void give_buffer(device_tensors *table, byoc_buffer *buffer);

/* Note where a tensor is that has an address and so many readers. `buffer` is NULL for one that lies at
 * its address. Returns 0 without memory. */
int note_tensor(device_tensors *table, const void *address, byoc_buffer *buffer, size_t readers);

/* Find a tensor by its address. Returns 0 where there is none. */
int find_tensor(device_tensors *table, const void *address, byoc_buffer **buffer);

/* Forget a tensor when its last reader has ended, and free its buffer. */
void end_reading(device_tensors *table, const void *address);

#endif
