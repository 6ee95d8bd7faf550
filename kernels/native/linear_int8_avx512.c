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
#include "parallel.h"
#include "vector_math.h"
#include <stdlib.h>
#include <string.h>

#define GROUP 32       /* inputs that share a scale: twice as many cost a tenth less and a third more accuracy */
#define QUADS (GROUP / 4)
#define COLUMNS 32     /* of a packed block: two vectors of 16 int32 sums */
#define MAX_ROWS 6     /* tokens of a register block: 12 sums, 12 totals, 2 weights and 1 digit in 32 registers */
#define TILE_TOKENS 192 /* whose digits stay in the second-level cache while the weights pass by */
#define TOKENS_AT_ONCE 8  /* that one thread quantises: fewer are not worth another one's coming */
#define CHUNKS_PER_THREAD 4
#define SHIFT 128
#define ALIGNMENT 64
#define QUANTIZED_AT_ONCE (4 * GROUP)
#define SMALLEST 1e-28f /* a group without anything above it is 0 */
#define UNIT 0x1p20f    /* scales are kept in it, so that the sums of the largest activations do not overflow */

typedef struct {
    const int8_t *digits;  /* [tokens][stride] */
    const int32_t *starts; /* [tokens][padded_groups]: -SHIFT times the sum of the group's digits */
    const float *scales;   /* [tokens][padded_groups], times 1 / UNIT */
    int64_t stride, groups, padded_groups;
    const float *weight_scale, *bias;
    float *out;
    int64_t columns;       /* of out: n */
} product;

static int64_t up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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

/* The greatest lane of each of four vectors; as whole numbers, in which the bits of |x| keep their order and NaN is
 * above all. */
static inline __attribute__((always_inline)) __m128i max_of_each(__m512i a, __m512i b, __m512i c, __m512i d)
{
    __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    __m512i all = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i half = _mm256_max_epu32(_mm512_castsi512_si256(all), _mm512_extracti32x8_epi32(all, 1));
    return _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* The sum of the lanes of each of four vectors. */
static inline __attribute__((always_inline)) __m128i sum_of_each(__m512i a, __m512i b, __m512i c, __m512i d)
{
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti32x8_epi32(all, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

/* One token's digits, the starts of its sums and its scales. A group with a number that is not finite gets a scale
 * that is not. */
static void quantize(const float *x, int64_t k, int8_t *digits, int32_t *starts, float *scales)
{
    for (int64_t i = 0; i < k; i += QUANTIZED_AT_ONCE, digits += QUANTIZED_AT_ONCE, starts += 4, scales += 4) {
        __m512 v[8];
        __m512i largest[4], sums[4];
        float inverse[4];
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            int64_t at = i + j * 16;
            v[j] = at < k ? _mm512_maskz_loadu_ps(tail_mask(k - at), x + at) : _mm512_setzero_ps();
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            largest[j] = _mm512_max_epu32(_mm512_castps_si512(_mm512_abs_ps(v[2 * j])),
                                          _mm512_castps_si512(_mm512_abs_ps(v[2 * j + 1])));
        __m128 most = _mm_castsi128_ps(max_of_each(largest[0], largest[1], largest[2], largest[3]));
        __mmask8 some = _mm_cmp_ps_mask(most, _mm_set1_ps(SMALLEST), _CMP_NLT_UQ);
        _mm_storeu_ps(scales, _mm_maskz_div_ps(some, most, _mm_set1_ps(127.0f * UNIT)));
        _mm_storeu_ps(inverse, _mm_maskz_div_ps(some, _mm_set1_ps(127.0f), most));
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m512 by = _mm512_set1_ps(inverse[j]);
            __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(v[2 * j], by));
            __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(v[2 * j + 1], by));
            sums[j] = _mm512_add_epi32(first, second);
            _mm_storeu_si128((__m128i *)(digits + j * GROUP), _mm512_cvtsepi32_epi8(first));
            _mm_storeu_si128((__m128i *)(digits + j * GROUP + 16), _mm512_cvtsepi32_epi8(second));
        }
        __m128i sum = sum_of_each(sums[0], sums[1], sums[2], sums[3]);
        _mm_storeu_si128((__m128i *)starts, _mm_mullo_epi32(sum, _mm_set1_epi32(-SHIFT)));
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

typedef struct {
    product product;
    const float *x;
    int64_t k, tokens, blocks;
    int8_t *digits;
    int32_t *starts;
    float *scales;
    const uint8_t *packed;
} call;

static void quantize_task(void *context, int64_t token, int worker)
{
    const call *c = context;
    (void)worker;
    quantize(c->x + token * c->k, c->k, c->digits + token * c->product.stride,
             c->starts + token * c->product.padded_groups, c->scales + token * c->product.padded_groups);
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
    int64_t stride = up(k, QUANTIZED_AT_ONCE), groups = up(k, GROUP) / GROUP, padded = stride / GROUP;
    int64_t blocks = up(n, COLUMNS) / COLUMNS, scale_bytes = up(tokens * padded * 4, ALIGNMENT);
    int8_t *memory = aligned_alloc(ALIGNMENT, (size_t)(tokens * stride + 2 * scale_bytes));
    if (memory == NULL)
        return 1;
    int32_t *starts = (int32_t *)(memory + tokens * stride);
    float *scales = (float *)(memory + tokens * stride + scale_bytes);
    call c = {{memory, starts, scales, stride, groups, padded, weight_scale, bias, out, n},
              x, k, tokens, blocks, memory, starts, scales, packed};
    int64_t tasks = (tokens + TILE_TOKENS - 1) / TILE_TOKENS * blocks, chunk = tasks / (threads * CHUNKS_PER_THREAD);
    ramet_parallel(tokens, TOKENS_AT_ONCE, threads, quantize_task, &c);
    ramet_parallel(tasks, chunk > 1 ? chunk : 1, threads, multiply_task, &c);
    free(memory);
    return 0;
}
