/* The weights as a part of the program. */
    .section .rodata
    .balign 64
    .globl model_weights
model_weights:
    .incbin "weights.bin"
#if defined(__linux__) && defined(__ELF__)
    .section .note.GNU-stack,"",%progbits
#endif
