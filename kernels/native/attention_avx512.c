/* Attention over a paged KV pool in fp32, without gathering copies.
 *
 * Keys are cut into spans of SPAN positions. An item is a span and the queries that read it: one token, a tile of
 * a prompt's, or the tokens of many requests that share the pages, which are then read once for all of them. Each
 * (item, KV head) gives each of its query heads a partial result: the highest score, the sum of the exponentials
 * and the weighted sum of the values. They are then folded in the order of the spans.
 *
 * A query's partial result is computed by the same operations in the same order whatever else is in its item: a
 * score adds up over the head's dimensions one after the other, the values key after key, and what a query does
 * not see adds an exact 0.
 */
#include "attention.h"
#include <string.h>

#define SCORE_ROWS 8
#define VALUE_ROWS 6

/* Up to 16 keys of one KV head as [head_dim][16]. */
static void transpose_keys(const attention *a, const int64_t *slots, int64_t count, int64_t kv_head, float *out)
{
    const int64_t slot_size = a->num_kv_heads * a->head_dim;
    const float *keys = (const float *)a->keys + kv_head * a->head_dim;
    for (int64_t dim = 0; dim < a->head_dim; dim += 16) {
        __m512 rows[16];
#pragma GCC unroll 16
        for (int key = 0; key < KEYS; key++)
            rows[key] = key < count ? _mm512_loadu_ps(keys + slots[key] * slot_size + dim)
                                    : _mm512_setzero_ps();
        transpose16(rows);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            _mm512_store_ps(out + (dim + i) * KEYS, rows[i]);
    }
}

static inline __attribute__((always_inline)) void score_rows(const float *const *queries, const float *keys,
                                                             int64_t head_dim, float *scores, const int ROWS)
{
    __m512 sums[SCORE_ROWS];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
        sums[row] = _mm512_setzero_ps();
    for (int64_t dim = 0; dim < head_dim; dim++) {
        __m512 key = _mm512_load_ps(keys + dim * KEYS);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
            sums[row] = _mm512_fmadd_ps(_mm512_set1_ps(queries[row][dim]), key, sums[row]);
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; row++)
        _mm512_store_ps(scores + row * SPAN, sums[row]);
}

static inline __attribute__((always_inline)) void value_rows(const attention *a, const int64_t *slots, int64_t count,
                                                             int64_t kv_head, int64_t dim, const float *weights,
                                                             float *const *out, const int ROWS)
{
    const int64_t slot_size = a->num_kv_heads * a->head_dim;
    const float *values = (const float *)a->values + kv_head * a->head_dim + dim;
    const int64_t width = a->head_dim - dim;
    const __mmask16 second = tail_mask(width - 16), third = tail_mask(width - 32), fourth = tail_mask(width - 48);
    __m512 sums[VALUE_ROWS][4];
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++)
        sums[row][0] = sums[row][1] = sums[row][2] = sums[row][3] = _mm512_setzero_ps();
    for (int64_t key = 0; key < count; key++) {
        const float *value = values + slots[key] * slot_size;
        __m512 v0 = _mm512_loadu_ps(value), v1 = _mm512_maskz_loadu_ps(second, value + 16);
        __m512 v2 = _mm512_maskz_loadu_ps(third, value + 32), v3 = _mm512_maskz_loadu_ps(fourth, value + 48);
#pragma GCC unroll 6
        for (int row = 0; row < ROWS; row++) {
            __m512 weight = _mm512_set1_ps(weights[row * SPAN + key]);
            sums[row][0] = _mm512_fmadd_ps(weight, v0, sums[row][0]);
            sums[row][1] = _mm512_fmadd_ps(weight, v1, sums[row][1]);
            sums[row][2] = _mm512_fmadd_ps(weight, v2, sums[row][2]);
            sums[row][3] = _mm512_fmadd_ps(weight, v3, sums[row][3]);
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

/* The scores of a row scaled, capped and masked in place. Returns the highest. */
static float masked_scores(const attention *a, const pair *p, int64_t padded, float *scores)
{
    const __m512 scale = _mm512_set1_ps(a->scale), lowest = _mm512_set1_ps(-__builtin_inff());
    __m512 highest = lowest;
    for (int64_t key = 0; key < padded; key += KEYS) {
        __m512 s = _mm512_mul_ps(_mm512_load_ps(scores + key), scale);
        if (a->softcap != 0.0f) {
            const __m512 cap = _mm512_set1_ps(a->softcap);
            s = _mm512_mul_ps(tanh16(_mm512_div_ps(s, cap)), cap);
        }
        s = _mm512_mask_mov_ps(lowest, visible_keys(p, key), s);
        _mm512_store_ps(scores + key, s);
        highest = _mm512_max_ps(highest, s);
    }
    return _mm512_reduce_max_ps(highest);
}

/* Scores to exponentials in place; the highest score and the sum go behind the partial's values. */
static void exponentials(const attention *a, const pair *p, int64_t padded, float *scores, float *tail)
{
    tail[0] = masked_scores(a, p, padded, scores);
    __m512 sum = _mm512_setzero_ps();
    for (int64_t key = 0; key < padded; key += KEYS) {
        __m512 weight = exp16(_mm512_sub_ps(_mm512_load_ps(scores + key), _mm512_set1_ps(tail[0])));
        weight = _mm512_maskz_mov_ps(visible_keys(p, key), weight);
        _mm512_store_ps(scores + key, weight);
        sum = _mm512_add_ps(sum, weight);
    }
    tail[1] = _mm512_reduce_add_ps(sum);
}

static void attend_item(const attention *a, const item *it, int64_t kv_head, float *scratch)
{
    const int64_t group = a->group_size, rows = it->num_pairs * group, head_dim = a->head_dim;
    const int64_t padded = (it->num_keys + KEYS - 1) / KEYS * KEYS;
    const pair *pairs = a->pairs + it->first_pair;
    const int64_t *slots = a->slots + it->first_slot;
    float *transposed = scratch, *scores = scratch + head_dim * KEYS;
    for (int64_t key = 0; key < padded; key += KEYS) {
        int64_t count = it->num_keys - key < KEYS ? it->num_keys - key : KEYS;
        transpose_keys(a, slots + key, count, kv_head, transposed);
        for (int64_t row = 0; row < rows; row += SCORE_ROWS) {
            const float *queries[SCORE_ROWS];
            int64_t used = rows - row < SCORE_ROWS ? rows - row : SCORE_ROWS;
            for (int64_t i = 0; i < used; i++)
                queries[i] = query_of(a, pairs, kv_head, row + i);
            float *to = scores + row * SPAN + key;
            switch (used) {
            case 1: score_rows(queries, transposed, head_dim, to, 1); break;
            case 2: score_rows(queries, transposed, head_dim, to, 2); break;
            case 3: score_rows(queries, transposed, head_dim, to, 3); break;
            case 4: score_rows(queries, transposed, head_dim, to, 4); break;
            case 5: score_rows(queries, transposed, head_dim, to, 5); break;
            case 6: score_rows(queries, transposed, head_dim, to, 6); break;
            case 7: score_rows(queries, transposed, head_dim, to, 7); break;
            default: score_rows(queries, transposed, head_dim, to, 8); break;
            }
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        float *tail = partial_of(a, pairs, kv_head, row) + head_dim;
        exponentials(a, pairs + row / group, padded, scores + row * SPAN, tail);
    }
    for (int64_t row = 0; row < rows; row += VALUE_ROWS) {
        float *out[VALUE_ROWS];
        int64_t used = rows - row < VALUE_ROWS ? rows - row : VALUE_ROWS;
        for (int64_t i = 0; i < used; i++)
            out[i] = partial_of(a, pairs, kv_head, row + i);
        const float *weights = scores + row * SPAN;
        for (int64_t dim = 0; dim < head_dim; dim += DIMS)
            switch (used) {
            case 1: value_rows(a, slots, it->num_keys, kv_head, dim, weights, out, 1); break;
            case 2: value_rows(a, slots, it->num_keys, kv_head, dim, weights, out, 2); break;
            case 3: value_rows(a, slots, it->num_keys, kv_head, dim, weights, out, 3); break;
            case 4: value_rows(a, slots, it->num_keys, kv_head, dim, weights, out, 4); break;
            case 5: value_rows(a, slots, it->num_keys, kv_head, dim, weights, out, 5); break;
            default: value_rows(a, slots, it->num_keys, kv_head, dim, weights, out, 6); break;
            }
    }
}

static void attend_task(void *context, int64_t task, int worker)
{
    const attention *a = context;
    attend_item(a, a->items + task / a->num_kv_heads, task % a->num_kv_heads, a->scratch + worker * a->scratch_size);
}

/* Writes k and v of the step's tokens into the pool, then attends.
 *
 * q: [num_tokens][heads][head_dim], tokens q_stride apart; k, v: [num_tokens][kv_heads][head_dim], tokens k_stride
 * and v_stride apart; written: [num_tokens] slots; folds: [num_tokens][2]: a token's first partial and how many;
 * scratch: threads times head_dim * 16 + max_rows * 192 floats, aligned to 64 bytes; head_dim a multiple of 16.
 */
void ramet_attention(const float *q, int64_t q_stride, const float *k, int64_t k_stride, const float *v,
                     int64_t v_stride, float *keys, float *values, const int64_t *written, int64_t num_tokens,
                     int64_t num_kv_heads, int64_t group_size, int64_t head_dim, const int64_t *slots,
                     const item *items, int64_t num_items, const pair *pairs, const int64_t *folds, float scale,
                     float softcap, float *partials, float *scratch, int64_t scratch_size, float *out, int threads)
{
    attention a = {q,     q_stride, keys,    values,   num_kv_heads, group_size, head_dim, slots,
                   items, pairs,    scale,   softcap,  partials,     folds,      scratch,  scratch_size, out};
    const int64_t row = num_kv_heads * head_dim;
    for (int64_t t = 0; t < num_tokens; t++) {
        memcpy(keys + written[t] * row, k + t * k_stride, (size_t)row * sizeof(float));
        memcpy(values + written[t] * row, v + t * v_stride, (size_t)row * sizeof(float));
    }
    ramet_parallel(num_items * num_kv_heads, 1, threads, attend_task, &a);
    ramet_parallel(num_tokens, FOLDS_AT_ONCE, threads, fold_task, &a);
}
