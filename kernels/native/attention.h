/* What the kernels of attention share, whatever their keys and values are stored as. */
#ifndef RAMET_ATTENTION_H
#define RAMET_ATTENTION_H

#include "parallel.h"
#include "vector_math.h"
#include <math.h>

#define SPAN 192
#define KEYS 16       /* of a block: lanes of a vector */
#define FOLDS_AT_ONCE 8 /* tokens */
#define DIMS 64       /* of a value block: four vectors */
#define FOLDED 16     /* partial results whose shares are computed together */

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

/* shares: of up to 16 partial results from `first` on, in what weighs them together. */
static inline void shares_of(const float *first, int64_t count, int64_t step, int64_t head_dim, float highest,
                             float *shares)
{
    const __mmask16 some = tail_mask(count);
    const __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                          _mm512_set1_epi32((int)step));
    __m512 own = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), some, at, first + head_dim, 4);
    _mm512_storeu_ps(shares, exp16(_mm512_sub_ps(own, _mm512_set1_ps(highest))));
}

/* One head's partial results of a token, in the order of its spans. */
static inline void fold(const float *partial, int64_t count, int64_t step, int64_t head_dim, float *out)
{
    float highest = partial[head_dim], total = 0.0f, shares[FOLDED];
    for (int64_t i = 1; i < count; i++)
        highest = partial[i * step + head_dim] > highest ? partial[i * step + head_dim] : highest;
    for (int64_t first = 0; first < count; first += FOLDED) {
        const int64_t some = count - first < FOLDED ? count - first : FOLDED;
        const float *from = partial + first * step;
        shares_of(from, some, step, head_dim, highest, shares);
        for (int64_t i = 0; i < some; i++)
            total = fmaf(shares[i], from[i * step + head_dim + 1], total);
        for (int64_t dim = 0; dim < head_dim; dim += 32) {
            const __mmask16 second = tail_mask(head_dim - dim - 16);
            __m512 low = first == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + dim);
            __m512 high = first == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(second, out + dim + 16);
            for (int64_t i = 0; i < some; i++) {
                const __m512 share = _mm512_set1_ps(shares[i]);
                low = _mm512_fmadd_ps(share, _mm512_loadu_ps(from + i * step + dim), low);
                high = _mm512_fmadd_ps(share, _mm512_maskz_loadu_ps(second, from + i * step + dim + 16), high);
            }
            _mm512_storeu_ps(out + dim, low);
            _mm512_mask_storeu_ps(out + dim + 16, second, high);
        }
    }
    for (int64_t dim = 0; dim < head_dim; dim += 16)
        _mm512_storeu_ps(out + dim, _mm512_div_ps(_mm512_loadu_ps(out + dim), _mm512_set1_ps(total)));
}

/* One partial result, whose share is 1. */
static inline void finish(const float *partial, int64_t head_dim, float *out)
{
    const __m512 total = _mm512_set1_ps(partial[head_dim + 1]);
    for (int64_t dim = 0; dim < head_dim; dim += 16)
        _mm512_storeu_ps(out + dim, _mm512_div_ps(_mm512_loadu_ps(partial + dim), total));
}

static inline void fold_task(void *context, int64_t token, int worker)
{
    const attention *a = context;
    const int64_t num_heads = a->num_kv_heads * a->group_size;
    (void)worker;
    for (int64_t head = 0; head < num_heads; head++) {
        const float *first = a->partials + (a->folds[2 * token] * num_heads + head) * partial_size(a);
        float *out = a->out + (token * num_heads + head) * a->head_dim;
        if (a->folds[2 * token + 1] == 1)
            finish(first, a->head_dim, out);
        else
            fold(first, a->folds[2 * token + 1], num_heads * partial_size(a), a->head_dim, out);
    }
}

#endif
