/* Kernels of the host on integers of 8 and 16 bits, with exact sums of 32 bits. See kernels.h.
 *
 * Convolutions and products share one loop: elements become numbers of 16 bits, less their zero points, and are
 * multiplied in pairs of neighbours along the depth, which x86 adds up in one instruction. Elsewhere it is plain C.
 * `wide_integers.c` makes the same functions of this text for numbers of 32 bits and sums of 64.
 */
#include "rounding.h"

#if LANES == 8
#define TILE_ROWS 6
#elif LANES == 4
#define TILE_ROWS 2
#else
#define TILE_ROWS 4
#endif

/* Widen a row of `depth` elements, a 0 behind an odd one. */
static void widen_row(const void *elements, int32_t depth, kernel_integer type, int32_t zero, number *restrict to) {
    const byte *restrict from = elements, changed = (byte)type.flip;
    const number less = (number)zero;
    if (type.bits > 8) {
        for (int32_t k = 0; k < depth; k++) {
            to[k] = (number)((((const uint16_t *)elements)[k] ^ type.flip) - zero);
        }
    } else if (type.flip == 128 && zero == 128) { /* int8 as it is */
        for (int32_t k = 0; k < depth; k++) {
            to[k] = ((const signed char *)from)[k];
        }
    } else {
        for (int32_t k = 0; k < depth; k++) {
            to[k] = (number)((number)(byte)(from[k] ^ changed) - less);
        }
    }
    if (depth % 2) {
        to[depth] = 0;
    }
}

/* Write two rows of 16 elements as pairs. */
INLINE void write_pairs(const void *evens, const void *odds, kernel_integer type, int32_t zero, number *to) {
    const byte *even = evens, *odd = odds, flip = (byte)type.flip;
    if (type.bits > 8) {
        for (int32_t i = 0; i < WIDTH; i++) {
            to[2 * i] = (number)((((const uint16_t *)evens)[i] ^ type.flip) - zero);
            to[2 * i + 1] = (number)((((const uint16_t *)odds)[i] ^ type.flip) - zero);
        }
        return;
    }
#if LANES > 1
    const __m128i changed = _mm_set1_epi8((char)flip);
    const __m128i one = _mm_xor_si128(_mm_loadu_si128((const void *)even), changed);
    const __m128i other = _mm_xor_si128(_mm_loadu_si128((const void *)odd), changed);
    const __m128i low = _mm_unpacklo_epi8(one, other), high = _mm_unpackhi_epi8(one, other);
#if LANES == 8
    const lanes wide[2] = {_mm256_cvtepu8_epi16(low), _mm256_cvtepu8_epi16(high)};
#else
    const __m128i none = _mm_setzero_si128();
    const lanes wide[4] = {_mm_unpacklo_epi8(low, none), _mm_unpackhi_epi8(low, none),
                           _mm_unpacklo_epi8(high, none), _mm_unpackhi_epi8(high, none)};
#endif
    for (int32_t v = 0; v < VECS; v++) {
        const lanes moved = SUB_SHORTS(wide[v], REPEAT_SHORT((int16_t)zero));
        memcpy(to + (ptrdiff_t)v * 2 * LANES, &moved, sizeof moved);
    }
#else
    for (int32_t i = 0; i < WIDTH; i++) {
        to[2 * i] = (number)((even[i] ^ flip) - zero);
        to[2 * i + 1] = (number)((odd[i] ^ flip) - zero);
    }
#endif
}

#ifdef HAS_SMLAD
/* Add up two rows of a, or one, times 4 columns of pairs: as many sums as registers hold. */
INLINE void add_pairs(int32_t rows, int32_t pairs, const int16_t *a, ptrdiff_t a_row, const int16_t *b, int32_t *sums) {
    const int16_t *const end = a + 2 * pairs;
    int32_t one[4] = {0}, two[4] = {0};
    for (; a < end; a += 2, b += 2 * WIDTH) {
        int32_t left[2], right;
        memcpy(left, a, sizeof *left);
        memcpy(left + 1, rows > 1 ? a + a_row : a, sizeof *left);
        UNROLLED
        for (int32_t i = 0; i < 4; i++) { /* one by one: an array that is copied passes through memory */
            memcpy(&right, b + 2 * i, sizeof right);
            one[i] = __smlad(left[0], right, one[i]);
            if (rows > 1) {
                two[i] = __smlad(left[1], right, two[i]);
            }
        }
    }
    UNROLLED
    for (int32_t i = 0; i < 4; i++) {
        sums[i] = one[i];
        if (rows > 1) {
            sums[WIDTH + i] = two[i];
        }
    }
}
#endif

/* Add up `rows` rows of a, a constant where this is called, times 16 columns of pairs. */
INLINE void add_tile(int32_t rows, int32_t pairs, const number *a, ptrdiff_t a_row, const number *b,
                     accumulator sums[TILE_ROWS][WIDTH]) {
#if LANES > 1
    lanes made[TILE_ROWS][VECS];
    UNROLLED
    for (int32_t r = 0; r < rows; r++) {
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            memset(&made[r][v], 0, sizeof made[r][v]);
        }
    }
    for (int32_t k = 0; k < pairs; k++, a += 2, b += 2 * WIDTH) {
        lanes columns[VECS];
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            memcpy(&columns[v], b + (ptrdiff_t)v * 2 * LANES, sizeof columns[v]);
        }
        UNROLLED
        for (int32_t r = 0; r < rows; r++) {
            int32_t pair;
            memcpy(&pair, a + r * a_row, sizeof pair);
            UNROLLED
            for (int32_t v = 0; v < VECS; v++) {
                made[r][v] = ADD_PAIRS(made[r][v], REPEAT(pair), columns[v]);
            }
        }
    }
    UNROLLED
    for (int32_t r = 0; r < rows; r++) {
        UNROLLED
        for (int32_t v = 0; v < VECS; v++) {
            memcpy(&sums[r][v * LANES], &made[r][v], sizeof made[r][v]);
        }
    }
#elif defined(HAS_SMLAD)
    for (int32_t r = 0; r < rows; r += 2) {
        for (int32_t i = 0; i < WIDTH; i += 4) {
            add_pairs(rows - r, pairs, a + r * a_row, a_row, b + (ptrdiff_t)2 * i, &sums[r][i]);
        }
    }
#else
    for (int32_t r = 0; r < rows; r++) {
        accumulator made[WIDTH] = {0};
        const number *left = a + r * a_row, *right = b;
        for (int32_t k = 0; k < pairs; k++, left += 2, right += 2 * WIDTH) {
            for (int32_t i = 0; i < WIDTH; i++) {
                made[i] += (accumulator)left[0] * right[2 * i] + (accumulator)left[1] * right[2 * i + 1];
            }
        }
        memcpy(sums[r], made, sizeof made);
    }
#endif
}

/* Return how many of so many rows are computed at once: each number is a function of its own. */
static int32_t choose_rows(int32_t left) {
    int32_t rows = TILE_ROWS;
    while (rows > left) {
        rows = rows > 2 ? rows - 2 : 1;
    }
    return rows;
}

static void add_rows(int32_t rows, int32_t pairs, const number *a, const number *b,
                     accumulator sums[TILE_ROWS][WIDTH]) {
    if (rows == TILE_ROWS) {
        add_tile(TILE_ROWS, pairs, a, 2 * pairs, b, sums);
#if TILE_ROWS > 4
    } else if (rows == 4) {
        add_tile(4, pairs, a, 2 * pairs, b, sums);
#endif
#if TILE_ROWS > 2
    } else if (rows == 2) {
        add_tile(2, pairs, a, 2 * pairs, b, sums);
#endif
    } else {
        add_tile(1, pairs, a, 2 * pairs, b, sums);
    }
}

/* A block of a product: `rows` rows of elements, `a_row` apart, times `tiles` of 16 columns of pairs. Channels are the
 * rows, or with `by_column` the columns. */
typedef struct int_block {
    int32_t rows, depth, cols, zeros;
    kernel_integer type;
    const void *a, *zero;
    const number *panel;
    number *wide;
    byte *c;
    ptrdiff_t a_row, c_row;
    const kernel_rounding *rounding;
    const int32_t *bias;
    const float *scales, *offsets;
    int32_t channel, by_column;
} int_block;

/* What sums become: of each column, or of one row. */
typedef struct line_rounding {
    int32_t biases[WIDTH];
    float scales[WIDTH], offsets[WIDTH];
} line_rounding;

/* Read the rounding of a channel, or with `several` of 16 channels, of which `count` are. */
static void read_rounding(const int_block *it, int32_t channel, int32_t several, int32_t count, line_rounding *to) {
    const int32_t step = it->rounding->step * several, at = it->rounding->step * channel;
    for (int32_t i = 0; i < WIDTH; i++) {
        const int32_t last = i < count ? i : 0;
        to->biases[i] = it->bias ? it->bias[channel + several * last] : 0;
        to->scales[i] = it->scales ? it->scales[at + step * last] : 0;
        to->offsets[i] = it->offsets ? it->offsets[at + step * last] : 0;
    }
}

INLINE void store_line(const int_block *it, const limits *within, const accumulator *sums, const line_rounding *with,
                       int32_t row, int32_t col) {
    const int32_t width = least(WIDTH, it->cols - col), size = it->rounding->bits / 8;
    byte *c = it->c + (row * it->c_row + col) * size;
    if (size > 2) {
        memcpy(c, sums, (size_t)width * sizeof *sums);
        return;
    }
#if LANES > 1
    if (size > 1) {
        float shorts[WIDTH];
        for (int32_t i = 0; i < WIDTH; i++) {
            shorts[i] = (float)(sums[i] + with->biases[i]) * with->scales[i] + with->offsets[i];
        }
        round_shorts(it->rounding, shorts, width, c);
        return;
    }
    reals values[VECS];
    UNROLLED
    for (int32_t v = 0; v < VECS; v++) {
        lanes sum, bias;
        memcpy(&sum, sums + (ptrdiff_t)v * LANES, sizeof sum);
        memcpy(&bias, with->biases + (ptrdiff_t)v * LANES, sizeof bias);
        const reals scaled = REAL(mul)(TO_REALS(ADD_LANES(sum, bias)), REAL(loadu)(with->scales + (ptrdiff_t)v * LANES));
        values[v] = REAL(add)(scaled, REAL(loadu)(with->offsets + (ptrdiff_t)v * LANES));
    }
    if (width == WIDTH) {
        store_reals(within, values, c);
    } else {
        byte made[WIDTH];
        store_reals(within, values, made);
        copy_bytes(c, made, width % WIDTH); /* The remainder tells compilers that `made` is long enough. */
    }
#else
    float values[WIDTH];
    for (int32_t i = 0; i < WIDTH; i++) {
        values[i] = (float)(sums[i] + with->biases[i]) * with->scales[i] + with->offsets[i];
    }
    round_some(it->rounding, within, values, width, c);
#endif
}

static void multiply_block(const int_block *it) {
    const int32_t pairs = (it->depth + 1) / 2;
    const limits within = find_limits(it->rounding);
    line_rounding with[TILE_ROWS];
    for (int32_t row = 0; row < it->rows;) {
        const int32_t rows = choose_rows(it->rows - row);
        for (int32_t r = 0; r < rows; r++) {
            const int32_t zero = read_zero(it->zero, it->zeros * (it->channel + row + r), it->type);
            const void *from = skip(it->a, (row + r) * it->a_row, it->type);
            widen_row(from, it->depth, it->type, zero, it->wide + r * 2 * pairs);
            if (!it->by_column) {
                read_rounding(it, it->channel + row + r, 0, WIDTH, &with[r]);
            }
        }
        for (int32_t col = 0; col < it->cols; col += WIDTH) {
            const number *b = it->panel + (ptrdiff_t)col * 2 * pairs;
            accumulator sums[TILE_ROWS][WIDTH];
            if (it->by_column) {
                read_rounding(it, col, 1, least(WIDTH, it->cols - col), &with[0]);
            }
            add_rows(rows, pairs, it->wide, b, sums);
            for (int32_t r = 0; r < rows; r++) {
                store_line(it, &within, sums[r], &with[it->by_column ? 0 : r], row + r, col);
            }
        }
        row += rows;
    }
}

/* The places of a window, and those that the next ones are read for. */
typedef struct window_place {
    int32_t channel, row, col;
} window_place;

/* Copy `count` elements, every `stride`-th. */
INLINE void copy_some(const void *from, int32_t bits, int32_t stride, int32_t count, void *restrict to) {
    if (stride == 1) {
        copy_bytes(to, from, count * (bits / 8));
    } else if (bits > 8) {
        for (int32_t i = 0; i < count; i++) {
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[i * stride];
        }
    } else if (stride == 2) {
        for (int32_t i = 0; i < count; i++) {
            ((byte *)to)[i] = ((const byte *)from)[2 * i];
        }
    } else {
        for (int32_t i = 0; i < count; i++) {
            ((byte *)to)[i] = ((const byte *)from)[i * stride];
        }
    }
}

/* Write an element `count` times. */
INLINE void repeat(int32_t element, int32_t bits, int32_t count, void *to) {
    if (bits > 8) {
        for (int32_t i = 0; i < count; i++) {
            ((uint16_t *)to)[i] = (uint16_t)element;
        }
    } else {
        for (int32_t i = 0; i < count; i++) {
            ((byte *)to)[i] = (byte)element;
        }
    }
}

/* Copy `count` pixels of a row of the image from `col` on, every `stride`-th; outside of it is `zero`. */
INLINE void gather_row(const byte *line, int32_t bits, int32_t in_cols, int32_t col, int32_t stride, int32_t count,
                       int32_t zero, byte *to) {
    const ptrdiff_t size = bits / 8;
    int32_t before = col < 0 ? -col : 0, end = in_cols - col;
    if (stride > 1) {
        before = (before + stride - 1) / stride;
        end = end < 1 ? 0 : (end - 1) / stride + 1;
    }
    before = least(before, count);
    end = end < before ? before : least(end, count);
    repeat(zero, bits, before, to);
    if (before < end) {
        copy_some(line + (col + before * stride) * size, bits, stride, end - before, to + before * size);
    }
    repeat(zero, bits, count - end, to + end * size);
}

/* Copy `count` pixels from a row and column of the result on, for one place of the window. */
static void gather_pixels(const kernel_int_conv *it, const byte *x, window_place place, int32_t row, int32_t col,
                          int32_t count, int32_t zero, byte *restrict to) {
    const kernel_conv *conv = &it->conv;
    const kernel_window *window = &conv->window;
    const int32_t bits = it->x.bits, size = bits / 8;
    const byte *plane = skip(x, (ptrdiff_t)place.channel * conv->in_rows * conv->in_cols, it->x);
    const int32_t down = place.row * window->row_dilation - window->top;
    const int32_t across = place.col * window->col_dilation - window->left;
    while (count > 0) {
        const int32_t many = least(conv->out_cols - col, count), in_row = row * window->row_stride + down;
        if (in_row < 0 || in_row >= conv->in_rows) {
            repeat(zero, bits, many, to);
        } else if (bits > 8) {
            gather_row(plane + (ptrdiff_t)in_row * conv->in_cols * 2, 16, conv->in_cols,
                       col * window->col_stride + across, window->col_stride, many, zero, to);
        } else {
            gather_row(plane + (ptrdiff_t)in_row * conv->in_cols, 8, conv->in_cols,
                       col * window->col_stride + across, window->col_stride, many, zero, to);
        }
        to += many * size;
        count -= many;
        row++;
        col = 0;
    }
}

static int is_pointwise(const kernel_conv *conv) {
    const kernel_window *w = &conv->window;
    return w->rows == 1 && w->cols == 1 && w->row_stride == 1 && w->col_stride == 1 && !w->top && !w->left &&
           conv->in_rows == conv->out_rows && conv->in_cols == conv->out_cols;
}

/* Write what the windows of `cols` pixels read as tiles of pairs. */
static void gather_panel(const kernel_int_conv *it, const byte *x, int32_t zero, int32_t pixel, int32_t cols,
                         number *panel) {
    const kernel_conv *conv = &it->conv;
    const int32_t size = it->x.bits / 8, depth = conv->in_channels * conv->window.rows * conv->window.cols;
    const int32_t pixels = conv->out_rows * conv->out_cols, pointwise = is_pointwise(conv);
    const int32_t row = pixel / conv->out_cols, col = pixel % conv->out_cols;
    const int32_t less = zero ^ it->x.flip;
    window_place place = {0, 0, 0};
    uint16_t room[2][KERNEL_COLUMNS];
    byte *const lines[2] = {(byte *)room[0], (byte *)room[1]};
    repeat(zero, it->x.bits, KERNEL_COLUMNS, lines[0]);
    repeat(zero, it->x.bits, KERNEL_COLUMNS, lines[1]);
    for (int32_t k = 0; k < depth; k += 2) {
        const byte *from[2] = {lines[0], lines[1]};
        for (int32_t half = 0; half < 2; half++) {
            const byte *plane = x + ((ptrdiff_t)(k + half) * pixels + pixel) * size; /* if pointwise */
            if (k + half >= depth) {
                repeat(zero, it->x.bits, KERNEL_COLUMNS, lines[half]);
            } else if (pointwise && cols % WIDTH == 0) {
                from[half] = plane;
            } else if (pointwise) {
                copy_bytes(lines[half], plane, cols * size);
            } else {
                gather_pixels(it, x, place, row, col, cols, zero, lines[half]);
                place.col = place.col + 1 == conv->window.cols ? 0 : place.col + 1;
                place.row += place.col == 0;
                if (place.row == conv->window.rows) {
                    place.row = 0;
                    place.channel++;
                }
            }
        }
        for (int32_t at = 0; at < cols; at += WIDTH) {
            write_pairs(from[0] + (ptrdiff_t)at * size, from[1] + (ptrdiff_t)at * size, it->x, less,
                        panel + (ptrdiff_t)at * (depth + depth % 2) + (ptrdiff_t)k * WIDTH);
        }
    }
}

/* The columns of a block: many where the depth is small, since rows are widened once for each block. */
static int32_t count_columns(int32_t depth) {
    return depth > 4 * KERNEL_DEPTH ? WIDTH : depth > KERNEL_DEPTH ? 2 * WIDTH : KERNEL_COLUMNS;
}

void kernel_convolve_int(const kernel_int_conv *it, const void *x, const void *x_zero, const void *weights,
                         const void *weight_zeros, const int32_t *bias, const float *scales, const float *offsets,
                         void *y, void *scratch, kernel_share share) {
    const kernel_conv *conv = &it->conv;
    const int32_t depth = conv->in_channels * conv->window.rows * conv->window.cols, even = depth + depth % 2;
    const int32_t pixels = conv->out_rows * conv->out_cols, most = count_columns(depth);
    const int32_t zero = read_zero(x_zero, 0, it->x) ^ it->x.flip, size = it->rounding.bits / 8;
    const ptrdiff_t in_group = (ptrdiff_t)conv->in_channels * conv->in_rows * conv->in_cols;
    const int32_t blocks = (pixels + most - 1) / most, all = conv->images * conv->groups * blocks;
    const int by_blocks = kernel_prefers_blocks(all, conv->out_channels, share.count);
    const kernel_range own = kernel_take(all, 1, by_blocks ? share : KERNEL_WHOLE);
    const kernel_range channels = kernel_take(conv->out_channels, KERNEL_ROWS, by_blocks ? KERNEL_WHOLE : share);
    number *panel = (number *)scratch + (ptrdiff_t)TILE_ROWS * even;
    int_block block = {0};
    block.rows = channels.end - channels.first;
    block.depth = depth;
    block.type = it->weight;
    block.zero = weight_zeros;
    block.zeros = it->zeros;
    block.panel = panel;
    block.wide = scratch;
    block.a_row = depth;
    block.c_row = pixels;
    block.rounding = &it->rounding;
    block.bias = bias;
    block.scales = scales;
    block.offsets = offsets;
    for (int32_t block_number = own.first; block.rows && block_number < own.end; block_number++) {
        const int32_t at = block_number / blocks, pixel = block_number % blocks * most;
        const ptrdiff_t plane = (ptrdiff_t)at * conv->out_channels + channels.first;
        block.channel = at % conv->groups * conv->out_channels + channels.first;
        block.a = skip(weights, (ptrdiff_t)block.channel * depth, it->weight);
        block.cols = least(most, pixels - pixel);
        block.c = (byte *)y + (plane * pixels + pixel) * size;
        gather_panel(it, skip(x, at * in_group, it->x), zero, pixel, block.cols, panel);
        multiply_block(&block);
    }
}

/* Write columns of b as tiles of pairs. */
static void copy_panel(const kernel_int_product *it, const void *b, const void *zeros, int32_t first, int32_t cols,
                       number *panel) {
    for (int32_t col = 0; col < cols; col += WIDTH) {
        const int32_t width = least(WIDTH, cols - col);
        int32_t zero[WIDTH] = {0};
        for (int32_t i = 0; i < width; i++) {
            zero[i] = read_zero(zeros, it->b_zeros * (first + col + i), it->b);
        }
        for (int32_t k = 0; k < it->depth; k += 2, panel += 2 * WIDTH) {
            for (int32_t half = 0; half < 2; half++) {
                const byte *from = skip(b, (ptrdiff_t)(k + half) * it->b_row + (ptrdiff_t)col * it->b_col, it->b);
                const int32_t many = k + half < it->depth ? width : 0;
                if (many == WIDTH && it->b_col == 1 && it->b.bits == 8) {
                    for (int32_t i = 0; i < WIDTH; i++) {
                        panel[2 * i + half] = (number)((from[i] ^ it->b.flip) - zero[i]);
                    }
                    continue;
                }
                for (int32_t i = 0; i < many; i++) {
                    panel[2 * i + half] = (number)(read_element(from, (ptrdiff_t)i * it->b_col, it->b) - zero[i]);
                }
                for (int32_t i = many; i < WIDTH; i++) {
                    panel[2 * i + half] = 0;
                }
            }
        }
    }
}

/* Return the sum of a row's products with a column that lies as rows do. */
static accumulator multiply_column(const number *a, const void *b, int32_t depth, kernel_integer type, int32_t zero) {
    const byte *from = b, flip = (byte)type.flip;
    const number less = (number)zero;
    accumulator sum = 0;
    if (type.bits > 8) {
        for (int32_t k = 0; k < depth; k++) {
            sum += (accumulator)a[k] * ((((const uint16_t *)b)[k] ^ type.flip) - zero);
        }
        return sum;
    }
    for (int32_t k = 0; k < depth; k++) {
        const number right = (number)((number)(byte)(from[k] ^ flip) - less);
        sum += (accumulator)a[k] * right;
    }
    return sum;
}

/* Multiply few rows by columns of b that lie as rows do. */
static void multiply_rows(const kernel_int_product *it, const int_block *block, const void *b, const void *b_zeros,
                          kernel_range own) {
    const limits within = find_limits(block->rounding);
    for (int32_t row = 0; row < it->rows; row++) {
        widen_row(skip(block->a, row * block->a_row, it->a), it->depth, it->a,
                  read_zero(block->zero, block->zeros * row, it->a), block->wide);
        for (int32_t col = own.first; col < own.end; col += WIDTH) {
            const int32_t width = least(WIDTH, it->cols - col);
            accumulator sums[WIDTH] = {0};
            line_rounding with;
            read_rounding(block, col, 1, width, &with);
            for (int32_t i = 0; i < width; i++) {
                const int32_t zero = read_zero(b_zeros, it->b_zeros * (col + i), it->b);
                sums[i] = multiply_column(block->wide, skip(b, (ptrdiff_t)(col + i) * it->b_col, it->b), it->depth,
                                          it->b, zero);
            }
            store_line(block, &within, sums, &with, row, col);
        }
    }
}

/* Multiply few rows in each of the products. */
static void multiply_few(const kernel_int_product *it, int_block *block, const void *b, const void *b_zeros,
                         kernel_range own) {
    const ptrdiff_t made = (ptrdiff_t)it->rows * it->cols * (it->rounding.bits / 8);
    block->cols = it->cols;
    for (int32_t batch = 0; batch < it->count; batch++) {
        multiply_rows(it, block, b, b_zeros, own);
        block->a = skip(block->a, it->a_batch, it->a);
        block->c += made;
        b = skip(b, it->b_batch, it->b);
    }
}

void kernel_multiply_int(const kernel_int_product *it, const void *a, const void *a_zeros, const void *b,
                         const void *b_zeros, const int32_t *bias, const float *scales, const float *offsets,
                         void *c, void *scratch, kernel_share share) {
    const int32_t even = it->depth + it->depth % 2, most = count_columns(it->depth), size = it->rounding.bits / 8;
    const int32_t blocks = (it->cols + most - 1) / most;
    const int by_blocks = kernel_prefers_blocks(it->count * blocks, it->rows, share.count);
    const kernel_range own = kernel_take(it->count * blocks, 1, by_blocks ? share : KERNEL_WHOLE);
    const kernel_range rows = kernel_take(it->rows, KERNEL_ROWS, by_blocks ? KERNEL_WHOLE : share);
    number *panel = (number *)scratch + (ptrdiff_t)TILE_ROWS * even;
    int_block block = {0};
    block.rows = rows.end - rows.first;
    block.depth = it->depth;
    block.type = it->a;
    block.zero = a_zeros;
    block.zeros = it->a_zeros;
    block.channel = rows.first;
    block.a = a;
    block.c = c;
    block.panel = panel;
    block.wide = scratch;
    block.a_row = it->depth;
    block.c_row = it->cols;
    block.rounding = &it->rounding;
    block.bias = bias;
    block.scales = scales;
    block.offsets = offsets;
    block.by_column = 1;
    if (it->b_row == 1 && it->rows < TILE_ROWS) {
        multiply_few(it, &block, b, b_zeros, kernel_take(it->cols, WIDTH, share));
        return;
    }
    for (int32_t block_number = own.first; block.rows && block_number < own.end; block_number++) {
        const int32_t at = block_number / blocks, col = block_number % blocks * most, channel = it->rounding.step * col;
        const void *right = skip(b, at * it->b_batch + (ptrdiff_t)col * it->b_col, it->b);
        block.a = skip(a, at * it->a_batch + (ptrdiff_t)rows.first * it->depth, it->a);
        block.cols = least(most, it->cols - col);
        block.c = (byte *)c + (((ptrdiff_t)at * it->rows + rows.first) * it->cols + col) * size;
        block.bias = bias ? bias + col : NULL;
        block.scales = scales ? scales + channel : NULL;
        block.offsets = offsets ? offsets + channel : NULL;
        copy_panel(it, right, b_zeros, col, block.cols, panel);
        multiply_block(&block);
    }
}
