/* Kernels of the host that normalize rows. See kernels.h. */
#include "kernels.h"

#include <math.h>

#define LANES 16 /* partial sums: one sum of thousands of numbers would be off by many roundings */

void kernel_softmax(const kernel_rows *matrix, const float *x, float *y) {
    const int32_t cols = matrix->cols;
    for (int32_t row = 0; row < matrix->rows; row++, x += cols, y += cols) {
        float most = -INFINITY, sums[LANES] = {0}, sum = 0;
        for (int32_t i = 0; i < cols; i++) {
            most = x[i] > most ? x[i] : most;
        }
        for (int32_t i = 0; i < cols; i++) {
            y[i] = expf(x[i] - most);
            sums[i % LANES] += y[i];
        }
        for (int32_t lane = 0; lane < LANES; lane++) {
            sum += sums[lane];
        }
        for (int32_t i = 0; i < cols; i++) {
            y[i] /= sum;
        }
    }
}
