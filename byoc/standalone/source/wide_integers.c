/* Kernels of the host on integers of 8 and 16 bits whose sums of products take 64 bits: a second form of functions of
 * integers.c and int_windows.c. See kernels.h. */
#include "kernels.h"

#define WIDE 1
#define kernel_convolve_int kernel_convolve_wide
#define kernel_convolve_depthwise_int kernel_convolve_depthwise_wide
#define kernel_multiply_int kernel_multiply_wide

#include "integers.c"

#include "int_windows.c"
