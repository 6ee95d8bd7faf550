/* Linear layers of int8 weights and int8 activations, for AVX-512 with VNNI.
 *
 * out[t][n] = (sum over groups of GROUP inputs: S[t][g][n] * scale[t][g]) * weight_scale[n] + bias[n], where S is
 * the product of a group's digits with the weight row n, summed exactly in int32. The groups are added one after
 * the other, and every floating-point operation is written out and rounds once, so a token's result does not
 * depend on the others, on the threads, or on how rows are blocked.
 *
 * vpdpbusd multiplies unsigned by signed bytes: weights are stored with 128 added, and sums start at -128 times
 * the sum of the group's digits.
 */
#include "linear.h"

#define SHIFT 128

int64_t ramet_packed_int8_bytes(int64_t n, int64_t k) { return up(n, COLUMNS) * up(k, GROUP); }

/* weight: [n][k]; packed: [blocks of 32 columns][k / 4][32][4], padded with zero weights. */
void ramet_pack_int8(const int8_t *weight, int64_t n, int64_t k, uint8_t *packed)
{
    int64_t quads = up(k, GROUP) / 4;
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

/* ROWS tokens from `token` on, times one block of columns. */
static inline __attribute__((always_inline)) void multiply(const product *p, const uint8_t *weights, int64_t block,
                                                           int64_t token, const int ROWS)
{
    __m512 totals[MAX_ROWS][2];
    const int64_t stride = p->stride, padded = p->padded_groups;
    const int8_t *digits = p->digits + token * stride;
    const int32_t *starts = p->starts + token * padded;
    const float *scales = p->scales + token * padded;
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++)
        totals[row][0] = totals[row][1] = _mm512_setzero_ps();
    for (int64_t group = 0; group < p->groups; group++) {
        __m512i sums[MAX_ROWS][2];
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++)
            sums[row][0] = sums[row][1] = _mm512_set1_epi32(starts[row * padded + group]);
#pragma GCC unroll 8
        for (int quad = 0; quad < QUADS; quad++) {
            __m512i first = _mm512_load_si512(weights + quad * 128);
            __m512i second = _mm512_load_si512(weights + quad * 128 + 64);
#pragma GCC unroll 6
            for (int row = 0; row < ROWS; row++) {
                int32_t four;
                memcpy(&four, digits + row * stride + quad * 4, 4);
                __m512i digit = _mm512_set1_epi32(four);
                sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], first, digit);
                sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], second, digit);
            }
        }
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            __m512 scale = _mm512_set1_ps(scales[row * padded + group]);
            totals[row][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[row][0]), scale, totals[row][0]);
            totals[row][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[row][1]), scale, totals[row][1]);
        }
        digits += GROUP;
        weights += GROUP * COLUMNS;
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        int64_t column = block * COLUMNS + half * 16;
        if (column >= p->columns)
            continue;
        __mmask16 mask = tail_mask(p->columns - column);
        __m512 weight_scale = _mm512_maskz_loadu_ps(mask, p->weight_scale + column);
        weight_scale = _mm512_mul_ps(weight_scale, _mm512_set1_ps(UNIT));
        __m512 bias = p->bias ? _mm512_maskz_loadu_ps(mask, p->bias + column) : _mm512_setzero_ps();
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            __m512 result = _mm512_mul_ps(totals[row][half], weight_scale);
            if (p->bias)
                result = _mm512_add_ps(result, bias);
            _mm512_mask_storeu_ps(p->out + (token + row) * p->columns + column, mask, result);
        }
    }
}

static void multiply_block(const product *p, const uint8_t *weights, int64_t block, int64_t token, int64_t last)
{
    weights += block * p->groups * GROUP * COLUMNS;
    for (; last - token >= MAX_ROWS; token += MAX_ROWS)
        multiply(p, weights, block, token, MAX_ROWS);
    switch (last - token) {
    case 5: multiply(p, weights, block, token, 5); break;
    case 4: multiply(p, weights, block, token, 4); break;
    case 3: multiply(p, weights, block, token, 3); break;
    case 2: multiply(p, weights, block, token, 2); break;
    case 1: multiply(p, weights, block, token, 1); break;
    default: break;
    }
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
    return run_linear(x, tokens, k, packed, SHIFT, weight_scale, bias, n, out, threads, multiply_task);
}
