// Cheaper forms of costly functions, on floats: for values that reach memory as half or bfloat16
// alone (`codegen/half_math.py`). Errors below are against exact arithmetic, over all floats unless
// said otherwise; the least rounding of a result to half is 4.9e-4 relative.

//- fd_exp2_approx fd_log2_approx fd_reciprocal_approx fd_reciprocal_flushed fd_div_approx
// Error 2 units in the last place each, of lg2 2^-22 near 1; ex2 and the flushed reciprocal take and
// give 0 for denormals, and infinity from 2^-126 down, which saves the latter seven instructions.
__device__ __forceinline__ float fd_exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float fd_log2_approx(float x) {
  float r;
  asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float fd_reciprocal_approx(float x) {
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float fd_reciprocal_flushed(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ float fd_div_approx(float a, float b) {
  float r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

//- fd_half_exp
// 2^(x log2 e): relative error below 1e-5.
__device__ __forceinline__ float fd_half_exp(float x) { return fd_exp2_approx(x * 1.44269504f); }

//- fd_half_sigmoid
// Relative error below 1e-5 where the result is a normal number; 0 where it is not.
__device__ __forceinline__ float fd_half_sigmoid(float x) {
  return fd_reciprocal_flushed(1.0f + fd_exp2_approx(x * -1.44269504f));
}

//- fd_half_silu
// Relative error below 1e-5 where the sigmoid is a normal number.
__device__ __forceinline__ float fd_half_silu(float x) { return x * fd_half_sigmoid(x); }

//- fd_half_tanh
// 1 - 2 / (e^2x + 1), and x (1 - x^2 / 3) near 0: relative error below 5e-6.
__device__ __forceinline__ float fd_half_tanh(float x) {
  const float power = fd_exp2_approx(x * 2.88539008f);
  const float far = fmaf(-2.0f, fd_reciprocal_flushed(1.0f + power), 1.0f);
  const float near = x * fmaf(x * x, -0.333333333f, 1.0f);
  return fabsf(x) < 0.0625f ? near : far;
}

//- fd_half_log fd_half_log1p
// The logarithm of x = 1 + t: log2(x) log 2, and t - t^2 / 2 + t^3 / 3 where t is small. Relative
// error below 2e-5.
__device__ __forceinline__ float fd_half_log_of(float x, float t) {
  const float near = fmaf(t * t, fmaf(t, 0.333333333f, -0.5f), t);
  return fabsf(t) < 0.03125f ? near : fd_log2_approx(x) * 0.693147181f;
}
__device__ __forceinline__ float fd_half_log(float x) { return fd_half_log_of(x, x - 1.0f); }
__device__ __forceinline__ float fd_half_log1p(float x) { return fd_half_log_of(1.0f + x, x); }

//- fd_half_erf
// 1 - 2^(a p(a)) for a = |x|, with p a polynomial fitted to log2(erfc(a)) / a on [0, 4] by weighted
// least squares, and 2 a / sqrt(pi) near 0: absolute error below 8e-7, relative below 3e-5. The
// leading coefficient makes large a give exactly 1.
__device__ __forceinline__ float fd_half_erf(float x) {
  const float a = fabsf(x);
  float p = fmaf(a, -0.00296413382f, 0.0296774728f);
  p = fmaf(p, a, -0.148795765f);
  p = fmaf(p, a, -0.918432726f);
  p = fmaf(p, a, -1.62790367f);
  const float far = 1.0f - fd_exp2_approx(a * p);
  return copysignf(a < 0.0078125f ? a * 1.12837917f : far, x);
}

//- fd_half_div
// Error 2 units in the last place.
__device__ __forceinline__ float fd_half_div(float a, float b) { return fd_div_approx(a, b); }

//- fd_half_divisor
// Division of many numbers by one, to the bits of fd_half_div, which also scales the divisor into
// the range of the reciprocal.
struct fd_half_divisor {
  float scale, reciprocal;
  __device__ __forceinline__ explicit fd_half_divisor(float d)
      : scale(fabsf(d) > 8.50705917e37f    ? 0.25f
              : fabsf(d) < 1.17549435e-38f ? 16777216.0f
                                           : 1.0f),
        reciprocal(fd_reciprocal_approx(d * scale)) {}
  __device__ __forceinline__ float divide(float x) const { return x * scale * reciprocal; }
};

//- fd_half_reciprocal
// Error 1 unit in the last place.
__device__ __forceinline__ float fd_half_reciprocal(float x) { return fd_reciprocal_approx(x); }
