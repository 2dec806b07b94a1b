// The op table's rows that are device functions, on float, double, int, long long and bool. The
// functions of CUDA's math library are built into NVRTC and overloaded on float and double.

//- fd_acos
template <class T>
__device__ inline T fd_acos(T x) {
  return acos(x);
}

//- fd_acosh
template <class T>
__device__ inline T fd_acosh(T x) {
  return acosh(x);
}

//- fd_asin
template <class T>
__device__ inline T fd_asin(T x) {
  return asin(x);
}

//- fd_asinh
template <class T>
__device__ inline T fd_asinh(T x) {
  return asinh(x);
}

//- fd_atan
template <class T>
__device__ inline T fd_atan(T x) {
  return atan(x);
}

//- fd_atanh
template <class T>
__device__ inline T fd_atanh(T x) {
  return atanh(x);
}

//- fd_cos
// Sine, cosine and tangent of float: from 105615 on, CUDA's functions reduce the angle in 192 bits,
// which is most of their code. That part is called, so that the compiler, which sees CUDA's own
// comparison decided, leaves it out of every place that the function is inlined into.
template <class T>
__device__ inline T fd_cos(T x) {
  return cos(x);
}
__device__ __noinline__ float fd_cos_far(float x) { return cosf(x); }
__device__ inline float fd_cos(float x) {
  return fabsf(x) >= 105615.0f ? fd_cos_far(x) : cosf(x);
}

//- fd_cosh
template <class T>
__device__ inline T fd_cosh(T x) {
  return cosh(x);
}

//- fd_exp
template <class T>
__device__ __forceinline__ T fd_exp(T x) {
  return exp(x);
}

//- fd_exp2
template <class T>
__device__ __forceinline__ T fd_exp2(T x) {
  return exp2(x);
}

//- fd_expm1
template <class T>
__device__ inline T fd_expm1(T x) {
  return expm1(x);
}

//- fd_erf
template <class T>
__device__ __forceinline__ T fd_erf(T x) {
  return erf(x);
}

//- fd_erfc
template <class T>
__device__ inline T fd_erfc(T x) {
  return erfc(x);
}

//- fd_erfinv
template <class T>
__device__ inline T fd_erfinv(T x) {
  return erfinv(x);
}

//- fd_erfcinv
template <class T>
__device__ inline T fd_erfcinv(T x) {
  return erfcinv(x);
}

//- fd_lgamma
template <class T>
__device__ inline T fd_lgamma(T x) {
  return lgamma(x);
}

//- fd_log
template <class T>
__device__ __forceinline__ T fd_log(T x) {
  return log(x);
}

//- fd_log10
template <class T>
__device__ inline T fd_log10(T x) {
  return log10(x);
}

//- fd_log1p
template <class T>
__device__ inline T fd_log1p(T x) {
  return log1p(x);
}

//- fd_log2
template <class T>
__device__ __forceinline__ T fd_log2(T x) {
  return log2(x);
}

//- fd_reciprocal
template <class T>
__device__ __forceinline__ T fd_reciprocal(T x) {
  return T(1) / x;
}

//- fd_rsqrt
template <class T>
__device__ __forceinline__ T fd_rsqrt(T x) {
  return rsqrt(x);
}

//- fd_sigmoid
template <class T>
__device__ __forceinline__ T fd_sigmoid(T x) {
  return T(1) / (T(1) + exp(-x));
}

//- fd_sin
template <class T>
__device__ inline T fd_sin(T x) {
  return sin(x);
}
__device__ __noinline__ float fd_sin_far(float x) { return sinf(x); }
__device__ inline float fd_sin(float x) {
  return fabsf(x) >= 105615.0f ? fd_sin_far(x) : sinf(x);
}

//- fd_sinh
template <class T>
__device__ inline T fd_sinh(T x) {
  return sinh(x);
}

//- fd_sqrt
template <class T>
__device__ __forceinline__ T fd_sqrt(T x) {
  return sqrt(x);
}

//- fd_tan
template <class T>
__device__ inline T fd_tan(T x) {
  return tan(x);
}
__device__ __noinline__ float fd_tan_far(float x) { return tanf(x); }
__device__ inline float fd_tan(float x) {
  return fabsf(x) >= 105615.0f ? fd_tan_far(x) : tanf(x);
}

//- fd_tanh
template <class T>
__device__ __forceinline__ T fd_tanh(T x) {
  return tanh(x);
}

//- fd_abs
__device__ __forceinline__ float fd_abs(float x) { return fabsf(x); }
__device__ __forceinline__ double fd_abs(double x) { return fabs(x); }
// By way of unsigned, where the least value wraps to itself.
__device__ __forceinline__ int fd_abs(int x) { return x < 0 ? (int)(0u - (unsigned int)x) : x; }
__device__ __forceinline__ long long fd_abs(long long x) {
  return x < 0 ? (long long)(0ull - (unsigned long long)x) : x;
}

//- fd_ceil
template <class T>
__device__ __forceinline__ T fd_ceil(T x) {
  return ceil(x);
}

//- fd_floor
template <class T>
__device__ __forceinline__ T fd_floor(T x) {
  return floor(x);
}

//- fd_round
template <class T>
__device__ __forceinline__ T fd_round(T x) {
  return rint(x);
}

//- fd_trunc
template <class T>
__device__ __forceinline__ T fd_trunc(T x) {
  return trunc(x);
}

//- fd_frac
template <class T>
__device__ __forceinline__ T fd_frac(T x) {
  return x - trunc(x);
}

//- fd_silu
template <class T>
__device__ __forceinline__ T fd_silu(T x) {
  return x * fd_sigmoid(x);
}

//- fd_signbit
__device__ __forceinline__ bool fd_signbit(float x) { return __float_as_int(x) < 0; }
__device__ __forceinline__ bool fd_signbit(double x) { return __double2hiint(x) < 0; }
__device__ __forceinline__ bool fd_signbit(int x) { return x < 0; }
__device__ __forceinline__ bool fd_signbit(long long x) { return x < 0; }

//- fd_isfinite
template <class T>
__device__ __forceinline__ bool fd_isfinite(T) {
  return true;
}
__device__ __forceinline__ bool fd_isfinite(float x) { return isfinite(x); }
__device__ __forceinline__ bool fd_isfinite(double x) { return isfinite(x); }

//- fd_isinf
template <class T>
__device__ __forceinline__ bool fd_isinf(T) {
  return false;
}
__device__ __forceinline__ bool fd_isinf(float x) { return isinf(x); }
__device__ __forceinline__ bool fd_isinf(double x) { return isinf(x); }

//- fd_isnan
template <class T>
__device__ __forceinline__ bool fd_isnan(T) {
  return false;
}
__device__ __forceinline__ bool fd_isnan(float x) { return isnan(x); }
__device__ __forceinline__ bool fd_isnan(double x) { return isnan(x); }

//- fd_isneginf
template <class T>
__device__ __forceinline__ bool fd_isneginf(T) {
  return false;
}
__device__ __forceinline__ bool fd_isneginf(float x) { return isinf(x) && x < 0.0f; }
__device__ __forceinline__ bool fd_isneginf(double x) { return isinf(x) && x < 0.0; }

//- fd_isposinf
template <class T>
__device__ __forceinline__ bool fd_isposinf(T) {
  return false;
}
__device__ __forceinline__ bool fd_isposinf(float x) { return isinf(x) && x > 0.0f; }
__device__ __forceinline__ bool fd_isposinf(double x) { return isinf(x) && x > 0.0; }

//- fd_isreal
template <class T>
__device__ __forceinline__ bool fd_isreal(T) {
  return true;
}

//- fd_div
// Correctly rounded; integers truncate toward zero, and by 0 give 0.
template <class T>
__device__ __forceinline__ T fd_div(T a, T b) {
  return a / b;
}
// Division by -1 goes by way of unsigned, where the least value wraps to itself.
__device__ inline int fd_div(int a, int b) {
  return b == 0 ? 0 : b == -1 ? (int)(0u - (unsigned int)a) : a / b;
}
__device__ inline long long fd_div(long long a, long long b) {
  return b == 0 ? 0 : b == -1 ? (long long)(0ull - (unsigned long long)a) : a / b;
}

//- fd_divisor
// Division of many numbers by one, rounded as fd_div rounds. The quotient by a reciprocal of twice
// the precision is one of the two floats around the exact one, and its remainder decides between
// them: Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor"
// (1990). That needs operands far from the ends of the range; zero, whose quotient has a sign, does
// for a positive divisor. `exact` becomes false where it isn't known to be right.
struct fd_divisor {
  float by, reciprocal, below, rest;
  bool is_middling;
  __device__ __forceinline__ explicit fd_divisor(float d)
      : by(d), reciprocal(1.0f / d), is_middling(d >= 2.98023224e-8f && d <= 33554432.0f) {
    // Rounded down, so that what is left isn't negative and a zero keeps its sign.
    const bool is_above = fmaf(d, reciprocal, -1.0f) > 0.0f;
    below = is_above ? __uint_as_float(__float_as_uint(reciprocal) - 1) : reciprocal;
    rest = fmaf(-d, below, 1.0f) * reciprocal;
  }
  __device__ __forceinline__ float divide(float x, bool& exact) const {
    const float near = fmaf(x, below, x * rest);
    const float over = fmaf(near, by, -x);
    const float quotient = fmaf(over, -reciprocal, near);
    // Zero wraps to the largest number; others are at least 2^-90.
    const bool is_large = 2 * __float_as_uint(x) - 1 >= 2 * 0x12800000u - 1;
    exact = exact && is_middling && is_large && quotient == quotient;
    return quotient;
  }
};

//- fd_mod
// C's %: the sign of the dividend; by 0 gives 0.
template <class T>
__device__ inline T fd_mod(T a, T b) {
  return b == T(0) || b == T(-1) ? T(0) : a % b;
}

//- fd_fmod
__device__ inline float fd_fmod(float a, float b) { return fmodf(a, b); }
__device__ inline double fd_fmod(double a, double b) { return fmod(a, b); }
__device__ inline int fd_fmod(int a, int b) { return fd_mod(a, b); }
__device__ inline long long fd_fmod(long long a, long long b) { return fd_mod(a, b); }

//- fd_remainder
// The divisor's sign; a zero keeps the dividend's.
template <class T>
__device__ inline T fd_remainder(T a, T b) {
  const T rest = fd_fmod(a, b);
  return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
}

//- fd_pow
__device__ inline float fd_pow(float a, float b) { return powf(a, b); }
__device__ inline double fd_pow(double a, double b) { return pow(a, b); }
// By squaring, with wraparound; a negative exponent gives 0 unless the base is 1 or -1.
template <class T, class Unsigned>
__device__ inline T fd_pow_integer(T a, T b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
  Unsigned result = 1, factor = (Unsigned)a;
  for (Unsigned n = (Unsigned)b; n != 0; n >>= 1) {
    if (n & 1) result *= factor;
    factor *= factor;
  }
  return (T)result;
}
__device__ inline int fd_pow(int a, int b) { return fd_pow_integer<int, unsigned int>(a, b); }
__device__ inline long long fd_pow(long long a, long long b) {
  return fd_pow_integer<long long, unsigned long long>(a, b);
}

//- fd_atan2
template <class T>
__device__ inline T fd_atan2(T a, T b) {
  return atan2(a, b);
}

//- fd_nextafter
template <class T>
__device__ inline T fd_nextafter(T a, T b) {
  return nextafter(a, b);
}

//- fd_max_float fd_min_float
// NaN wins, and -0.0 is less than +0.0: one instruction from sm_80 on.
__device__ __forceinline__ float fd_max_float(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
__device__ __forceinline__ float fd_min_float(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

//- fd_relu
// Written so that NaN passes.
template <class T>
__device__ __forceinline__ T fd_relu(T x) {
  return x <= T(0) ? T(0) : x;
}
__device__ __forceinline__ float fd_relu(float x) { return fd_max_float(x, 0.0f); }

//- fd_maximum
template <class T>
__device__ __forceinline__ T fd_maximum(T a, T b) {
  return a > b ? a : b;
}
__device__ __forceinline__ float fd_maximum(float a, float b) { return fd_max_float(a, b); }
__device__ __forceinline__ double fd_maximum(double a, double b) {
  if (isnan(a)) return a;
  if (a == b) return __double2hiint(a) < 0 ? b : a;
  return a > b ? a : b;
}

//- fd_minimum
template <class T>
__device__ __forceinline__ T fd_minimum(T a, T b) {
  return a < b ? a : b;
}
__device__ __forceinline__ float fd_minimum(float a, float b) { return fd_min_float(a, b); }
__device__ __forceinline__ double fd_minimum(double a, double b) {
  if (isnan(a)) return a;
  if (a == b) return __double2hiint(a) < 0 ? a : b;
  return a < b ? a : b;
}

//- fd_gcd
// Of the magnitudes, which unsigned types hold all of.
template <class Unsigned>
__device__ inline Unsigned fd_gcd_unsigned(Unsigned a, Unsigned b) {
  while (b != 0) {
    const Unsigned rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}
__device__ inline int fd_gcd(int a, int b) {
  return (int)fd_gcd_unsigned((unsigned int)fd_abs(a), (unsigned int)fd_abs(b));
}
__device__ inline long long fd_gcd(long long a, long long b) {
  return (long long)fd_gcd_unsigned((unsigned long long)fd_abs(a), (unsigned long long)fd_abs(b));
}

//- fd_lerp
template <class T>
__device__ __forceinline__ T fd_lerp(T start, T end, T weight) {
  const T step = end - start;
  return weight < T(0.5) ? start + weight * step : end - step * (T(1) - weight);
}

//- fd_clamp
template <class T>
__device__ __forceinline__ T fd_clamp(T x, T lo, T hi) {
  return fd_minimum(fd_maximum(x, lo), hi);
}

//- fd_threshold
template <class T>
__device__ __forceinline__ T fd_threshold(T x, T threshold, T value) {
  return x <= threshold ? value : x;
}
