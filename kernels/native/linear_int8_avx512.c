/* Linear layers of int8 weights and activations of two int8 digits, for AVX-512 with VNNI.
 *
 * out[t][n] = (H[t][n] + L[t][n] / 254) * scale[t] + bias[n], where H and L are the products of the high and the
 * low digits with the weight row n, summed exactly in int32 and multiplied by the row's scale. Every
 * floating-point operation is written out and rounds once, so the bits are those of kernels/int8.py's version in
 * torch, and a token's result does not depend on the others, on the threads, or on how rows are blocked.
 *
 * vpdpbusd multiplies unsigned by signed bytes: weights are stored with 128 added, and 128 times a digit row's
 * sum is taken off the result again.
 */
#include "parallel.h"
#include "vector_math.h"
#include <stdlib.h>
#include <string.h>

#define COLUMNS 32     /* of a packed block: two vectors of 16 int32 sums */
#define MAX_ROWS 12    /* digit rows of a register block: 24 sums, 2 weights and 1 digit in 32 registers */
#define TILE_TOKENS 192 /* whose digits stay in the second-level cache while the weights pass by */
#define TOKENS_AT_ONCE 8  /* that one thread quantises: fewer are not worth another one's coming */
#define CHUNKS_PER_THREAD 4
#define SHIFT 128
#define ALIGNMENT 64

typedef struct {
    const int8_t *digits;   /* [2 * tokens][stride]: the high and the low row of each token in turn */
    const int32_t *sums;    /* [2 * tokens]: of the digits of a row */
    const float *scales;    /* [tokens] */
    int64_t stride, quads;  /* bytes of a digit row; groups of four along k */
    const float *weight_scale, *bias;
    float *out;
    int64_t columns;        /* of out: n */
} product;

static int64_t up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int64_t ramet_packed_int8_bytes(int64_t n, int64_t k) { return up(n, COLUMNS) * up(k, 4); }

/* weight: [n][k]; packed: [blocks of 32 columns][k / 4][32][4], padded with zero weights. */
void ramet_pack_int8(const int8_t *weight, int64_t n, int64_t k, uint8_t *packed)
{
    int64_t quads = up(k, 4) / 4;
    memset(packed, SHIFT, (size_t)ramet_packed_int8_bytes(n, k));
    for (int64_t column = 0; column < n; column++) {
        const uint8_t *row = (const uint8_t *)weight + column * k;
        uint8_t *to = packed + (column / COLUMNS) * quads * COLUMNS * 4 + (column % COLUMNS) * 4;
        int64_t quad = 0;
        for (; quad < k / 4; quad++) {
            uint32_t four;
            memcpy(&four, row + quad * 4, 4);
            four ^= 0x80808080u;
            memcpy(to + quad * COLUMNS * 4, &four, 4);
        }
        for (int64_t i = quad * 4; i < k; i++)
            to[quad * COLUMNS * 4 + i % 4] = row[i] ^ 0x80;
    }
}

/* One token's two digit rows, their sums and its scale. A token that is not finite gets a scale that is not. */
static void quantize(const float *x, int64_t k, int64_t stride, int8_t *high_row, int32_t *sums, float *scale)
{
    int8_t *low_row = high_row + stride;
    __m512 largest = _mm512_setzero_ps(), poison = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(tail_mask(k - i), x + i);
        largest = _mm512_max_ps(largest, _mm512_abs_ps(v));
        poison = _mm512_add_ps(poison, _mm512_mul_ps(v, _mm512_setzero_ps()));
    }
    float poisoned = _mm512_reduce_add_ps(poison);
    float step = _mm512_reduce_max_ps(largest) / 127.0f;
    *scale = poisoned != 0.0f ? poisoned : step;
    if (!(step > 0.0f) || poisoned != 0.0f) {
        memset(high_row, 0, (size_t)(2 * stride));
        sums[0] = sums[1] = 0;
        return;
    }
    const __m512 by = _mm512_set1_ps(step), levels_per_level = _mm512_set1_ps(254.0f);
    const __m512 zero_point = _mm512_set1_ps(128.0f);
    __m512i high_sum = _mm512_setzero_si512(), low_sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < stride; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(i < k ? tail_mask(k - i) : 0, x + (i < k ? i : 0));
        __m512 level = _mm512_div_ps(v, by);
        __m512 high = _mm512_roundscale_ps(level, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512 low = _mm512_mul_ps(_mm512_sub_ps(level, high), levels_per_level);
        __m512i h = _mm512_cvtps_epi32(high);
        /* Rounded with the zero point added, as FBGEMM does. */
        __m512i l = _mm512_sub_epi32(_mm512_cvtps_epi32(_mm512_add_ps(low, zero_point)), _mm512_set1_epi32(128));
        high_sum = _mm512_add_epi32(high_sum, h);
        low_sum = _mm512_add_epi32(low_sum, l);
        _mm_storeu_si128((__m128i *)(high_row + i), _mm512_cvtsepi32_epi8(h));
        _mm_storeu_si128((__m128i *)(low_row + i), _mm512_cvtsepi32_epi8(l));
    }
    sums[0] = _mm512_reduce_add_epi32(high_sum);
    sums[1] = _mm512_reduce_add_epi32(low_sum);
}

static inline __attribute__((always_inline)) __m512 whole(__m512i sum, int32_t digit_sum, __m512 weight_scale)
{
    __m512i exact = _mm512_sub_epi32(sum, _mm512_set1_epi32(SHIFT * digit_sum));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(exact), weight_scale);
}

/* ROWS digit rows from token `token` on, times one block of columns. */
static inline __attribute__((always_inline)) void multiply(const product *p, const uint8_t *weights, int64_t block,
                                                           int64_t token, const int ROWS)
{
    __m512i sums[MAX_ROWS][2];
    const int8_t *digits = p->digits + 2 * token * p->stride;
    const int64_t stride = p->stride, quads = p->quads;
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; row++)
        sums[row][0] = sums[row][1] = _mm512_setzero_si512();
    for (int64_t quad = 0; quad < quads; quad++) {
        __m512i first = _mm512_load_si512(weights + quad * 128), second = _mm512_load_si512(weights + quad * 128 + 64);
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; row++) {
            int32_t four;
            memcpy(&four, digits + row * stride + quad * 4, 4);
            __m512i digit = _mm512_set1_epi32(four);
            sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], first, digit);
            sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], second, digit);
        }
    }
    const __m512 low_share = _mm512_set1_ps((float)(1.0 / 254.0));
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        int64_t column = block * COLUMNS + half * 16;
        if (column >= p->columns)
            continue;
        __mmask16 mask = tail_mask(p->columns - column);
        __m512 weight_scale = _mm512_maskz_loadu_ps(mask, p->weight_scale + column);
        __m512 bias = p->bias ? _mm512_maskz_loadu_ps(mask, p->bias + column) : _mm512_setzero_ps();
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row += 2) {
            int64_t t = token + row / 2;
            __m512 high = whole(sums[row][half], p->sums[2 * t], weight_scale);
            __m512 low = whole(sums[row + 1][half], p->sums[2 * t + 1], weight_scale);
            __m512 result = _mm512_add_ps(_mm512_mul_ps(low, low_share), high);
            result = _mm512_mul_ps(result, _mm512_set1_ps(p->scales[t]));
            if (p->bias)
                result = _mm512_add_ps(result, bias);
            _mm512_mask_storeu_ps(p->out + t * p->columns + column, mask, result);
        }
    }
}

static void multiply_block(const product *p, const uint8_t *weights, int64_t block, int64_t token, int64_t last)
{
    weights += block * p->quads * COLUMNS * 4;
    for (; last - token >= 6; token += 6)
        multiply(p, weights, block, token, 12);
    switch (last - token) {
    case 5: multiply(p, weights, block, token, 10); break;
    case 4: multiply(p, weights, block, token, 8); break;
    case 3: multiply(p, weights, block, token, 6); break;
    case 2: multiply(p, weights, block, token, 4); break;
    case 1: multiply(p, weights, block, token, 2); break;
    default: break;
    }
}

typedef struct {
    product product;
    const float *x;
    int64_t k, tokens, blocks;
    int8_t *digits;
    int32_t *sums;
    float *scales;
    const uint8_t *packed;
} call;

static void quantize_task(void *context, int64_t token, int worker)
{
    const call *c = context;
    (void)worker;
    quantize(c->x + token * c->k, c->k, c->product.stride, c->digits + 2 * token * c->product.stride,
             c->sums + 2 * token, c->scales + token);
}

/* Tile after tile of tokens, block after block of columns. */
static void multiply_task(void *context, int64_t task, int worker)
{
    const call *c = context;
    (void)worker;
    int64_t first = task / c->blocks * TILE_TOKENS;
    int64_t last = first + TILE_TOKENS < c->tokens ? first + TILE_TOKENS : c->tokens;
    multiply_block(&c->product, c->packed, task % c->blocks, first, last);
}

/* x: [tokens][k]; packed: of ramet_pack_int8; weight_scale, bias: [n], bias may be NULL; out: [tokens][n].
 * Returns 0, or 1 where there is no memory for the digits. */
int ramet_linear_int8(const float *x, int64_t tokens, int64_t k, const uint8_t *packed, const float *weight_scale,
                      const float *bias, int64_t n, float *out, int threads)
{
    int64_t stride = up(k, ALIGNMENT), blocks = up(n, COLUMNS) / COLUMNS;
    int64_t digit_bytes = 2 * tokens * stride, sum_bytes = up(2 * tokens * 4, ALIGNMENT);
    int8_t *memory = aligned_alloc(ALIGNMENT, (size_t)(digit_bytes + sum_bytes + up(tokens * 4, ALIGNMENT)));
    if (memory == NULL)
        return 1;
    int32_t *sums = (int32_t *)(memory + digit_bytes);
    float *scales = (float *)(memory + digit_bytes + sum_bytes);
    call c = {{memory, sums, scales, stride, up(k, 4) / 4, weight_scale, bias, out, n},
              x, k, tokens, blocks, memory, sums, scales, packed};
    int64_t tasks = (tokens + TILE_TOKENS - 1) / TILE_TOKENS * blocks, chunk = tasks / (threads * CHUNKS_PER_THREAD);
    ramet_parallel(tokens, TOKENS_AT_ONCE, threads, quantize_task, &c);
    ramet_parallel(tasks, chunk > 1 ? chunk : 1, threads, multiply_task, &c);
    free(memory);
    return 0;
}
