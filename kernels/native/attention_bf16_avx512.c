/* Attention over a paged KV pool in bfloat16, for CPUs that multiply it (AVX512_BF16): half the memory to read and
 * half the multiplications of fp32.
 *
 * Queries, keys, values and the exponentials that weigh the values are rounded to bfloat16; sums, scores, the
 * exponentials' own sum and the folding are fp32. vdpbf16ps adds two products to each sum: a score adds up over pairs
 * of the head's dimensions, the values over pairs of keys. Otherwise it is as in attention_avx512.c: a query's
 * result is that of the same operations in the same order whatever else is in its item.
 */
#include "attention.h"
#include <string.h>

#define SCORE_ROWS 8
#define VALUE_ROWS 6
#define PAIRS (SPAN / 2)

static inline void store16(uint16_t *to, __m512 x)
{
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(x));
}

static void round_row(const float *from, int64_t count, uint16_t *to)
{
    for (int64_t i = 0; i < count; i += 16)
        store16(to + i, _mm512_loadu_ps(from + i));
}

/* exp of 16 numbers up to 0, within 2^-18 of it: more than the eight bits that are kept. */
static inline __m512 short_exp(__m512 x)
{
    __m512 t = _mm512_mul_ps(_mm512_max_ps(_mm512_set1_ps(-104.0f), x), _mm512_set1_ps(1.44269504088896341f));
    __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_sub_ps(t, n);
    /* 2^r = sum of (r ln 2)^i / i! */
    __m512 p = _mm512_set1_ps(1.33335581e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.61812911e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.55041087e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.240226507f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693147181f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* Up to 16 keys of one KV head as [head_dim / 2][16] pairs of dimensions. */
static void transpose_keys(const attention *a, const int64_t *slots, int64_t count, int64_t kv_head, uint32_t *out)
{
    const int64_t slot_size = a->num_kv_heads * a->head_dim, pairs = a->head_dim / 2;
    const uint16_t *keys = (const uint16_t *)a->keys + kv_head * a->head_dim;
    for (int64_t pair = 0; pair < pairs; pair += 16) {
        const __mmask16 mask = tail_mask(pairs - pair);
        __m512 rows[16];
#pragma GCC unroll 16
        for (int key = 0; key < KEYS; key++)
            rows[key] = key < count ? _mm512_maskz_loadu_ps(mask, keys + slots[key] * slot_size + 2 * pair)
                                    : _mm512_setzero_ps();
        transpose16(rows);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            if (pair + i < pairs)
                _mm512_store_ps(out + (pair + i) * KEYS, rows[i]);
    }
}

/* queries: rows of `pairs` pairs. */
static inline __attribute__((always_inline)) void score_rows(const uint32_t *queries, const uint32_t *keys,
                                                             int64_t pairs, float *scores, const int ROWS)
{
    __m512 sums[SCORE_ROWS];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
        sums[row] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < pairs; pair++) {
        __m512bh key = (__m512bh)_mm512_load_si512(keys + pair * KEYS);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++) {
            __m512bh query = (__m512bh)_mm512_set1_epi32((int)queries[row * pairs + pair]);
            sums[row] = _mm512_dpbf16_ps(sums[row], query, key);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
        _mm512_store_ps(scores + row * SPAN, sums[row]);
}

/* Scores to exponentials in place, in bfloat16 at the row's beginning; the highest score and the sum go behind the
 * partial's values. */
static void exponentials(const attention *a, const pair *p, int64_t padded, float *scores, float *tail)
{
    tail[0] = masked_scores(a, p, padded, scores);
    const __m512 highest = _mm512_set1_ps(tail[0]);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t key = 0; key < padded; key += KEYS) {
        __m512 weight = short_exp(_mm512_sub_ps(_mm512_load_ps(scores + key), highest));
        weight = _mm512_maskz_mov_ps(visible_keys(p, key), weight);
        store16((uint16_t *)scores + key, weight);
        sum = _mm512_add_ps(sum, weight);
    }
    tail[1] = _mm512_reduce_add_ps(sum);
}

/* 16 dimensions of two keys' values, each dimension's side by side. `second` may be NULL: zeros. */
static inline __attribute__((always_inline)) __m512i value_pair(const uint16_t *first, const uint16_t *second)
{
    __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)first));
    if (second == NULL)
        return low;
    __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)second));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* The values of one KV head as [pairs of keys][head_dim]. */
static void pair_values(const attention *a, const int64_t *slots, int64_t count, int64_t kv_head, uint32_t *out)
{
    const int64_t slot_size = a->num_kv_heads * a->head_dim;
    const uint16_t *values = (const uint16_t *)a->values + kv_head * a->head_dim;
    for (int64_t key = 0; key < count; key += 2, out += a->head_dim) {
        const uint16_t *first = values + slots[key] * slot_size;
        const uint16_t *second = key + 1 < count ? values + slots[key + 1] * slot_size : NULL;
        for (int64_t dim = 0; dim < a->head_dim; dim += 16)
            _mm512_store_si512(out + dim, value_pair(first + dim, second == NULL ? NULL : second + dim));
    }
}

/* weights: rows of SPAN pairs of which the first half is used; values: [count / 2, rounded up][head_dim]. */
static inline __attribute__((always_inline)) void value_rows(const uint32_t *values, int64_t count, int64_t head_dim,
                                                             int64_t dim, const uint32_t *weights, float *const *out,
                                                             const int ROWS)
{
    const int64_t width = head_dim - dim;
    const __mmask16 second = tail_mask(width - 16), third = tail_mask(width - 32), fourth = tail_mask(width - 48);
    __m512 sums[VALUE_ROWS][4];
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++)
        sums[row][0] = sums[row][1] = sums[row][2] = sums[row][3] = _mm512_setzero_ps();
    for (int64_t pair = 0; 2 * pair < count; pair++) {
        const uint32_t *value = values + pair * head_dim + dim;
        __m512bh v0 = (__m512bh)_mm512_load_si512(value), v1 = (__m512bh)_mm512_maskz_load_epi32(second, value + 16);
        __m512bh v2 = (__m512bh)_mm512_maskz_load_epi32(third, value + 32);
        __m512bh v3 = (__m512bh)_mm512_maskz_load_epi32(fourth, value + 48);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            __m512bh weight = (__m512bh)_mm512_set1_epi32((int)weights[row * SPAN + pair]);
            sums[row][0] = _mm512_dpbf16_ps(sums[row][0], weight, v0);
            sums[row][1] = _mm512_dpbf16_ps(sums[row][1], weight, v1);
            sums[row][2] = _mm512_dpbf16_ps(sums[row][2], weight, v2);
            sums[row][3] = _mm512_dpbf16_ps(sums[row][3], weight, v3);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++) {
        _mm512_storeu_ps(out[row] + dim, sums[row][0]);
        _mm512_mask_storeu_ps(out[row] + dim + 16, second, sums[row][1]);
        _mm512_mask_storeu_ps(out[row] + dim + 32, third, sums[row][2]);
        _mm512_mask_storeu_ps(out[row] + dim + 48, fourth, sums[row][3]);
    }
}

/* What the item reads next is asked for early: a slot's neighbours in memory are of other positions. */
static void prefetch(const attention *a, const void *pool, const int64_t *slots, int64_t count, int64_t kv_head)
{
    for (int64_t key = 0; key < count; key++) {
        const int64_t first = (slots[key] * a->num_kv_heads + kv_head) * a->head_dim;
        const char *row = (const char *)((const uint16_t *)pool + first);
        for (int64_t byte = 0; byte < 2 * a->head_dim; byte += 64)
            _mm_prefetch(row + byte, _MM_HINT_T0);
    }
}

static void attend_item(const attention *a, const item *it, int64_t kv_head, float *scratch)
{
    const int64_t group = a->group_size, rows = it->num_pairs * group, head_dim = a->head_dim, dim_pairs = head_dim / 2;
    const int64_t padded = (it->num_keys + KEYS - 1) / KEYS * KEYS;
    const pair *pairs = a->pairs + it->first_pair;
    const int64_t *slots = a->slots + it->first_slot;
    uint32_t *transposed = (uint32_t *)scratch, *values = transposed + dim_pairs * KEYS;
    float *scores = scratch + dim_pairs * KEYS + PAIRS * head_dim;
    uint32_t *queries = (uint32_t *)(scores + rows * SPAN);
    for (int64_t row = 0; row < rows; row++)
        round_row(query_of(a, pairs, kv_head, row), head_dim, (uint16_t *)(queries + row * dim_pairs));
    for (int64_t key = 0; key < padded; key += KEYS) {
        int64_t count = it->num_keys - key < KEYS ? it->num_keys - key : KEYS;
        int64_t next = it->num_keys - key - count < KEYS ? it->num_keys - key - count : KEYS;
        transpose_keys(a, slots + key, count, kv_head, transposed);
        prefetch(a, a->keys, slots + key + count, next, kv_head);
        prefetch(a, a->values, slots + key, count, kv_head);
        for (int64_t row = 0; row < rows; row += SCORE_ROWS) {
            const uint32_t *from = queries + row * dim_pairs;
            float *to = scores + row * SPAN + key;
            switch (rows - row) {
            case 1: score_rows(from, transposed, dim_pairs, to, 1); break;
            case 2: score_rows(from, transposed, dim_pairs, to, 2); break;
            case 3: score_rows(from, transposed, dim_pairs, to, 3); break;
            case 4: score_rows(from, transposed, dim_pairs, to, 4); break;
            case 5: score_rows(from, transposed, dim_pairs, to, 5); break;
            case 6: score_rows(from, transposed, dim_pairs, to, 6); break;
            case 7: score_rows(from, transposed, dim_pairs, to, 7); break;
            default: score_rows(from, transposed, dim_pairs, to, 8); break;
            }
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        float *tail = partial_of(a, pairs, kv_head, row) + head_dim;
        exponentials(a, pairs + row / group, padded, scores + row * SPAN, tail);
    }
    pair_values(a, slots, it->num_keys, kv_head, values);
    for (int64_t row = 0; row < rows; row += VALUE_ROWS) {
        float *out[VALUE_ROWS];
        int64_t used = rows - row < VALUE_ROWS ? rows - row : VALUE_ROWS;
        for (int64_t i = 0; i < used; i++)
            out[i] = partial_of(a, pairs, kv_head, row + i);
        const uint32_t *weights = (const uint32_t *)(scores + row * SPAN);
        for (int64_t dim = 0; dim < head_dim; dim += DIMS)
            switch (used) {
            case 1: value_rows(values, it->num_keys, head_dim, dim, weights, out, 1); break;
            case 2: value_rows(values, it->num_keys, head_dim, dim, weights, out, 2); break;
            case 3: value_rows(values, it->num_keys, head_dim, dim, weights, out, 3); break;
            case 4: value_rows(values, it->num_keys, head_dim, dim, weights, out, 4); break;
            case 5: value_rows(values, it->num_keys, head_dim, dim, weights, out, 5); break;
            default: value_rows(values, it->num_keys, head_dim, dim, weights, out, 6); break;
            }
    }
}

static void attend_task(void *context, int64_t task, int worker)
{
    const attention *a = context;
    attend_item(a, a->items + task / a->num_kv_heads, task % a->num_kv_heads, a->scratch + worker * a->scratch_size);
}

/* As ramet_attention, over keys and values in bfloat16. scratch: of each thread head_dim * 8 + 96 * head_dim
 * + max_rows * (192 + head_dim / 2) floats, rounded up to whole vectors. */
void ramet_attention_bf16(const float *q, int64_t q_stride, const float *k, int64_t k_stride, const float *v,
                          int64_t v_stride, uint16_t *keys, uint16_t *values, const int64_t *written,
                          int64_t num_tokens, int64_t num_kv_heads, int64_t group_size, int64_t head_dim,
                          const int64_t *slots, const item *items, int64_t num_items, const pair *pairs,
                          const int64_t *folds, float scale, float softcap, float *partials, float *scratch,
                          int64_t scratch_size, float *out, int threads)
{
    attention a = {q,     q_stride, keys,    values,   num_kv_heads, group_size, head_dim, slots,
                   items, pairs,    scale,   softcap,  partials,     folds,      scratch,  scratch_size, out};
    const int64_t row = num_kv_heads * head_dim;
    for (int64_t t = 0; t < num_tokens; t++) {
        round_row(k + t * k_stride, row, keys + written[t] * row);
        round_row(v + t * v_stride, row, values + written[t] * row);
    }
    ramet_parallel(num_items * num_kv_heads, 1, threads, attend_task, &a);
    ramet_parallel(num_tokens, FOLDS_AT_ONCE, threads, fold_task, &a);
}
