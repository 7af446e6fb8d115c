/* Kernels of the host that are in a program if it has such operators: functions of numbers, interpolation and LSTM. See
 * kernels.h. */
#include "kernels.h"

#include <math.h>
#include <string.h>

/* Return e to the power of a number, limited to what a float can be: 2 to a whole power times a short series, off by at
 * most 2e-7 of the result. There is no branch, so that compilers vectorize it. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float moved = x * 1.44269504f + 12582912.0f, whole = moved - 12582912.0f;
    const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f; /* ln 2 in two parts */
    float power, sum = 1 / 720.0f;
    sum = sum * rest + 1 / 120.0f;
    sum = sum * rest + 1 / 24.0f;
    sum = sum * rest + 1 / 6.0f;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1;
    sum = sum * rest + 1;
    uint32_t bits;
    memcpy(&bits, &moved, sizeof bits);
    bits = (bits - 0x4B400000u + 127u) << 23;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

static inline float logistic(float x) {
    return 1 / (1 + exponential(-x));
}

/* Near 0 a series of five terms, since the quotient would lose the last bits there. */
static inline float hyperbolic_tangent(float x) {
    const float size = fabsf(x), square = x * x, power = exponential(2 * size);
    float near = 62 / 2835.0f;
    near = near * square - 17 / 315.0f;
    near = near * square + 2 / 15.0f;
    near = near * square - 1 / 3.0f;
    near = near * square + 1;
    const float far = 1 - 2 / (power + 1);
    return size < 0.3f ? near * x : x < 0 ? -far : far;
}

void kernel_tanh(const kernel_rows *matrix, const float *x, float *y) {
    for (int64_t i = 0; i < (int64_t)matrix->rows * matrix->cols; i++) {
        y[i] = hyperbolic_tangent(x[i]);
    }
}

void kernel_sigmoid(const kernel_rows *matrix, const float *x, float *y) {
    for (int64_t i = 0; i < (int64_t)matrix->rows * matrix->cols; i++) {
        y[i] = logistic(x[i]);
    }
}

void kernel_interpolate(const kernel_resize *resize, const float *x, const int32_t *places, const float *shares,
                        float *y, float *scratch) {
    const int32_t rows = resize->out_rows, cols = resize->out_cols;
    const int32_t *col = places + (ptrdiff_t)2 * rows;
    const float *share = shares + (ptrdiff_t)2 * rows;
    for (int32_t plane = 0; plane < resize->planes; plane++, x += (ptrdiff_t)resize->in_rows * resize->in_cols) {
        for (int32_t row = 0; row < rows; row++, y += cols) {
            const float *above = x + (ptrdiff_t)places[row] * resize->in_cols;
            const float *below = x + (ptrdiff_t)places[rows + row] * resize->in_cols;
            for (int32_t i = 0; i < resize->in_cols; i++) {
                scratch[i] = shares[row] * above[i] + shares[rows + row] * below[i];
            }
            for (int32_t i = 0; i < cols; i++) {
                y[i] = share[i] * scratch[col[i]] + share[cols + i] * scratch[col[cols + i]];
            }
        }
    }
}

/* The states of one direction, and its gates: those of one step are [batch][4][hidden], in ONNX's order. */
typedef struct lstm_state {
    float *gates, *h, *c, *spare;
} lstm_state;

/* Take one step: `gates` are what the inputs add to them. */
static void step_lstm(const kernel_lstm *lstm, const float *r, const lstm_state *state, float *gates) {
    const int32_t hidden = lstm->hidden, width = 4 * hidden;
    const kernel_activation none = {0, -INFINITY, INFINITY};
    const kernel_product product = {1, lstm->batch, hidden, width, 0, 0, hidden, 0, 0, 1, width, 1, 1, 1, none};
    kernel_multiply(&product, state->h, r, gates, gates, state->spare);
    for (int32_t b = 0; b < lstm->batch; b++, gates += width) {
        float *h = state->h + (ptrdiff_t)b * hidden, *c = state->c + (ptrdiff_t)b * hidden;
        const kernel_rows three = {3, hidden}, one = {1, hidden};
        kernel_sigmoid(&three, gates, gates);
        kernel_tanh(&one, gates + (ptrdiff_t)3 * hidden, gates + (ptrdiff_t)3 * hidden);
        for (int32_t i = 0; i < hidden; i++) {
            c[i] = gates[2 * hidden + i] * c[i] + gates[i] * gates[3 * hidden + i];
        }
        kernel_tanh(&one, c, h);
        for (int32_t i = 0; i < hidden; i++) {
            h[i] *= gates[hidden + i];
        }
    }
}

/* Run one direction; its results lie `y_step` floats apart. */
static void run_direction(const kernel_lstm *lstm, int32_t reversed, const float *x, const float *w, const float *r,
                          const float *bias, const lstm_state *state, float *y, ptrdiff_t y_step) {
    const int32_t batch = lstm->batch, inputs = lstm->inputs, width = 4 * lstm->hidden;
    const kernel_activation none = {0, -INFINITY, INFINITY};
    const size_t made = (size_t)batch * (size_t)lstm->hidden * sizeof *y;
    for (int32_t done = 0; done < lstm->steps; done += KERNEL_STEPS) {
        const int32_t steps = lstm->steps - done < KERNEL_STEPS ? lstm->steps - done : KERNEL_STEPS;
        const int32_t first = reversed ? lstm->steps - done - steps : done;
        const kernel_product product = {1, steps * batch, inputs, width, 0, 0, inputs, 0, 0, 1, 0, 1, 1, 1, none};
        kernel_multiply(&product, x + (ptrdiff_t)first * batch * inputs, w, bias, state->gates, state->spare);
        for (int32_t i = 0; i < steps; i++) {
            const int32_t at = reversed ? steps - 1 - i : i;
            step_lstm(lstm, r, state, state->gates + (ptrdiff_t)at * batch * width);
            if (y) {
                memcpy(y + (first + at) * y_step, state->h, made);
            }
        }
    }
}

void kernel_run_lstm(const kernel_lstm *lstm, const float *x, const float *w, const float *r, const float *bias,
                     const float *first_h, const float *first_c, float *y, float *last_h, float *last_c,
                     float *scratch) {
    const ptrdiff_t cells = (ptrdiff_t)lstm->batch * lstm->hidden, width = (ptrdiff_t)4 * lstm->hidden;
    const size_t bytes = (size_t)cells * sizeof *scratch;
    const lstm_state state = {scratch + 2 * cells, scratch, scratch + cells,
                              scratch + 2 * cells + KERNEL_STEPS * lstm->batch * width};
    for (int32_t d = 0; d < lstm->directions; d++) {
        memset(scratch, 0, 2 * bytes);
        if (first_h) {
            memcpy(state.h, first_h + d * cells, bytes);
        }
        if (first_c) {
            memcpy(state.c, first_c + d * cells, bytes);
        }
        run_direction(lstm, d ? 1 : lstm->reversed, x, w + d * width * lstm->inputs, r + d * width * lstm->hidden,
                      bias + d * width, &state, y ? y + d * cells : NULL, lstm->directions * cells);
        if (last_h) {
            memcpy(last_h + d * cells, state.h, bytes);
        }
        if (last_c) {
            memcpy(last_c + d * cells, state.c, bytes);
        }
    }
}
