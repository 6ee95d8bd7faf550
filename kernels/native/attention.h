/* What the kernels of attention share, whatever their keys and values are stored as. */
#ifndef RAMET_ATTENTION_H
#define RAMET_ATTENTION_H

#include "parallel.h"
#include "vector_math.h"

#define SPAN 192
#define KEYS 16       /* of a block: lanes of a vector */
#define FOLDS_AT_ONCE 8 /* tokens */
#define DIMS 64       /* of a value block: four vectors */

typedef struct {
    int64_t first_slot, num_keys, first_pair, num_pairs;
} item;

typedef struct {
    int32_t token, begin, end, partial; /* the keys begin..end of the item are visible */
} pair;

typedef struct {
    const float *q;
    int64_t q_stride;
    const void *keys, *values;  /* [num_slots][num_kv_heads][head_dim], fp32 or bf16 */
    int64_t num_kv_heads, group_size, head_dim;
    const int64_t *slots;
    const item *items;
    const pair *pairs;
    float scale, softcap;       /* softcap 0: none */
    float *partials;            /* [num_partials][num_heads][head_dim + 2]: values, highest, sum */
    const int64_t *folds;
    float *scratch;             /* scratch_size floats a thread */
    int64_t scratch_size;
    float *out;
} attention;

static inline int64_t partial_size(const attention *a) { return a->head_dim + 2; }

/* The rows of an item are its pairs' query heads that share the KV head. */
static inline const float *query_of(const attention *a, const pair *pairs, int64_t kv_head, int64_t row)
{
    const int64_t group = a->group_size;
    return a->q + pairs[row / group].token * a->q_stride + (kv_head * group + row % group) * a->head_dim;
}

static inline float *partial_of(const attention *a, const pair *pairs, int64_t kv_head, int64_t row)
{
    const int64_t group = a->group_size, num_heads = a->num_kv_heads * group;
    return a->partials + (pairs[row / group].partial * num_heads + kv_head * group + row % group) * partial_size(a);
}

static inline __mmask16 visible_keys(const pair *p, int64_t key)
{
    return (__mmask16)(tail_mask(p->end - key) & ~tail_mask(p->begin - key));
}

static inline __attribute__((always_inline)) void transpose16(__m512 r[16])
{
    __m512 t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
        __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
        r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* The scores of a row scaled, capped and masked in place. Returns the highest. */
static inline float masked_scores(const attention *a, const pair *p, int64_t padded, float *scores)
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

/* One head's partial results of a token, in the order of its spans. */
static inline void fold(const float *partial, int64_t count, int64_t step, int64_t head_dim, float *out)
{
    float highest = partial[head_dim];
    for (int64_t i = 1; i < count; i++)
        highest = partial[i * step + head_dim] > highest ? partial[i * step + head_dim] : highest;
    __m512 total = _mm512_setzero_ps();
    for (int64_t i = 0; i < count; i++) {
        const float *from = partial + i * step;
        __m512 share = exp16(_mm512_set1_ps(from[head_dim] - highest));
        total = _mm512_fmadd_ps(share, _mm512_set1_ps(from[head_dim + 1]), total);
        for (int64_t dim = 0; dim < head_dim; dim += 16) {
            __m512 before = i == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + dim);
            _mm512_storeu_ps(out + dim, _mm512_fmadd_ps(share, _mm512_loadu_ps(from + dim), before));
        }
    }
    for (int64_t dim = 0; dim < head_dim; dim += 16)
        _mm512_storeu_ps(out + dim, _mm512_div_ps(_mm512_loadu_ps(out + dim), total));
}

static inline void fold_task(void *context, int64_t token, int worker)
{
    const attention *a = context;
    const int64_t num_heads = a->num_kv_heads * a->group_size;
    (void)worker;
    for (int64_t head = 0; head < num_heads; head++) {
        const float *first = a->partials + (a->folds[2 * token] * num_heads + head) * partial_size(a);
        fold(first, a->folds[2 * token + 1], num_heads * partial_size(a), a->head_dim,
             a->out + (token * num_heads + head) * a->head_dim);
    }
}

#endif
