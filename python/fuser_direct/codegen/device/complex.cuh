// Complex numbers. Blocks tagged [complex] are pasted only into kernels that have a complex value.

//- fd_complex fd_c64 fd_c128
template <class T>
struct alignas(2 * sizeof(T)) fd_complex {
  T re, im;
  fd_complex() = default;
  __device__ __forceinline__ fd_complex(T real, T imag) : re(real), im(imag) {}
};
typedef fd_complex<float> fd_c64;
typedef fd_complex<double> fd_c128;

//- fd_storage [complex]
template <class T>
struct fd_storage<fd_complex<T>> {
  typedef fd_complex<T> reg;
  __device__ static __forceinline__ reg get(const unsigned int* w, int k) {
    return reg(fd_storage<T>::get(w, 2 * k), fd_storage<T>::get(w, 2 * k + 1));
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const reg* v) {
    constexpr int words = (int)sizeof(reg) / 4;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const T parts[2] = {v[k].re, v[k].im};
      fd_storage<T>::template set<2>(w + k * words, parts);
    }
  }
};

//- fd_complex [complex]
template <class T>
__device__ __forceinline__ fd_complex<T> operator+(fd_complex<T> a, fd_complex<T> b) {
  return fd_complex<T>(a.re + b.re, a.im + b.im);
}
template <class T>
__device__ __forceinline__ fd_complex<T> operator-(fd_complex<T> a, fd_complex<T> b) {
  return fd_complex<T>(a.re - b.re, a.im - b.im);
}
template <class T>
__device__ __forceinline__ fd_complex<T> operator-(fd_complex<T> a) {
  return fd_complex<T>(-a.re, -a.im);
}
template <class T>
__device__ __forceinline__ fd_complex<T> operator*(fd_complex<T> a, fd_complex<T> b) {
  return fd_complex<T>(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re);
}
// Smith's method: no overflow of |b|^2.
template <class T>
__device__ inline fd_complex<T> operator/(fd_complex<T> a, fd_complex<T> b) {
  if (fabs(b.re) >= fabs(b.im)) {
    const T ratio = b.re == T(0) && b.im == T(0) ? T(0) : b.im / b.re;
    const T scale = b.re + b.im * ratio;
    return fd_complex<T>((a.re + a.im * ratio) / scale, (a.im - a.re * ratio) / scale);
  }
  const T ratio = b.re / b.im;
  const T scale = b.re * ratio + b.im;
  return fd_complex<T>((a.re * ratio + a.im) / scale, (a.im * ratio - a.re) / scale);
}
template <class T>
__device__ __forceinline__ bool operator==(fd_complex<T> a, fd_complex<T> b) {
  return a.re == b.re && a.im == b.im;
}
template <class T>
__device__ __forceinline__ bool operator!=(fd_complex<T> a, fd_complex<T> b) {
  return !(a == b);
}

//- fd_times_i fd_over_i [complex]
template <class T>
__device__ __forceinline__ fd_complex<T> fd_times_i(fd_complex<T> z) {
  return fd_complex<T>(-z.im, z.re);
}
template <class T>
__device__ __forceinline__ fd_complex<T> fd_over_i(fd_complex<T> z) {
  return fd_complex<T>(z.im, -z.re);
}

//- fd_abs [complex]
template <class T>
__device__ inline T fd_abs(fd_complex<T> z) {
  return hypot(z.re, z.im);
}

//- fd_exp [complex]
template <class T>
__device__ inline fd_complex<T> fd_exp(fd_complex<T> z) {
  const T m = exp(z.re);
  // A zero imaginary part stays zero, also where m is infinite.
  return fd_complex<T>(z.im == T(0) ? m : m * cos(z.im), z.im == T(0) ? z.im : m * sin(z.im));
}

//- fd_log [complex]
// Near |z| = 1 the real part is log1p(|z|^2 - 1) / 2, which keeps its relative accuracy.
template <class T>
__device__ inline fd_complex<T> fd_log(fd_complex<T> z) {
  const T x = fmax(fabs(z.re), fabs(z.im)), y = fmin(fabs(z.re), fabs(z.im));
  const bool near_one = x > T(0.5) && x < T(3);
  const T re = near_one ? T(0.5) * log1p((x - T(1)) * (x + T(1)) + y * y) : log(hypot(x, y));
  return fd_complex<T>(re, atan2(z.im, z.re));
}

//- fd_log2 [complex]
template <class T>
__device__ inline fd_complex<T> fd_log2(fd_complex<T> z) {
  const fd_complex<T> l = fd_log(z);
  return fd_complex<T>(l.re * T(1.4426950408889634), l.im * T(1.4426950408889634));
}

//- fd_log10 [complex]
template <class T>
__device__ inline fd_complex<T> fd_log10(fd_complex<T> z) {
  const fd_complex<T> l = fd_log(z);
  return fd_complex<T>(l.re * T(0.43429448190325182), l.im * T(0.43429448190325182));
}

//- fd_sqrt [complex]
template <class T>
__device__ inline fd_complex<T> fd_sqrt(fd_complex<T> z) {
  if (z.re == T(0) && z.im == T(0)) return fd_complex<T>(T(0), z.im);
  const T t = sqrt(T(0.5) * fabs(z.re) + T(0.5) * hypot(z.re, z.im));
  const T other = T(0.5) * z.im / t;
  if (z.re >= T(0)) return fd_complex<T>(t, other);
  return fd_complex<T>(fabs(other), copysign(t, z.im));
}

//- fd_rsqrt [complex]
template <class T>
__device__ inline fd_complex<T> fd_rsqrt(fd_complex<T> z) {
  return fd_complex<T>(T(1), T(0)) / fd_sqrt(z);
}

//- fd_reciprocal [complex]
template <class T>
__device__ inline fd_complex<T> fd_reciprocal(fd_complex<T> z) {
  return fd_complex<T>(T(1), T(0)) / z;
}

//- fd_sigmoid [complex]
template <class T>
__device__ inline fd_complex<T> fd_sigmoid(fd_complex<T> z) {
  return fd_reciprocal(fd_complex<T>(T(1), T(0)) + fd_exp(-z));
}

//- fd_sinh [complex]
template <class T>
__device__ inline fd_complex<T> fd_sinh(fd_complex<T> z) {
  return fd_complex<T>(sinh(z.re) * cos(z.im), cosh(z.re) * sin(z.im));
}

//- fd_cosh [complex]
template <class T>
__device__ inline fd_complex<T> fd_cosh(fd_complex<T> z) {
  return fd_complex<T>(cosh(z.re) * cos(z.im), sinh(z.re) * sin(z.im));
}

//- fd_tanh [complex]
// tanh(x + iy) = (sinh 2x + i sin 2y) / (cosh 2x + cos 2y), without the overflow of cosh.
template <class T>
__device__ inline fd_complex<T> fd_tanh(fd_complex<T> z) {
  if (fabs(z.re) > T(20)) {
    return fd_complex<T>(copysign(T(1), z.re),
                         T(4) * sin(z.im) * cos(z.im) * exp(T(-2) * fabs(z.re)));
  }
  const T s = sinh(z.re), c = cos(z.im);
  const T scale = s * s + c * c;
  return fd_complex<T>(s * cosh(z.re) / scale, sin(z.im) * c / scale);
}

//- fd_sin [complex]
template <class T>
__device__ inline fd_complex<T> fd_sin(fd_complex<T> z) {
  return fd_complex<T>(sin(z.re) * cosh(z.im), cos(z.re) * sinh(z.im));
}

//- fd_cos [complex]
template <class T>
__device__ inline fd_complex<T> fd_cos(fd_complex<T> z) {
  return fd_complex<T>(cos(z.re) * cosh(z.im), -(sin(z.re) * sinh(z.im)));
}

//- fd_tan [complex]
template <class T>
__device__ inline fd_complex<T> fd_tan(fd_complex<T> z) {
  return fd_over_i(fd_tanh(fd_times_i(z)));
}

//- fd_asin [complex]
// Source: W. Kahan, "Branch cuts for complex elementary functions", 1987; also for acos and acosh.
template <class T>
__device__ inline fd_complex<T> fd_asin(fd_complex<T> z) {
  const fd_complex<T> a = fd_sqrt(fd_complex<T>(T(1) - z.re, -z.im)),
                      b = fd_sqrt(fd_complex<T>(T(1) + z.re, z.im));
  return fd_complex<T>(atan2(z.re, a.re * b.re - a.im * b.im), asinh(a.re * b.im - a.im * b.re));
}

//- fd_acos [complex]
template <class T>
__device__ inline fd_complex<T> fd_acos(fd_complex<T> z) {
  const fd_complex<T> a = fd_sqrt(fd_complex<T>(T(1) - z.re, -z.im)),
                      b = fd_sqrt(fd_complex<T>(T(1) + z.re, z.im));
  return fd_complex<T>(T(2) * atan2(a.re, b.re), asinh(b.re * a.im - b.im * a.re));
}

//- fd_acosh [complex]
template <class T>
__device__ inline fd_complex<T> fd_acosh(fd_complex<T> z) {
  const fd_complex<T> a = fd_sqrt(fd_complex<T>(z.re - T(1), z.im)),
                      b = fd_sqrt(fd_complex<T>(z.re + T(1), z.im));
  return fd_complex<T>(asinh(a.re * b.re + a.im * b.im), T(2) * atan2(a.im, b.re));
}

//- fd_asinh [complex]
template <class T>
__device__ inline fd_complex<T> fd_asinh(fd_complex<T> z) {
  return fd_over_i(fd_asin(fd_times_i(z)));
}

//- fd_atanh [complex]
template <class T>
__device__ inline fd_complex<T> fd_atanh(fd_complex<T> z) {
  // The real part is odd in re(z); computed for |re(z)|, where log1p's argument is far from -1.
  const T x = fabs(z.re);
  const T near = T(1) - x;
  const T re = copysign(T(0.25) * log1p(T(4) * x / (near * near + z.im * z.im)), z.re);
  const T left = T(1) - z.re;
  return fd_complex<T>(re, T(0.5) * atan2(T(2) * z.im, left * (T(1) + z.re) - z.im * z.im));
}

//- fd_atan [complex]
template <class T>
__device__ inline fd_complex<T> fd_atan(fd_complex<T> z) {
  return fd_over_i(fd_atanh(fd_times_i(z)));
}

//- fd_pow [complex]
template <class T>
__device__ inline fd_complex<T> fd_pow(fd_complex<T> z, fd_complex<T> w) {
  if (w.re == T(0) && w.im == T(0)) return fd_complex<T>(T(1), T(0));
  if (z.re == T(0) && z.im == T(0) && w.re > T(0)) return fd_complex<T>(T(0), T(0));
  return fd_exp(w * fd_log(z));
}

//- fd_real [complex]
template <class T>
__device__ __forceinline__ T fd_real(fd_complex<T> z) {
  return z.re;
}

//- fd_imag [complex]
template <class T>
__device__ __forceinline__ T fd_imag(fd_complex<T> z) {
  return z.im;
}

//- fd_isnan [complex]
template <class T>
__device__ __forceinline__ bool fd_isnan(fd_complex<T> z) {
  return isnan(z.re) || isnan(z.im);
}

//- fd_isinf [complex]
template <class T>
__device__ __forceinline__ bool fd_isinf(fd_complex<T> z) {
  return isinf(z.re) || isinf(z.im);
}

//- fd_isfinite [complex]
template <class T>
__device__ __forceinline__ bool fd_isfinite(fd_complex<T> z) {
  return isfinite(z.re) && isfinite(z.im);
}

//- fd_isreal [complex]
template <class T>
__device__ __forceinline__ bool fd_isreal(fd_complex<T> z) {
  return z.im == T(0);
}
