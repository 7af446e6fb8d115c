/* Gives the program of an exported model, byoc's main.c, many damaged files of weights and of samples.
 *
 *     sanitized_main WEIGHTS SAMPLE INPUTS SEED    built with -fsanitize=address,undefined
 *
 * The program runs in this process: where it opens a file it reads a damaged one, where it leaves it comes back
 * here, and what it allocated is freed. It must leave with 0, 1 or 2, and read and write nothing behind an end.
 */
#include <sanitizer/common_interface_defs.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BLOCKS = 64 };

typedef struct content {
    unsigned char *bytes;
    size_t count;
} content;

static content files[2];
static void *blocks[MOST_BLOCKS];
static size_t block_count;
static jmp_buf left;
static uint64_t state;

static void leave(int code) {
    longjmp(left, code + 1);
}

static FILE *open_damaged(const char *path, const char *mode) {
    const content *file = strcmp(path, "weights") == 0 ? &files[0] : strcmp(path, "sample") == 0 ? &files[1] : NULL;
    if (!file) {
        return fopen(path, mode);
    }
    return file->count ? fmemopen(file->bytes, file->count, mode) : NULL;
}

static void *note_block(void *block) {
    if (block_count == MOST_BLOCKS) {
        abort();
    }
    blocks[block_count++] = block;
    return block;
}

#define main program_main
#define exit leave
#define fopen open_damaged
#define malloc(bytes) note_block(malloc(bytes))
#include "main.c"
#undef main
#undef exit
#undef fopen
#undef malloc

static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (uint32_t)((state >> 16) % below) : 0;
}

static content read_whole(const char *path) {
    FILE *file = fopen(path, "rb");
    content whole = {NULL, 0};
    if (!file || fseek(file, 0, SEEK_END)) {
        exit(3);
    }
    whole.count = (size_t)ftell(file);
    whole.bytes = malloc(whole.count + 64);
    rewind(file);
    if (!whole.bytes || fread(whole.bytes, 1, whole.count, file) != whole.count) {
        exit(3);
    }
    fclose(file);
    return whole;
}

/* Return a copy with some bytes changed, or another length: shorter, or up to 64 bytes longer. */
static content damage(content whole) {
    content made = {malloc(whole.count + 64), whole.count};
    memset(made.bytes, 0, whole.count + 64);
    memcpy(made.bytes, whole.bytes, whole.count);
    for (uint32_t i = draw(4); i && whole.count; i--) {
        size_t place = draw(3) ? draw((uint32_t)(whole.count < 256 ? whole.count : 256)) : draw((uint32_t)whole.count);
        made.bytes[place] = draw(2) ? (unsigned char)draw(256) : (unsigned char)(draw(2) ? 255 : 127);
    }
    if (draw(4) == 0) {
        made.count = draw(2) ? draw((uint32_t)whole.count + 1) : whole.count + draw(65);
    }
    return made;
}

int main(int count, char **arguments) {
    if (count != 5) {
        return 3;
    }
    content whole[2] = {read_whole(arguments[1]), read_whole(arguments[2])};
    long inputs = strtol(arguments[3], NULL, 10), codes[3] = {0, 0, 0};
    state = strtoull(arguments[4], NULL, 10) * 2654435761u + 88172645463325252u;
    __sanitizer_set_report_fd((void *)(intptr_t)dup(2));
    FILE *quiet = freopen("/dev/null", "w", stderr);
    FILE *report = fdopen(dup(1), "w");
    if (!quiet || !report || !freopen("/dev/null", "w", stdout)) {
        return 3;
    }
    for (volatile long number = 0; number < inputs; number++) {
        for (int i = 0; i < 2; i++) {
            files[i] = damage(whole[i]);
        }
        char runs[] = "1", *words[] = {"model",    "--weights", "weights", "--sample",
                                       "sample",   "--runs",    runs,      NULL};
        int code = setjmp(left);
        code = code ? code - 1 : program_main(draw(8) ? 7 : (int)draw(8), words);
        if (code < 0 || code > 2) {
            return 4;
        }
        codes[code]++;
        while (block_count) {
            free(blocks[--block_count]);
        }
        free(files[0].bytes);
        free(files[1].bytes);
    }
    fprintf(report, "%ld right, %ld wrong, %ld refused\n", codes[0], codes[1], codes[2]);
    fclose(report);
    free(whole[0].bytes);
    free(whole[1].bytes);
    return codes[0] + codes[1] && codes[2] ? 0 : 5;
}
