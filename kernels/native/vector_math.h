/* exp and tanh of 16 floats, within 2 units in the last place; every operation is written out. */
#ifndef RAMET_VECTOR_MATH_H
#define RAMET_VECTOR_MATH_H

#include <immintrin.h>
#include <stdint.h>

static inline __mmask16 tail_mask(int64_t remaining)
{
    if (remaining <= 0)
        return 0;
    return remaining >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << remaining) - 1u);
}

/* x = n ln 2 + r with |r| <= ln 2 / 2; exp(r) by its Taylor polynomial, whose error there is below 2^-24.
 * -inf and what is below the smallest result gives 0, NaN gives NaN. */
static inline __m512 exp16(__m512 x)
{
    const __m512 low = _mm512_set1_ps(-104.0f), high = _mm512_set1_ps(89.0f);
    /* The operands' order keeps a NaN: max and min return the second where one is NaN. */
    __m512 bounded = _mm512_min_ps(high, _mm512_max_ps(low, x));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(bounded, _mm512_set1_ps(1.44269504088896341f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), bounded);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040.0f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

/* 1 - 2 / (exp(2x) + 1), and x itself where that would cancel. */
static inline __m512 tanh16(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
    __m512 far = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(exp16(_mm512_mul_ps(two, x)), one)));
    /* Near 0: x - x^3/3 + 2x^5/15 - 17x^7/315 + 62x^9/2835, below 2^-24 of x for |x| < 1/4. */
    __m512 s = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(62.0f / 2835.0f);
    p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(-17.0f / 315.0f));
    p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(2.0f / 15.0f));
    p = _mm512_fmadd_ps(p, s, _mm512_set1_ps(-1.0f / 3.0f));
    __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(p, s), x, x);
    __mmask16 small = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0.25f), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(far, small, near);
}

#endif
