/* Linear layers of 4-bit weights with a scale a group, and int8 activations as in linear_int8_avx512.c.
 *
 * out[t][n] = sum over groups of GROUP inputs: S[t][g][n] * weight_scale[n][g] * scale[t][g], + bias[n], where S is
 * the product of the group's digits with its weights, -8 to 7, summed exactly in int32. Half of what int8 weights
 * take is read (and a fifth of that again for the scales), which is what the time of a few tokens goes into.
 */
#include "linear.h"

#define SHIFT 8
#define DIGIT_BYTES (GROUP / 2 * COLUMNS)
#define GROUP_BYTES (DIGIT_BYTES + COLUMNS * 4)

int64_t ramet_packed_int4_bytes(int64_t n, int64_t k) { return up(n, COLUMNS) / COLUMNS * (k / GROUP) * GROUP_BYTES; }

/* weight: [n][k / 2], byte 16 g + j of a row has weight 32 g + j in its low digit and weight 32 g + j + 16 in its
 * high one, 8 added to each; scale: [n][k / 32]. packed: [blocks of 32 columns][groups], each the digits [4][32][4],
 * byte by byte of quads q and q + 4, and the 32 scales; padded with scales of 0. */
void ramet_pack_int4(const uint8_t *weight, const float *scale, int64_t n, int64_t k, uint8_t *packed)
{
    const int64_t groups = k / GROUP;
    memset(packed, 0, (size_t)ramet_packed_int4_bytes(n, k));
    for (int64_t column = 0; column < n; column++)
        for (int64_t group = 0; group < groups; group++) {
            uint8_t *to = packed + ((column / COLUMNS) * groups + group) * GROUP_BYTES;
            const uint8_t *from = weight + (column * groups + group) * (GROUP / 2);
            for (int64_t quad = 0; quad < QUADS / 2; quad++)
                memcpy(to + (quad * COLUMNS + column % COLUMNS) * 4, from + quad * 4, 4);
            memcpy(to + DIGIT_BYTES + column % COLUMNS * 4, scale + column * groups + group, 4);
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
    const __m512i low_digit = _mm512_set1_epi8(15);
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++)
        totals[row][0] = totals[row][1] = _mm512_setzero_ps();
    for (int64_t group = 0; group < p->groups; group++) {
        __m512i sums[MAX_ROWS][2];
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++)
            sums[row][0] = sums[row][1] = _mm512_set1_epi32(starts[row * padded + group]);
#pragma GCC unroll 4
        for (int quad = 0; quad < QUADS / 2; quad++) {
            __m512i pair[2] = {_mm512_load_si512(weights + quad * 128), _mm512_load_si512(weights + quad * 128 + 64)};
#pragma GCC unroll 2
            for (int high = 0; high < 2; high++) {
                __m512i first = _mm512_and_si512(high ? _mm512_srli_epi16(pair[0], 4) : pair[0], low_digit);
                __m512i second = _mm512_and_si512(high ? _mm512_srli_epi16(pair[1], 4) : pair[1], low_digit);
#pragma GCC unroll 6
                for (int row = 0; row < ROWS; row++) {
                    int32_t four;
                    memcpy(&four, digits + row * stride + (quad + high * QUADS / 2) * 4, 4);
                    __m512i digit = _mm512_set1_epi32(four);
                    sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], first, digit);
                    sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], second, digit);
                }
            }
        }
        __m512 first_scale = _mm512_load_ps(weights + DIGIT_BYTES);
        __m512 second_scale = _mm512_load_ps(weights + DIGIT_BYTES + 64);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            __m512 scale = _mm512_set1_ps(scales[row * padded + group]);
            __m512 first = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[row][0]), first_scale);
            __m512 second = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[row][1]), second_scale);
            totals[row][0] = _mm512_fmadd_ps(first, scale, totals[row][0]);
            totals[row][1] = _mm512_fmadd_ps(second, scale, totals[row][1]);
        }
        digits += GROUP;
        weights += GROUP_BYTES;
    }
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        int64_t column = block * COLUMNS + half * 16;
        if (column >= p->columns)
            continue;
        __mmask16 mask = tail_mask(p->columns - column);
        __m512 bias = p->bias ? _mm512_maskz_loadu_ps(mask, p->bias + column) : _mm512_setzero_ps();
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            __m512 result = _mm512_mul_ps(totals[row][half], _mm512_set1_ps(UNIT));
            if (p->bias)
                result = _mm512_add_ps(result, bias);
            _mm512_mask_storeu_ps(p->out + (token + row) * p->columns + column, mask, result);
        }
    }
}

static void multiply_block(const product *p, const uint8_t *weights, int64_t block, int64_t token, int64_t last)
{
    weights += block * p->groups * GROUP_BYTES;
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

/* x: [tokens][k], k a multiple of 32; packed: of ramet_pack_int4; bias: [n] or NULL; out: [tokens][n].
 * Returns 0, or 1 where there is no memory for the digits. */
int ramet_linear_int4(const float *x, int64_t tokens, int64_t k, const uint8_t *packed, const float *bias, int64_t n,
                      float *out, int threads)
{
    return run_linear(x, tokens, k, packed, SHIFT, NULL, bias, n, out, threads, multiply_task);
}
