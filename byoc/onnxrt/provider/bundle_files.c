/* Files of a bundle, and drivers, by POSIX. */
#define _POSIX_C_SOURCE 200809L
#include "bundle_files.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_NAME 255u

int open_folder(const char *path) {
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int open_folder_of(const char *path) {
    const char *last = strrchr(path, '/');
    if (!last) {
        return open_folder(".");
    }
    size_t length = last == path ? 1 : (size_t)(last - path);
    char *folder = malloc(length + 1);
    if (!folder) {
        return -1;
    }
    memcpy(folder, path, length);
    folder[length] = 0;
    int opened = open_folder(folder);
    free(folder);
    return opened;
}

void close_folder(int folder) {
    if (folder >= 0) {
        close(folder);
    }
}

void *allocate_aligned(size_t bytes) {
    if (bytes > (size_t)PTRDIFF_MAX - BYOC_ALIGNMENT) {
        return NULL;
    }
    size_t rounded = (bytes / BYOC_ALIGNMENT + 1) * BYOC_ALIGNMENT;
    void *memory = aligned_alloc(BYOC_ALIGNMENT, rounded);
    if (memory) {
        memset(memory, 0, rounded);
    }
    return memory;
}

/* Open a file by its path from a folder, a part of the path at a time, so that no link leads out of it.
 * Returns -1 with errno set; EINVAL means a path that is not allowed. */
static int open_inside(int folder, const char *path) {
    int at = folder;
    for (;;) {
        size_t length = strcspn(path, "/");
        int is_last = path[length] == 0, next = -1;
        if (!length || length > MOST_NAME || (length <= 2 && strspn(path, ".") >= length) ||
            memchr(path, '\\', length)) {
            errno = EINVAL;
        } else {
            char name[MOST_NAME + 1];
            memcpy(name, path, length);
            name[length] = 0;
            next = openat(
                at, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | (is_last ? 0 : O_DIRECTORY)
            );
        }
        int error = errno;
        if (at != folder) {
            close(at);
        }
        errno = error;
        if (next < 0 || is_last) {
            return next;
        }
        at = next;
        path += length + 1;
    }
}

static const char *read_opened(
    int file, uint64_t bytes, const uint8_t digest[SHA256_BYTES], void **content
) {
    struct stat found;
    uint8_t actual[SHA256_BYTES];
    if (fstat(file, &found) || !S_ISREG(found.st_mode)) {
        return "it is no file";
    }
    if (found.st_size < 0 || (uint64_t)found.st_size != bytes) {
        return "it is not as it was written: its size differs";
    }
    uint8_t *memory = bytes > SIZE_MAX ? NULL : allocate_aligned((size_t)bytes);
    if (!memory) {
        return "there is no memory left";
    }
    for (size_t done = 0; done < bytes;) {
        ssize_t count = read(file, memory + done, (size_t)bytes - done);
        if (count <= 0) {
            if (count < 0 && errno == EINTR) {
                continue;
            }
            free(memory);
            return "it cannot be read";
        }
        done += (size_t)count;
    }
    sha256(memory, (size_t)bytes, actual);
    if (memcmp(actual, digest, SHA256_BYTES) != 0) {
        free(memory);
        return "it is not as it was written: its hash differs";
    }
    *content = memory;
    return NULL;
}

const char *read_bundle_file(
    int folder, const char *path, uint64_t bytes, const uint8_t digest[SHA256_BYTES], void **content
) {
    *content = NULL;
    int file = open_inside(folder, path);
    if (file < 0) {
        switch (errno) {
        case EINVAL: return "its path leads out of the bundle";
        case ELOOP: return "it is a link";
        case ENOENT:
        case ENOTDIR: return "it is missing, or behind a link";
        default: return "it cannot be opened";
        }
    }
    const char *wrong = read_opened(file, bytes, digest, content);
    close(file);
    return wrong;
}

static const char *check_table(const byoc_driver *table, const char *codegen) {
    if (!table) {
        return "its driver has no table for version 1 or 2 of byoc_driver.h";
    }
    if (table->struct_size < sizeof *table || table->abi_version < BYOC_ABI_VERSION ||
        table->abi_version > BYOC_ABI_VERSION_2) {
        return "its table is not of version 1 or 2 of byoc_driver.h";
    }
    if (!table->name || !table->compatible || !table->arena_size || !table->open || !table->run ||
        !table->close || !table->error) {
        return "its table lacks a function";
    }
    return strcmp(table->name, codegen) ? "its driver is for another codegen" : NULL;
}

const char *load_driver(const char *path, const char *codegen, loaded_driver *driver) {
    const byoc_driver *(*get)(uint32_t);
    driver->library = NULL;
    driver->table = NULL;
    if (path[0] != '/') {
        return "it must be an absolute path";
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        int is_missing = access(path, F_OK) && (errno == ENOENT || errno == ENOTDIR);
        return is_missing ? "there is no such file" : "it is no library that can be loaded";
    }
    const void *symbol = dlsym(library, "byoc_get_driver");
    const char *wrong = "it is no driver: it has no byoc_get_driver";
    if (symbol) {
        memcpy(
            &get, &symbol, sizeof get
        ); /* ISO C has no conversion between the two kinds of pointers */
        driver->table = get(BYOC_ABI_VERSION_2);
        driver->table = driver->table ? driver->table : get(BYOC_ABI_VERSION);
        wrong = check_table(driver->table, codegen);
    }
    if (wrong) {
        dlclose(library);
        driver->table = NULL;
        return wrong;
    }
    driver->library = library;
    return NULL;
}

void unload_driver(loaded_driver *driver) {
    if (driver->library) {
        dlclose(driver->library);
    }
    driver->library = NULL;
    driver->table = NULL;
}
