/* What stands between the linears: norms, rope and gated activations, in fp32. A row's bits depend on the row
 * alone: each is computed by the same loop, whatever the number of rows and threads. */
#include "vector_math.h"
#include <math.h>

#define MIN_PARALLEL 32768 /* elements: fewer are done sooner than another thread begins */

static void normed_row(const float *x, const float *residual, const float *weight, float eps, int64_t width,
                       float *normed, float *total)
{
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 16) {
        __mmask16 mask = tail_mask(width - i);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        if (residual) {
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, residual + i));
            _mm512_mask_storeu_ps(total + i, mask, v);
        }
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    float scale = 1.0f / sqrtf(_mm512_reduce_add_ps(squares) / (float)width + eps);
    const float *from = residual ? total : x;
    for (int64_t i = 0; i < width; i += 16) {
        __mmask16 mask = tail_mask(width - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, from + i), _mm512_set1_ps(scale));
        _mm512_mask_storeu_ps(normed + i, mask, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i)));
    }
}

/* x: rows of `width`, `stride` apart; normed, total: [rows][width]. residual, total: NULL, or added before. */
void ramet_rms_norm(const float *x, int64_t stride, const float *residual, const float *weight, float eps,
                    int64_t rows, int64_t width, float *normed, float *total, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && rows * width >= MIN_PARALLEL)
    for (int64_t row = 0; row < rows; row++)
        normed_row(x + row * stride, residual ? residual + row * width : NULL, weight, eps, width,
                   normed + row * width, residual ? total + row * width : NULL);
}

static void rotate_heads(const float *x, int64_t heads, int64_t half, const float *cos, const float *sin, float *out)
{
    for (int64_t head = 0; head < heads; head++, x += 2 * half, out += 2 * half)
        for (int64_t i = 0; i < half; i += 16) {
            __mmask16 mask = tail_mask(half - i);
            __m512 first = _mm512_maskz_loadu_ps(mask, x + i), second = _mm512_maskz_loadu_ps(mask, x + half + i);
            __m512 c = _mm512_maskz_loadu_ps(mask, cos + i), s = _mm512_maskz_loadu_ps(mask, sin + i);
            _mm512_mask_storeu_ps(out + i, mask, _mm512_fnmadd_ps(second, s, _mm512_mul_ps(first, c)));
            _mm512_mask_storeu_ps(out + half + i, mask, _mm512_fmadd_ps(first, s, _mm512_mul_ps(second, c)));
        }
}

/* q: [tokens][heads][2 * half], k the same with its heads, tokens q_stride and k_stride apart; cos, sin:
 * [tokens][half]; out: [tokens][q_heads + k_heads][2 * half]. */
void ramet_rope(const float *q, int64_t q_stride, int64_t q_heads, const float *k, int64_t k_stride,
                int64_t k_heads, const float *cos, const float *sin, int64_t tokens, int64_t half, float *out,
                int threads)
{
    int64_t width = (q_heads + k_heads) * 2 * half;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && tokens * width >= MIN_PARALLEL)
    for (int64_t t = 0; t < tokens; t++) {
        rotate_heads(q + t * q_stride, q_heads, half, cos + t * half, sin + t * half, out + t * width);
        rotate_heads(k + t * k_stride, k_heads, half, cos + t * half, sin + t * half,
                     out + t * width + q_heads * 2 * half);
    }
}

/* gate_up: rows of 2 * width, gate first, `stride` apart; out: [rows][width]. tanh_gelu: 0 is SiLU. */
void ramet_gated_activation(const float *gate_up, int64_t stride, int64_t rows, int64_t width, int tanh_gelu,
                            float *out, int threads)
{
    const __m512 one = _mm512_set1_ps(1.0f);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && rows * width >= MIN_PARALLEL)
    for (int64_t row = 0; row < rows; row++) {
        const float *gates = gate_up + row * stride;
        for (int64_t i = 0; i < width; i += 16) {
            __mmask16 mask = tail_mask(width - i);
            __m512 gate = _mm512_maskz_loadu_ps(mask, gates + i);
            __m512 up = _mm512_maskz_loadu_ps(mask, gates + width + i);
            __m512 z = gate;
            if (tanh_gelu) {
                /* gelu_tanh(x) = x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))) */
                __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(gate, gate), _mm512_set1_ps(0.044715f), one);
                z = _mm512_mul_ps(_mm512_mul_ps(gate, cubic), _mm512_set1_ps(1.59576912160573f));
            }
            __m512 denominator = _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), z)));
            _mm512_mask_storeu_ps(out + row * width + i, mask, _mm512_mul_ps(_mm512_div_ps(gate, denominator), up));
        }
    }
}
