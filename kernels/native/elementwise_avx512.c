/* What stands between the linears: norms, rope and gated activations, in fp32. A row's bits depend on the row
 * alone: each is computed by the same loop, whatever the number of rows and threads. */
#include "parallel.h"
#include "vector_math.h"
#include <math.h>

#define NAN_OR_INFINITY 0x99 /* classes of vfpclassps: both kinds of NaN, both infinities */
#define ELEMENTS_AT_ONCE 16384 /* of one thread: fewer are done sooner than another one comes */

static int64_t rows_at_once(int64_t width) { return width < ELEMENTS_AT_ONCE ? ELEMENTS_AT_ONCE / width : 1; }

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

typedef struct {
    const float *x, *residual, *weight;
    int64_t stride, width;
    float eps, *normed, *total;
} norm_call;

static void norm_task(void *context, int64_t row, int worker)
{
    const norm_call *c = context;
    (void)worker;
    normed_row(c->x + row * c->stride, c->residual ? c->residual + row * c->width : NULL, c->weight, c->eps, c->width,
               c->normed + row * c->width, c->residual ? c->total + row * c->width : NULL);
}

/* x: rows of `width`, `stride` apart; normed, total: [rows][width]. residual, total: NULL, or added before. */
void ramet_rms_norm(const float *x, int64_t stride, const float *residual, const float *weight, float eps,
                    int64_t rows, int64_t width, float *normed, float *total, int threads)
{
    norm_call c = {x, residual, weight, stride, width, eps, normed, total};
    ramet_parallel(rows, rows_at_once(width), threads, norm_task, &c);
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

typedef struct {
    const float *q, *k, *cos, *sin;
    int64_t q_stride, q_heads, k_stride, k_heads, half;
    float *out;
} rope_call;

static void rope_task(void *context, int64_t t, int worker)
{
    const rope_call *c = context;
    const int64_t half = c->half;
    float *out = c->out + t * (c->q_heads + c->k_heads) * 2 * half;
    (void)worker;
    rotate_heads(c->q + t * c->q_stride, c->q_heads, half, c->cos + t * half, c->sin + t * half, out);
    rotate_heads(c->k + t * c->k_stride, c->k_heads, half, c->cos + t * half, c->sin + t * half,
                 out + c->q_heads * 2 * half);
}

/* q: [tokens][heads][2 * half], k the same with its heads, tokens q_stride and k_stride apart; cos, sin:
 * [tokens][half]; out: [tokens][q_heads + k_heads][2 * half]. */
void ramet_rope(const float *q, int64_t q_stride, int64_t q_heads, const float *k, int64_t k_stride,
                int64_t k_heads, const float *cos, const float *sin, int64_t tokens, int64_t half, float *out,
                int threads)
{
    rope_call c = {q, k, cos, sin, q_stride, q_heads, k_stride, k_heads, half, out};
    ramet_parallel(tokens, rows_at_once((q_heads + k_heads) * 2 * half), threads, rope_task, &c);
}

typedef struct {
    const float *gate_up;
    int64_t stride, width;
    int tanh_gelu;
    float *out;
} activation_call;

static void activation_task(void *context, int64_t row, int worker)
{
    const activation_call *c = context;
    const __m512 one = _mm512_set1_ps(1.0f);
    const float *gates = c->gate_up + row * c->stride;
    (void)worker;
    for (int64_t i = 0; i < c->width; i += 16) {
        __mmask16 mask = tail_mask(c->width - i);
        __m512 gate = _mm512_maskz_loadu_ps(mask, gates + i);
        __m512 up = _mm512_maskz_loadu_ps(mask, gates + c->width + i);
        __m512 z = gate;
        if (c->tanh_gelu) {
            /* gelu_tanh(x) = x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))) */
            __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(gate, gate), _mm512_set1_ps(0.044715f), one);
            z = _mm512_mul_ps(_mm512_mul_ps(gate, cubic), _mm512_set1_ps(1.59576912160573f));
        }
        __m512 denominator = _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), z)));
        _mm512_mask_storeu_ps(c->out + row * c->width + i, mask, _mm512_mul_ps(_mm512_div_ps(gate, denominator), up));
    }
}

/* gate_up: rows of 2 * width, gate first, `stride` apart; out: [rows][width]. tanh_gelu: 0 is SiLU. */
void ramet_gated_activation(const float *gate_up, int64_t stride, int64_t rows, int64_t width, int tanh_gelu,
                            float *out, int threads)
{
    activation_call c = {gate_up, stride, width, tanh_gelu, out};
    ramet_parallel(rows, rows_at_once(width), threads, activation_task, &c);
}

typedef struct {
    const float *x;
    int64_t width;
    uint8_t *finite;
} finite_call;

static void finite_task(void *context, int64_t row, int worker)
{
    const finite_call *c = context;
    const float *x = c->x + row * c->width;
    __mmask16 broken = 0;
    (void)worker;
    for (int64_t i = 0; i < c->width; i += 16)
        broken |= _mm512_fpclass_ps_mask(_mm512_maskz_loadu_ps(tail_mask(c->width - i), x + i), NAN_OR_INFINITY);
    c->finite[row] = broken == 0;
}

/* x: [rows][width]; finite: [rows], 1 where no number of the row is NaN or infinite. */
void ramet_finite_rows(const float *x, int64_t rows, int64_t width, uint8_t *finite, int threads)
{
    finite_call c = {x, width, finite};
    ramet_parallel(rows, rows_at_once(width), threads, finite_task, &c);
}
