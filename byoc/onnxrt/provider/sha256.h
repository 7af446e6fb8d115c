/* SHA-256 as in FIPS 180-4. */
#ifndef BYOC_SHA256_H
#define BYOC_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define SHA256_BYTES 32u

/* Write the digest of some bytes. */
void sha256(const uint8_t *bytes, size_t count, uint8_t digest[SHA256_BYTES]);

#endif
