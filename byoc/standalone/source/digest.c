/* The SHA-256 of some bytes (FIPS 180-4), by which model_check tells whether weights are as they were written. */
#include "kernels.h"

#include <string.h>

/* The first 32 bits behind the point of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u,
};

static uint32_t turn(uint32_t word, int bits) {
    return word >> bits | word << (32 - bits);
}

static void add_block(uint32_t state[8], const unsigned char *block) {
    uint32_t words[64], now[8];
    for (int i = 0; i < 16; i++) {
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t early = words[i - 15], late = words[i - 2];
        words[i] = words[i - 16] + (turn(early, 7) ^ turn(early, 18) ^ early >> 3) + words[i - 7] +
                   (turn(late, 17) ^ turn(late, 19) ^ late >> 10);
    }
    memcpy(now, state, sizeof now);
    for (int i = 0; i < 64; i++) {
        const uint32_t a = now[0], e = now[4];
        const uint32_t chosen = (e & now[5]) ^ (~e & now[6]);
        const uint32_t most = (a & now[1]) ^ (a & now[2]) ^ (now[1] & now[2]);
        const uint32_t one = now[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + chosen + constants[i] + words[i];
        const uint32_t other = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + most;
        memmove(now + 1, now, 7 * sizeof *now);
        now[4] += one;
        now[0] = one + other;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += now[i];
    }
}

void kernel_digest(const void *content, size_t bytes, unsigned char digest[32]) {
    /* Those of the square roots of the first 8 primes. */
    uint32_t state[8] = {
        0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u,
    };
    const unsigned char *from = content;
    unsigned char last[128] = {0};
    size_t left = bytes;
    for (; left >= 64; left -= 64, from += 64) {
        add_block(state, from);
    }
    memcpy(last, from, left);
    last[left] = 0x80;
    const size_t end = left < 56 ? 64 : 128;
    for (size_t i = 0; i < 8; i++) {
        last[end - 1 - i] = (unsigned char)((uint64_t)bytes * 8 >> 8 * i);
    }
    for (size_t i = 0; i < end; i += 64) {
        add_block(state, last + i);
    }
    for (int i = 0; i < 32; i++) {
        digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
    }
}
