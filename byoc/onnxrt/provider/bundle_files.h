/* What the provider reads from disk: files of a bundle, and drivers. POSIX; the only file that is. */
#ifndef BYOC_BUNDLE_FILES_H
#define BYOC_BUNDLE_FILES_H

#include "byoc_driver.h"
#include "sha256.h"

/* Open the folder of a file, for `read_bundle_file`. Returns -1 if it cannot be read. */
int open_folder_of(const char *path);

/* Open a folder, for `read_bundle_file`. Returns -1 if it cannot be read. */
int open_folder(const char *path);

void close_folder(int folder);

/* Read a file of a bundle into aligned memory that the caller frees. Returns NULL, or the end of a
 * sentence.
 *
 * The path leads from the folder down, with slashes, and over no link. The file must have this size and
 * hash.
 */
const char *read_bundle_file(
    int folder, const char *path, uint64_t bytes, const uint8_t digest[SHA256_BYTES], void **content
);

/* Return zeros that begin at an aligned address, NULL without memory; `free` gives them back. */
void *allocate_aligned(size_t bytes);

/* A driver that was loaded. */
typedef struct loaded_driver {
    void *library;
    const byoc_driver *table;
} loaded_driver;

/* Load the driver of a codegen. Returns NULL, or the end of a sentence. */
const char *load_driver(const char *path, const char *codegen, loaded_driver *driver);

void unload_driver(loaded_driver *driver);

#endif
