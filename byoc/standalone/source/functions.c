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

/* What one direction multiplies with, and the lengths of sequences. */
typedef struct lstm_weights {
    const float *w, *r, *bias, *peepholes;
    const int32_t *lengths;
} lstm_weights;

/* The states of one direction, and its gates: those of one step are [batch][4][hidden], in ONNX's order. */
typedef struct lstm_state {
    float *gates, *h, *c, *spare;
} lstm_state;

/* Limit the inputs of functions to what the LSTM says, of a gate. */
static void limit_gate(const kernel_lstm *lstm, float *gate) {
    for (int32_t i = 0; lstm->clip > 0 && i < lstm->hidden; i++) {
        const float value = gate[i] < -lstm->clip ? -lstm->clip : gate[i];
        gate[i] = value > lstm->clip ? lstm->clip : value;
    }
}

/* Add what a gate sees of the cells. */
static void add_cells(const kernel_lstm *lstm, const float *peephole, const float *c, float *gate) {
    for (int32_t i = 0; i < lstm->hidden; i++) {
        gate[i] += peephole[i] * c[i];
    }
}

/* Compute the states of one sequence behind a step of its gates: input, output, forget, cell. */
static void update_cells(const kernel_lstm *lstm, const float *peepholes, float *gates, float *h, float *c) {
    const int32_t hidden = lstm->hidden;
    const kernel_rows one = {1, hidden};
    float *out = gates + hidden, *forget = gates + (ptrdiff_t)2 * hidden, *cell = gates + (ptrdiff_t)3 * hidden;
    if (peepholes) {
        add_cells(lstm, peepholes, c, gates);
        add_cells(lstm, peepholes + (ptrdiff_t)2 * hidden, c, forget);
    }
    limit_gate(lstm, gates);
    limit_gate(lstm, forget);
    limit_gate(lstm, cell);
    kernel_sigmoid(&one, gates, gates);
    kernel_sigmoid(&one, forget, forget);
    kernel_tanh(&one, cell, cell);
    for (int32_t i = 0; i < hidden; i++) {
        c[i] = (lstm->input_forget ? 1 - gates[i] : forget[i]) * c[i] + gates[i] * cell[i];
    }
    if (peepholes) {
        add_cells(lstm, peepholes + hidden, c, out);
    }
    limit_gate(lstm, out);
    kernel_sigmoid(&one, out, out);
    kernel_tanh(&one, c, h);
    for (int32_t i = 0; i < hidden; i++) {
        h[i] *= out[i];
    }
}

/* Take one step: `gates` are what the inputs add to them. A sequence that has no such step keeps its states. */
static void step_lstm(const kernel_lstm *lstm, const lstm_weights *with, const lstm_state *state, int32_t step,
                      float *gates, float *y) {
    const int32_t hidden = lstm->hidden, width = 4 * hidden;
    const kernel_activation none = {0, -INFINITY, INFINITY};
    const kernel_product product = {1, lstm->batch, hidden, width, 0, 0, hidden, 0, 0, 1, width, 1, 1, 1, none};
    kernel_multiply(&product, state->h, with->r, gates, gates, state->spare, KERNEL_WHOLE);
    for (int32_t b = 0; b < lstm->batch; b++, gates += width) {
        float *h = state->h + (ptrdiff_t)b * hidden;
        const int32_t ended = with->lengths && step >= with->lengths[b];
        if (!ended) {
            update_cells(lstm, with->peepholes, gates, h, state->c + (ptrdiff_t)b * hidden);
        }
        if (y && ended) {
            memset(y + (ptrdiff_t)b * hidden, 0, (size_t)hidden * sizeof *y);
        } else if (y) {
            memcpy(y + (ptrdiff_t)b * hidden, h, (size_t)hidden * sizeof *y);
        }
    }
}

/* Run one direction; its results lie `y_step` floats apart. */
static void run_direction(const kernel_lstm *lstm, int32_t reversed, const float *x, const lstm_weights *with,
                          const lstm_state *state, float *y, ptrdiff_t y_step) {
    const int32_t batch = lstm->batch, inputs = lstm->inputs, width = 4 * lstm->hidden;
    const kernel_activation none = {0, -INFINITY, INFINITY};
    for (int32_t done = 0; done < lstm->steps; done += KERNEL_STEPS) {
        const int32_t steps = lstm->steps - done < KERNEL_STEPS ? lstm->steps - done : KERNEL_STEPS;
        const int32_t first = reversed ? lstm->steps - done - steps : done;
        const kernel_product product = {1, steps * batch, inputs, width, 0, 0, inputs, 0, 0, 1, 0, 1, 1, 1, none};
        kernel_multiply(&product, x + (ptrdiff_t)first * batch * inputs, with->w, with->bias, state->gates,
                        state->spare, KERNEL_WHOLE);
        for (int32_t i = 0; i < steps; i++) {
            const int32_t at = reversed ? steps - 1 - i : i;
            step_lstm(lstm, with, state, first + at, state->gates + (ptrdiff_t)at * batch * width,
                      y ? y + (first + at) * y_step : NULL);
        }
    }
}

void kernel_run_lstm(const kernel_lstm *lstm, const float *x, const float *w, const float *r, const float *bias,
                     const float *peepholes, const int32_t *lengths, const float *first_h, const float *first_c,
                     float *y, float *last_h, float *last_c, float *scratch) {
    const ptrdiff_t cells = (ptrdiff_t)lstm->batch * lstm->hidden, width = (ptrdiff_t)4 * lstm->hidden;
    const size_t bytes = (size_t)cells * sizeof *scratch;
    const lstm_state state = {scratch + 2 * cells, scratch, scratch + cells,
                              scratch + 2 * cells + KERNEL_STEPS * lstm->batch * width};
    for (int32_t d = 0; d < lstm->directions; d++) {
        const lstm_weights with = {w + d * width * lstm->inputs, r + d * width * lstm->hidden, bias + d * width,
                                   peepholes ? peepholes + (ptrdiff_t)d * 3 * lstm->hidden : NULL, lengths};
        memset(scratch, 0, 2 * bytes);
        if (first_h) {
            memcpy(state.h, first_h + d * cells, bytes);
        }
        if (first_c) {
            memcpy(state.c, first_c + d * cells, bytes);
        }
        run_direction(lstm, d ? 1 : lstm->reversed, x, &with, &state, y ? y + d * cells : NULL,
                      lstm->directions * cells);
        if (last_h) {
            memcpy(last_h + d * cells, state.h, bytes);
        }
        if (last_c) {
            memcpy(last_c + d * cells, state.c, bytes);
        }
    }
}
