/* The description of a region, as an EPContext node holds it in `ep_cache_context`: in hexadecimal
 * digits, so that the attribute is a text for all who read models.
 *
 * docs/epcontext.md has its bytes. Whatever it holds is checked here: it may come from a stranger.
 */
#ifndef BYOC_REGION_DESCRIPTION_H
#define BYOC_REGION_DESCRIPTION_H

#include "byoc_driver.h"
#include "sha256.h"

/* A file of the artifact: its name there, its path from the model's folder, and what must be in it. */
typedef struct described_file {
    const char *name, *path;
    uint64_t bytes;
    uint8_t digest[SHA256_BYTES];
} described_file;

typedef struct region_description {
    const char *codegen, *region;
    size_t file_count, text_count, input_count, output_count;
    described_file *files;
    byoc_text *texts;
    byoc_tensor *inputs, *outputs;
    uint8_t *memory; /* a copy of the bytes, in which the texts are */
    int64_t *shapes;
} region_description;

/* Decode pairs of digits, in place. Returns the number of bytes, 0 if there is anything else. */
size_t decode_digits(char *digits, size_t count);

/* Read a description. Returns NULL, or the end of a sentence; either way it is to be freed. */
const char *read_description(const uint8_t *bytes, size_t count, region_description *description);

/* Free what a description holds; all zeros are allowed. */
void free_description(region_description *description);

/* Return the bytes of an element of one of ONNX's types, 0 for one that does not cross to a driver. */
size_t get_element_size(int32_t type);

#endif
