"""Files of 32-bit words, such as programs of `dla`, that are nearly right."""

import random
import struct

import model_inputs

_INTERESTING = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    255,
    256,
    4096,
    2**16,
    2**20,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
)


def mutate_words(content: bytes, chance: random.Random) -> bytes:
    """Return bytes with some of their 32-bit words changed, moved or repeated; seldom single bytes."""
    if chance.random() < 0.1 or len(content) < 8:
        return model_inputs.mutate_bytes(content, chance)
    words = list(struct.unpack_from(f"<{len(content) // 4}I", content))
    for _ in range(1 + int(chance.expovariate(0.8))):
        at, other = chance.randrange(len(words)), chance.randrange(len(words))
        action = chance.random()
        if action < 0.35:
            words[at] = chance.choice(_INTERESTING)
        elif action < 0.55:
            words[at] = words[other]
        elif action < 0.8:
            words[at] = (words[at] + chance.choice((-4, -1, 1, 4, 16))) % 2**32
        elif action < 0.9:
            size = chance.choice((1, 11, 12, 24, 36))
            words[other:other] = words[at : at + size]
        elif len(words) > 12:
            del words[at : at + chance.choice((1, 11, 12, 24))]
        words = words or [0]
    return struct.pack(f"<{len(words)}I", *words) + content[len(content) // 4 * 4 :]
