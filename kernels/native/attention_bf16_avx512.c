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

#define ROWS_AT_ONCE 6  /* by four vectors of keys or values: 24 sums, those 4 and a query or weight in 32 registers */
#define PAIRS (SPAN / 2)
#define BLOCK 64        /* keys that are multiplied together: four vectors */
#define WRITES_AT_ONCE 32 /* tokens */
#define AWAITED_ROWS (2 * ROWS_AT_ONCE) /* of an item that is done sooner than its slots have come */
#define ITEMS_OF_THREAD 3 /* with fewer, heads are what is shared out */

static inline void store16(uint16_t *to, __m512 x)
{
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(x));
}

static void round_row(const float *from, int64_t count, uint16_t *to)
{
    for (int64_t i = 0; i < count; i += 16)
        store16(to + i, _mm512_loadu_ps(from + i));
}

/* 2^x of 16 numbers up to 0, within 2^-18 of it: more than the eight bits that are kept. NaN gives NaN. */
static inline __m512 short_exp2(__m512 x)
{
    __m512 t = _mm512_max_ps(_mm512_set1_ps(-150.0f), x);
    __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_sub_ps(t, n);
    /* Of degree 4, the error's greatest part made as small as it can be on -1/2..1/2; 1 at 0. */
    __m512 p = _mm512_set1_ps(9.58285e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.590643e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24024099f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69312419f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* Up to 16 keys of one KV head as [head_dim / 2] vectors of 16 pairs of dimensions, BLOCK apart. */
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
                _mm512_store_ps(out + (pair + i) * BLOCK, rows[i]);
    }
}

/* Scores of ROWS queries with VECTORS vectors of a block's keys. queries: rows of `pairs` pairs. */
static inline __attribute__((always_inline)) void score_rows(const uint32_t *queries, const uint32_t *keys,
                                                             int64_t pairs, float *scores, const int ROWS,
                                                             const int VECTORS)
{
    __m512 sums[ROWS_AT_ONCE][4];
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++)
            sums[row][i] = _mm512_setzero_ps();
    for (int64_t pair = 0; pair < pairs; pair++, keys += BLOCK) {
        __m512bh key[4];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++)
            key[i] = (__m512bh)_mm512_load_si512(keys + i * KEYS);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            __m512bh query = (__m512bh)_mm512_set1_epi32((int)queries[row * pairs + pair]);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++)
                sums[row][i] = _mm512_dpbf16_ps(sums[row][i], query, key[i]);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++)
            _mm512_store_ps(scores + row * SPAN + i * KEYS, sums[row][i]);
}

/* Scores with the first `padded` keys, vectors of one at a time behind the last whole block. */
static inline __attribute__((always_inline)) void score_keys(const uint32_t *queries, const uint32_t *keys,
                                                             int64_t pairs, int64_t padded, float *scores,
                                                             const int ROWS)
{
    int64_t key = 0;
    for (; key + BLOCK <= padded; key += BLOCK)
        score_rows(queries, keys + key * pairs, pairs, scores + key, ROWS, 4);
    for (int64_t rest = 0; key + rest < padded; rest += KEYS)
        score_rows(queries, keys + key * pairs + rest, pairs, scores + key + rest, ROWS, 1);
}

/* The vectors of keys that a row sees some of, first..last, and those that it sees whole, first_whole..last_whole. */
typedef struct {
    int64_t first, first_whole, last_whole, last;
} seen_keys;

static seen_keys seen_by(const pair *p)
{
    seen_keys s = {p->begin / KEYS * KEYS, (p->begin + KEYS - 1) / KEYS * KEYS, p->end / KEYS * KEYS,
                   (p->end + KEYS - 1) / KEYS * KEYS};
    if (s.last_whole < s.first_whole)
        s.first_whole = s.last_whole = s.last; /* begins and ends inside of one vector */
    return s;
}

/* The highest of a row's visible scores, before their scale. */
static float highest_score(const pair *p, const float *scores)
{
    const seen_keys seen = seen_by(p);
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    __m512 highest = lowest;
    int64_t key = seen.first;
    for (; key < seen.first_whole; key += KEYS)
        highest = _mm512_mask_max_ps(highest, visible_keys(p, key), highest, _mm512_load_ps(scores + key));
    for (; key < seen.last_whole; key += KEYS)
        highest = _mm512_max_ps(highest, _mm512_load_ps(scores + key));
    for (; key < seen.last; key += KEYS)
        highest = _mm512_mask_max_ps(highest, visible_keys(p, key), highest, _mm512_load_ps(scores + key));
    return _mm512_reduce_max_ps(highest);
}

/* Scores scaled and capped in place; for models with a cap. */
static void cap_scores(const attention *a, int64_t padded, float *scores)
{
    const __m512 scale = _mm512_set1_ps(a->scale), cap = _mm512_set1_ps(a->softcap);
    for (int64_t key = 0; key < padded; key += KEYS) {
        __m512 s = _mm512_mul_ps(_mm512_load_ps(scores + key), scale);
        _mm512_store_ps(scores + key, _mm512_mul_ps(tanh16(_mm512_div_ps(s, cap)), cap));
    }
}

static inline __m512 weigh(const float *scores, __m512 highest, __m512 by)
{
    return short_exp2(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(scores), highest), by));
}

/* Scores to exponentials in place, in bfloat16 at the row's beginning, 0 for keys that are not visible; the highest
 * score and the sum go behind the partial's values. */
static void exponentials(const pair *p, float most, float scale, int64_t padded, float *scores, float *tail)
{
    const seen_keys seen = seen_by(p);
    uint16_t *weights = (uint16_t *)scores;
    const __m512 highest = _mm512_set1_ps(most), by = _mm512_set1_ps(scale * 1.44269504088896341f);
    __m512 sum = _mm512_setzero_ps();
    int64_t key = 0;
    for (; key < seen.first; key += KEYS)
        store16(weights + key, _mm512_setzero_ps());
    for (; key < seen.first_whole; key += KEYS) {
        __m512 weight = _mm512_maskz_mov_ps(visible_keys(p, key), weigh(scores + key, highest, by));
        store16(weights + key, weight);
        sum = _mm512_add_ps(sum, weight);
    }
#pragma GCC unroll 4
    for (; key < seen.last_whole; key += KEYS) {
        __m512 weight = weigh(scores + key, highest, by);
        store16(weights + key, weight);
        sum = _mm512_add_ps(sum, weight);
    }
    for (; key < seen.last; key += KEYS) {
        __m512 weight = _mm512_maskz_mov_ps(visible_keys(p, key), weigh(scores + key, highest, by));
        store16(weights + key, weight);
        sum = _mm512_add_ps(sum, weight);
    }
    for (; key < padded; key += KEYS)
        store16(weights + key, _mm512_setzero_ps());
    tail[0] = most * scale;
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
    __m512 sums[ROWS_AT_ONCE][4];
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

/* Up to 16 keys or values of one head, soon to be read. Inlined, because gcc leaves out calls of a function that does
 * nothing else. */
static inline __attribute__((always_inline)) void prefetch_head(const attention *a, const void *pool,
                                                                const int64_t *slots, int64_t count, int64_t kv_head)
{
    for (int64_t key = 0; key < count; key++) {
        const int64_t first = (slots[key] * a->num_kv_heads + kv_head) * a->head_dim;
        const char *row = (const char *)((const uint16_t *)pool + first);
        for (int64_t byte = 0; byte < 2 * a->head_dim; byte += 64)
            _mm_prefetch(row + byte, _MM_HINT_T0);
    }
}

/* All heads of an item's slots are asked for at once, in the order in which they lie in memory. With keys and values
 * that no cache holds, 32 rows of 160 tokens then take three quarters of the time of reading head by head; asking
 * for the next item's while this one is computed gains nothing. */
static inline __attribute__((always_inline)) void prefetch_item(const attention *a, const item *it, const void *pool)
{
    const int64_t bytes = 2 * a->num_kv_heads * a->head_dim;
    for (int64_t key = 0; key < it->num_keys; key++) {
        const char *row = (const char *)pool + a->slots[it->first_slot + key] * bytes;
        for (int64_t byte = 0; byte < bytes; byte += 64)
            _mm_prefetch(row + byte, _MM_HINT_T1);
    }
}

/* A span's keys and values in the order they are multiplied in, and the queries that read it. */
typedef struct {
    uint32_t *keys, *values, *queries;
    float *scores; /* of ROWS_AT_ONCE queries */
} workspace;

static workspace gather(const attention *a, const item *it, int64_t kv_head, float *scratch)
{
    const int64_t head_dim = a->head_dim, dim_pairs = head_dim / 2, rows = it->num_pairs * a->group_size;
    const int64_t *slots = a->slots + it->first_slot;
    uint32_t *keys = (uint32_t *)scratch, *values = keys + dim_pairs * SPAN;
    float *scores = (float *)(values + PAIRS * head_dim);
    workspace w = {keys, values, (uint32_t *)(scores + ROWS_AT_ONCE * SPAN), scores};
    for (int64_t key = 0; key < it->num_keys; key += KEYS) {
        int64_t count = it->num_keys - key < KEYS ? it->num_keys - key : KEYS;
        int64_t next = it->num_keys - key - count < KEYS ? it->num_keys - key - count : KEYS;
        if (rows <= AWAITED_ROWS) {
            prefetch_head(a, a->keys, slots + key + count, next, kv_head);
            prefetch_head(a, a->values, slots + key, count, kv_head);
        }
        transpose_keys(a, slots + key, count, kv_head, keys + key / BLOCK * BLOCK * dim_pairs + key % BLOCK);
    }
    pair_values(a, slots, it->num_keys, kv_head, values);
    for (int64_t row = 0; row < rows; row++) {
        const float *query = query_of(a, a->pairs + it->first_pair, kv_head, row);
        round_row(query, head_dim, (uint16_t *)(w.queries + row * dim_pairs));
    }
    return w;
}

/* Queries row..row + ROWS - 1 of an item, and no key behind the last that one of them sees. */
static inline __attribute__((always_inline)) void attend_rows(const attention *a, const pair *pairs, int64_t kv_head,
                                                              const workspace *w, int64_t row, const int ROWS)
{
    const int64_t head_dim = a->head_dim, dim_pairs = head_dim / 2;
    float *out[ROWS_AT_ONCE];
    int64_t seen = 0;
    for (int i = 0; i < ROWS; i++) {
        const int64_t end = pairs[(row + i) / a->group_size].end;
        seen = end > seen ? end : seen;
        out[i] = partial_of(a, pairs, kv_head, row + i);
    }
    const int64_t padded = (seen + KEYS - 1) / KEYS * KEYS;
    score_keys(w->queries + row * dim_pairs, w->keys, dim_pairs, padded, w->scores, ROWS);
    const float scale = a->softcap != 0.0f ? 1.0f : a->scale;
    float most[ROWS_AT_ONCE];
    for (int i = 0; i < ROWS; i++) {
        if (a->softcap != 0.0f)
            cap_scores(a, padded, w->scores + i * SPAN);
        most[i] = highest_score(pairs + (row + i) / a->group_size, w->scores + i * SPAN);
    }
    for (int i = 0; i < ROWS; i++)
        exponentials(pairs + (row + i) / a->group_size, most[i], scale, padded, w->scores + i * SPAN,
                     out[i] + head_dim);
    for (int64_t dim = 0; dim < head_dim; dim += DIMS)
        value_rows(w->values, seen, head_dim, dim, (const uint32_t *)w->scores, out, ROWS);
}

static void attend_item(const attention *a, const item *it, int64_t kv_head, float *scratch)
{
    const workspace w = gather(a, it, kv_head, scratch);
    const pair *pairs = a->pairs + it->first_pair;
    const int64_t rows = it->num_pairs * a->group_size;
    int64_t row = 0;
    for (; row + ROWS_AT_ONCE <= rows; row += ROWS_AT_ONCE)
        attend_rows(a, pairs, kv_head, &w, row, ROWS_AT_ONCE);
    switch (rows - row) {
    case 1: attend_rows(a, pairs, kv_head, &w, row, 1); break;
    case 2: attend_rows(a, pairs, kv_head, &w, row, 2); break;
    case 3: attend_rows(a, pairs, kv_head, &w, row, 3); break;
    case 4: attend_rows(a, pairs, kv_head, &w, row, 4); break;
    case 5: attend_rows(a, pairs, kv_head, &w, row, 5); break;
    default: break;
    }
}

static void attend_task(void *context, int64_t task, int worker)
{
    const attention *a = context;
    attend_item(a, a->items + task / a->num_kv_heads, task % a->num_kv_heads, a->scratch + worker * a->scratch_size);
}

/* All heads of an item. */
static void attend_heads_task(void *context, int64_t task, int worker)
{
    const attention *a = context;
    const item *it = a->items + task;
    prefetch_item(a, it, a->keys);
    prefetch_item(a, it, a->values);
    for (int64_t kv_head = 0; kv_head < a->num_kv_heads; kv_head++)
        attend_item(a, it, kv_head, a->scratch + worker * a->scratch_size);
}

typedef struct {
    const float *k, *v;
    int64_t k_stride, v_stride, row;
    uint16_t *keys, *values;
    const int64_t *written;
} write_call;

static void write_task(void *context, int64_t t, int worker)
{
    const write_call *c = context;
    (void)worker;
    round_row(c->k + t * c->k_stride, c->row, c->keys + c->written[t] * c->row);
    round_row(c->v + t * c->v_stride, c->row, c->values + c->written[t] * c->row);
}

/* As ramet_attention, over keys and values in bfloat16. scratch: of each thread 192 * head_dim + 6 * 192
 * + max_rows * head_dim / 2 floats, rounded up to whole vectors. */
void ramet_attention_bf16(const float *q, int64_t q_stride, const float *k, int64_t k_stride, const float *v,
                          int64_t v_stride, uint16_t *keys, uint16_t *values, const int64_t *written,
                          int64_t num_tokens, int64_t num_kv_heads, int64_t group_size, int64_t head_dim,
                          const int64_t *slots, const item *items, int64_t num_items, const pair *pairs,
                          const int64_t *folds, float scale, float softcap, float *partials, float *scratch,
                          int64_t scratch_size, float *out, int threads)
{
    attention a = {q,     q_stride, keys,    values,   num_kv_heads, group_size, head_dim, slots,
                   items, pairs,    scale,   softcap,  partials,     folds,      scratch,  scratch_size, out};
    write_call writing = {k, v, k_stride, v_stride, num_kv_heads * head_dim, keys, values, written};
    ramet_parallel(num_tokens, WRITES_AT_ONCE, threads, write_task, &writing);
    if (num_items >= ITEMS_OF_THREAD * threads)
        ramet_parallel(num_items, 1, threads, attend_heads_task, &a);
    else
        ramet_parallel(num_items * num_kv_heads, 1, threads, attend_task, &a);
    ramet_parallel(num_tokens, FOLDS_AT_ONCE, threads, fold_task, &a);
}
