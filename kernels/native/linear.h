/* What the linear layers share, whatever their weights are stored as: int8 activations with a scale a group. */
#ifndef RAMET_LINEAR_H
#define RAMET_LINEAR_H

#include "parallel.h"
#include "vector_math.h"
#include <stdlib.h>
#include <string.h>

#define GROUP 32       /* inputs that share a scale: 64 would save a twentieth of the time and err 1.6 times as much */
#define QUADS (GROUP / 4)
#define COLUMNS 32     /* of a packed block: two vectors of 16 int32 sums */
#define MAX_ROWS 6     /* tokens of a register block: 12 sums, 12 totals, 2 weights and 1 digit in 32 registers */
#define TILE_TOKENS 192 /* whose digits stay in the second-level cache while the weights pass by */
#define TOKENS_AT_ONCE 8  /* that one thread quantises: fewer are not worth another one's coming */
#define CHUNKS_PER_THREAD 4
#define ALIGNMENT 64
#define QUANTIZED_AT_ONCE (4 * GROUP)
#define SMALLEST 1e-28f /* a group without anything above it is 0 */
#define UNIT 0x1p20f    /* scales are kept in it, so that the sums of the largest activations do not overflow */

typedef struct {
    const int8_t *digits;  /* [tokens][stride] */
    const int32_t *starts; /* [tokens][padded_groups]: minus the weights' shift times the sum of the group's digits */
    const float *scales;   /* [tokens][padded_groups], times 1 / UNIT */
    int64_t stride, groups, padded_groups;
    const float *weight_scale, *bias;
    float *out;
    int64_t columns;       /* of out: n */
} product;

static inline int64_t up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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

/* One token's digits, the starts of its sums over weights with `shift` added, and its scales. A group with a number
 * that is not finite gets a scale that is not. */
static inline void quantize(const float *x, int64_t k, int shift, int8_t *digits, int32_t *starts, float *scales)
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
        _mm_storeu_si128((__m128i *)starts, _mm_mullo_epi32(sum, _mm_set1_epi32(-shift)));
    }
}

typedef struct {
    product product;
    const float *x;
    int64_t k, tokens, blocks;
    int shift;
    int8_t *digits;
    int32_t *starts;
    float *scales;
    const uint8_t *packed;
} call;

static inline void quantize_task(void *context, int64_t token, int worker)
{
    const call *c = context;
    (void)worker;
    quantize(c->x + token * c->k, c->k, c->shift, c->digits + token * c->product.stride,
             c->starts + token * c->product.padded_groups, c->scales + token * c->product.padded_groups);
}

/* Quantises x and runs `multiply` for each block of columns of each tile of tokens: task number tile times blocks
 * plus block. Returns 0, or 1 where there is no memory for the digits. */
static inline int run_linear(const float *x, int64_t tokens, int64_t k, const uint8_t *packed, int shift,
                             const float *weight_scale, const float *bias, int64_t n, float *out, int threads,
                             ramet_task multiply)
{
    int64_t stride = up(k, QUANTIZED_AT_ONCE), groups = up(k, GROUP) / GROUP, padded = stride / GROUP;
    int64_t blocks = up(n, COLUMNS) / COLUMNS, scale_bytes = up(tokens * padded * 4, ALIGNMENT);
    int8_t *memory = aligned_alloc(ALIGNMENT, (size_t)(tokens * stride + 2 * scale_bytes));
    if (memory == NULL)
        return 1;
    int32_t *starts = (int32_t *)(memory + tokens * stride);
    float *scales = (float *)(memory + tokens * stride + scale_bytes);
    call c = {{memory, starts, scales, stride, groups, padded, weight_scale, bias, out, n},
              x, k, tokens, blocks, shift, memory, starts, scales, packed};
    int64_t tasks = (tokens + TILE_TOKENS - 1) / TILE_TOKENS * blocks, chunk = tasks / (threads * CHUNKS_PER_THREAD);
    ramet_parallel(tokens, TOKENS_AT_ONCE, threads, quantize_task, &c);
    ramet_parallel(tasks, chunk > 1 ? chunk : 1, threads, multiply, &c);
    free(memory);
    return 0;
}

#endif
