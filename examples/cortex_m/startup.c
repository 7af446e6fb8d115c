/* The start of a program on a Cortex-M4: the vectors, and what is done before `main`.
 *
 * It takes newlib's librdimon for files and prints, by the debugger or the emulator ("semihosting"); the model needs
 * none of it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define COPROCESSORS ((volatile uint32_t *)(uintptr_t)0xE000ED88u) /* CPACR of the ARMv7-M manual */

extern unsigned char data_start[], data_end[], data_stored[], zero_start[], zero_end[], stack_top[];
extern void initialise_monitor_handles(void);
extern void _exit(int) __attribute__((noreturn));
int main(int count, char **arguments);
void _fini(void);
void reset(void);

/* What newlib's `exit` calls at last. */
void _fini(void) {
}

static void stop(void) {
    _exit(3);
}

void reset(void) {
    static char name[] = "model_test";
    static char *arguments[] = {name, NULL};
    *COPROCESSORS |= 0xFu << 20; /* the floating-point unit */
    __asm volatile("dsb\n\tisb");
    memcpy(data_start, data_stored, (size_t)(data_end - data_start));
    memset(zero_start, 0, (size_t)(zero_end - zero_start));
    initialise_monitor_handles();
    exit(main(1, arguments));
}

typedef union vector {
    void *stack;
    void (*handler)(void);
} vector;

/* The stack, the start, and the faults: NMI, hard, memory, bus, usage. */
__attribute__((section(".vectors"), used)) static const vector vectors[] = {
    {.stack = stack_top}, {.handler = reset}, {.handler = stop}, {.handler = stop},
    {.handler = stop},    {.handler = stop},  {.handler = stop},
};
