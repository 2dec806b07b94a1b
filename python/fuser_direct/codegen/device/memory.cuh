// Registers and memory: how elements lie in 32-bit words, and how words move.
//
// Each block, from a line that opens with "//- " to the next, is pasted into a kernel only when the
// kernel, or a pasted block, uses one of the names on that line; blocks with a tag in brackets also
// need that property of the kernel.

//- fd_index_of
// An integer among indices, none of which is negative or the type's largest number: itself, or a
// number that compares with each of them as it does.
template <class Index>
__device__ __forceinline__ Index fd_index_of(long long n) {
  constexpr long long largest = (long long)(~0ull >> 1 >> 8 * (8 - sizeof(Index)));
  return (Index)(n < 0 ? -1 : n < largest ? n : largest);
}

//- fd_divider
// Division by a number that stays the same, for many dividends below half of their type's range, by
// the high half of a product. Granlund and Montgomery, "Division by invariant integers using
// multiplication" (1994), figure 4.1, without its care for overflow. Factor and shift come from
// `schedulers/dividers.py`, or, for 32 bits, from the divisor.
template <class Index>
struct fd_divider;

template <>
struct fd_divider<unsigned int> {
  unsigned int factor, shift;
  __device__ __forceinline__ fd_divider(unsigned int f, unsigned int s) : factor(f), shift(s) {}
  __device__ __forceinline__ explicit fd_divider(unsigned int d)
      : shift(d > 1 ? 32 - __clz(d - 1) : 0) {
    factor = d == 0 ? 1 : (unsigned int)((((1ull << shift) - d) << 32) / d) + 1;
  }
  __device__ __forceinline__ unsigned int divide(unsigned int n) const {
    return (__umulhi(n, factor) + n) >> shift;
  }
};

template <>
struct fd_divider<unsigned long long> {
  unsigned long long factor, shift, by;
  __device__ __forceinline__ fd_divider(unsigned long long f, unsigned long long s)
      : factor(f), shift(s), by(0) {}
  __device__ __forceinline__ explicit fd_divider(unsigned long long d)
      : factor(0), shift(0), by(d) {}
  __device__ __forceinline__ unsigned long long divide(unsigned long long n) const {
    return by != 0 ? n / by : (__umul64hi(n, factor) + n) >> shift;
  }
};

//- fd_pack
// Elements as they lie in memory, in whole 32-bit registers.
template <int Words>
struct fd_pack {
  unsigned int w[Words];
};

//- fd_words
template <class T>
__device__ constexpr int fd_words(int n) {
  return (n * (int)sizeof(T) + 3) / 4;
}

//- fd_storage
// Element type T of memory: its register type, element k of packed words, and words made of n
// register values.
template <class T>
struct fd_storage;

template <>
struct fd_storage<float> {
  typedef float reg;
  __device__ static __forceinline__ float get(const unsigned int* w, int k) {
    return __uint_as_float(w[k]);
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const float* v) {
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = __float_as_uint(v[k]);
  }
};

template <>
struct fd_storage<int> {
  typedef int reg;
  __device__ static __forceinline__ int get(const unsigned int* w, int k) { return (int)w[k]; }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const int* v) {
#pragma unroll
    for (int k = 0; k < N; ++k) w[k] = (unsigned int)v[k];
  }
};

template <>
struct fd_storage<double> {
  typedef double reg;
  __device__ static __forceinline__ double get(const unsigned int* w, int k) {
    return __hiloint2double((int)w[2 * k + 1], (int)w[2 * k]);
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const double* v) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      w[2 * k] = (unsigned int)__double2loint(v[k]);
      w[2 * k + 1] = (unsigned int)__double2hiint(v[k]);
    }
  }
};

template <>
struct fd_storage<long long> {
  typedef long long reg;
  __device__ static __forceinline__ long long get(const unsigned int* w, int k) {
    return (long long)((unsigned long long)w[2 * k + 1] << 32 | w[2 * k]);
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const long long* v) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      w[2 * k] = (unsigned int)v[k];
      w[2 * k + 1] = (unsigned int)((unsigned long long)v[k] >> 32);
    }
  }
};

//- fd_bool
// A bool in memory: any non-zero byte is true.
struct fd_bool {
  unsigned char byte;
};
template <>
struct fd_storage<fd_bool> {
  typedef bool reg;
  __device__ static __forceinline__ bool get(const unsigned int* w, int k) {
    return (w[k / 4] >> (8 * (k % 4)) & 0xffu) != 0;
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const bool* v) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const unsigned int bit = (v[k] ? 1u : 0u) << (8 * (k % 4));
      w[k / 4] = k % 4 == 0 ? bit : w[k / 4] | bit;
    }
  }
};

//- fd_narrow_bf16 fd_narrow_half fd_widen_half
// Two floats as packed half-precision words, low half first; and half-precision bits as float.
__device__ __forceinline__ unsigned int fd_narrow_bf16(float lo, float hi) {
  unsigned int w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
  return w;
}
__device__ __forceinline__ unsigned int fd_narrow_half(float lo, float hi) {
  unsigned int w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
  return w;
}
__device__ __forceinline__ float fd_widen_half(unsigned int bits) {
  float x;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(bits));
  return x;
}

//- fd_bf16
// bfloat16 in memory; float that holds a bfloat16 value in registers.
struct fd_bf16 {
  unsigned short bits;
};
template <>
struct fd_storage<fd_bf16> {
  typedef float reg;
  __device__ static __forceinline__ float get(const unsigned int* w, int k) {
    return __uint_as_float(k % 2 == 0 ? w[k / 2] << 16 : w[k / 2] & 0xffff0000u);
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const float* v) {
#pragma unroll
    for (int k = 0; k < N; k += 2) w[k / 2] = fd_narrow_bf16(v[k], k + 1 < N ? v[k + 1] : 0.0f);
  }
};

//- fd_round_bf16
// The bfloat16 value nearest to x, ties to even.
__device__ __forceinline__ float fd_round_bf16(float x) {
  return __uint_as_float(fd_narrow_bf16(0.0f, x));
}

//- fd_half
// IEEE half in memory; float that holds a half value in registers.
struct fd_half {
  unsigned short bits;
};
template <>
struct fd_storage<fd_half> {
  typedef float reg;
  __device__ static __forceinline__ float get(const unsigned int* w, int k) {
    return fd_widen_half(k % 2 == 0 ? w[k / 2] & 0xffffu : w[k / 2] >> 16);
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const float* v) {
#pragma unroll
    for (int k = 0; k < N; k += 2) w[k / 2] = fd_narrow_half(v[k], k + 1 < N ? v[k + 1] : 0.0f);
  }
};

//- fd_round_half
// The half value nearest to x, ties to even.
__device__ __forceinline__ float fd_round_half(float x) {
  return fd_widen_half(fd_narrow_half(x, 0.0f));
}

//- fd_narrow_fp8
// Bits of the fp8 value nearest to x, ties to even; what is beyond the largest finite value becomes
// that one, NaN stays NaN, and both keep their sign. Mantissa: bits after the leading one; Bias: of
// the exponent; Largest: bits of the largest finite value.
template <int Mantissa, int Bias, unsigned int Largest>
__device__ __forceinline__ unsigned int fd_narrow_fp8(float x) {
  constexpr int shift = 23 - Mantissa;
  // Adding this leaves the sum's last bit worth the least denormal: the hardware rounds.
  constexpr unsigned int unit = (unsigned int)(151 - Bias - Mantissa) << 23;
  const unsigned int bits = __float_as_uint(x), size = bits & 0x7fffffffu;
  const unsigned int tiny =
      __float_as_uint(__uint_as_float(size) + __uint_as_float(unit)) - unit;
  const unsigned int halfway = (1u << (shift - 1)) - 1u + (size >> shift & 1u);
  unsigned int r = (size + halfway - ((unsigned int)(127 - Bias) << 23)) >> shift;
  r = r > Largest ? Largest : r;
  r = size < (unsigned int)(128 - Bias) << 23 ? tiny : r;
  r = size > 0x7f800000u ? 0x7fu : r;
  return r | (bits >> 24 & 0x80u);
}

//- fd_narrow_e4m3
// Two floats as fp8 e4m3 in the low bytes of a word, `lo` lowest. The instruction of sm_89 drops the
// sign of NaN.
__device__ __forceinline__ unsigned int fd_narrow_e4m3(float lo, float hi) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(hi), "f"(lo));
  const unsigned int signs = __byte_perm(__float_as_uint(lo), __float_as_uint(hi), 0x0073u);
  return both | (signs & 0x8080u);
#else
  return fd_narrow_fp8<3, 7, 0x7eu>(lo) | fd_narrow_fp8<3, 7, 0x7eu>(hi) << 8;
#endif
}

//- fd_narrow_e5m2
// Two floats as fp8 e5m2, as `fd_narrow_e4m3`.
__device__ __forceinline__ unsigned int fd_narrow_e5m2(float lo, float hi) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short both;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(both) : "f"(hi), "f"(lo));
  const unsigned int signs = __byte_perm(__float_as_uint(lo), __float_as_uint(hi), 0x0073u);
  return both | (signs & 0x8080u);
#else
  return fd_narrow_fp8<2, 15, 0x7bu>(lo) | fd_narrow_fp8<2, 15, 0x7bu>(hi) << 8;
#endif
}

//- fd_widen_e4m3
// The lowest byte, fp8 e4m3, as float. With its exponent at a float's place it is 2^120 too small.
__device__ __forceinline__ float fd_widen_e4m3(unsigned int byte) {
  const float size = __uint_as_float((byte & 0x7fu) << 20) * 0x1p120f;
  const unsigned int bits = (byte & 0x7fu) == 0x7fu ? 0x7fc00000u : __float_as_uint(size);
  return __uint_as_float(bits | (byte & 0x80u) << 24);
}

//- fd_widen_e5m2
// The lowest byte, fp8 e5m2, as float: it is the upper byte of a half.
__device__ __forceinline__ float fd_widen_e5m2(unsigned int byte) {
  return fd_widen_half((byte & 0xffu) << 8);
}

//- fd_e4m3
// fp8 e4m3 in memory; float that holds such a value in registers.
struct fd_e4m3 {
  unsigned char bits;
};
template <>
struct fd_storage<fd_e4m3> {
  typedef float reg;
  __device__ static __forceinline__ float get(const unsigned int* w, int k) {
    return fd_widen_e4m3(w[k / 4] >> (8 * (k % 4)));
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const float* v) {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      const unsigned int two = fd_narrow_e4m3(v[k], k + 1 < N ? v[k + 1] : 0.0f);
      w[k / 4] = k % 4 == 0 ? two : w[k / 4] | two << 16;
    }
  }
};

//- fd_round_e4m3
// The fp8 e4m3 value nearest to x, ties to even.
__device__ __forceinline__ float fd_round_e4m3(float x) {
  return fd_widen_e4m3(fd_narrow_e4m3(x, 0.0f));
}

//- fd_e5m2
// fp8 e5m2 in memory; float that holds such a value in registers.
struct fd_e5m2 {
  unsigned char bits;
};
template <>
struct fd_storage<fd_e5m2> {
  typedef float reg;
  __device__ static __forceinline__ float get(const unsigned int* w, int k) {
    return fd_widen_e5m2(w[k / 4] >> (8 * (k % 4)));
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const float* v) {
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      const unsigned int two = fd_narrow_e5m2(v[k], k + 1 < N ? v[k + 1] : 0.0f);
      w[k / 4] = k % 4 == 0 ? two : w[k / 4] | two << 16;
    }
  }
};

//- fd_round_e5m2
// The fp8 e5m2 value nearest to x, ties to even.
__device__ __forceinline__ float fd_round_e5m2(float x) {
  return fd_widen_e5m2(fd_narrow_e5m2(x, 0.0f));
}

//- fd_e8m0
// A power of two from 2^-127 to 2^127 or NaN by its biased exponent; in registers, a float that is
// one. A zero, which no byte stands for, is stored as the least.
struct fd_e8m0 {
  unsigned char bits;
};
template <>
struct fd_storage<fd_e8m0> {
  typedef float reg;
  __device__ static __forceinline__ float get(const unsigned int* w, int k) {
    const unsigned int e = w[k / 4] >> (8 * (k % 4)) & 0xffu;
    return __uint_as_float(e == 0 ? 0x00400000u : e == 255 ? 0x7fc00000u : e << 23);
  }
  template <int N>
  __device__ static __forceinline__ void set(unsigned int* w, const float* v) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const unsigned int e = (__float_as_uint(v[k]) >> 23 & 0xffu) << (8 * (k % 4));
      w[k / 4] = k % 4 == 0 ? e : w[k / 4] | e;
    }
  }
};

//- fd_round_e8m0 fd_round_e8m0_down
// The power of two at or above (at or below) |x| that e8m0 has; NaN stays NaN.
__device__ __forceinline__ float fd_round_e8m0(float x, bool is_down = false) {
  const unsigned int size = __float_as_uint(x) & 0x7fffffffu;
  if (size > 0x7f800000u) return x;
  unsigned int e = size >> 23;
  // 2^-127 is a denormal.
  if (!is_down && (e == 0 ? size > 0x00400000u : (size & 0x7fffffu) != 0)) ++e;
  e = e > 254u ? 254u : e;
  return __uint_as_float(e == 0 ? 0x00400000u : e << 23);
}
__device__ __forceinline__ float fd_round_e8m0_down(float x) { return fd_round_e8m0(x, true); }

//- fd_load
// N neighbouring elements by aligned accesses of up to 16 bytes.
template <class T, int N>
__device__ __forceinline__ fd_pack<fd_words<T>(N)> fd_load(const T* p) {
  constexpr int bytes = N * (int)sizeof(T);
  fd_pack<fd_words<T>(N)> r;
  if constexpr (bytes % 16 == 0) {
#pragma unroll
    for (int j = 0; j < bytes / 16; ++j) {
      const uint4 q = reinterpret_cast<const uint4*>(p)[j];
      r.w[4 * j] = q.x;
      r.w[4 * j + 1] = q.y;
      r.w[4 * j + 2] = q.z;
      r.w[4 * j + 3] = q.w;
    }
  } else if constexpr (bytes == 8) {
    const uint2 q = *reinterpret_cast<const uint2*>(p);
    r.w[0] = q.x;
    r.w[1] = q.y;
  } else if constexpr (bytes == 4) {
    r.w[0] = *reinterpret_cast<const unsigned int*>(p);
  } else if constexpr (bytes == 2) {
    r.w[0] = *reinterpret_cast<const unsigned short*>(p);
  } else {
    static_assert(bytes == 1, "a vector is 1, 2, 4, 8 or a multiple of 16 bytes");
    r.w[0] = *reinterpret_cast<const unsigned char*>(p);
  }
  return r;
}

//- fd_gather
// N elements that lie `stride` elements apart, one by one.
template <class T, int N, class Index>
__device__ __forceinline__ fd_pack<fd_words<T>(N)> fd_gather(const T* p, Index stride) {
  constexpr int each = 4 / (int)sizeof(T);
  fd_pack<fd_words<T>(N)> r;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const fd_pack<fd_words<T>(1)> one = fd_load<T, 1>(p + k * stride);
    if constexpr (each > 1) {
      const unsigned int part = one.w[0] << (32 / each * (k % each));
      r.w[k / each] = k % each == 0 ? part : r.w[k / each] | part;
    } else {
#pragma unroll
      for (int j = 0; j < fd_words<T>(1); ++j) r.w[k * fd_words<T>(1) + j] = one.w[j];
    }
  }
  return r;
}

//- fd_shift_words
// The Words words that begin `bytes` bytes (fewer than 4 * Words) after the first of 2 * Words.
template <int Words>
__device__ __forceinline__ fd_pack<Words> fd_shift_words(fd_pack<2 * Words> x, unsigned int bytes) {
#pragma unroll
  for (int step = Words / 2; step > 0; step /= 2) {
    const bool is_far = (bytes & 4 * step) != 0;
#pragma unroll
    for (int j = 0; j + step < 2 * Words; ++j) x.w[j] = is_far ? x.w[j + step] : x.w[j];
  }
  fd_pack<Words> r;
#pragma unroll
  for (int j = 0; j < Words; ++j) r.w[j] = __funnelshift_r(x.w[j], x.w[j + 1], bytes % 4 * 8);
  return r;
}

//- fd_load_across
// Elements first ... first + N - 1 of a row of `count`, at any address, by two aligned accesses; those
// outside the row are anything. Of memory it reads only aligned blocks in which an element of the
// row lies.
template <class T, int N, class Index>
__device__ __forceinline__ fd_pack<fd_words<T>(N)> fd_load_across(const T* row, Index first,
                                                                  Index count) {
  constexpr int bytes = N * (int)sizeof(T), words = fd_words<T>(N);
  static_assert(bytes % 4 == 0 && bytes <= 16, "a vector is 4, 8 or 16 bytes");
  const unsigned long long at = reinterpret_cast<unsigned long long>(row + first);
  const unsigned int skipped = (unsigned int)at % bytes;
  const T* block = reinterpret_cast<const T*>(at - skipped);
  fd_pack<2 * words> both = {};
  if (block + N > row) {
    const fd_pack<words> low = fd_load<T, N>(block);
#pragma unroll
    for (int j = 0; j < words; ++j) both.w[j] = low.w[j];
  }
  if (skipped != 0 && block + N < row + count) {
    const fd_pack<words> high = fd_load<T, N>(block + N);
#pragma unroll
    for (int j = 0; j < words; ++j) both.w[words + j] = high.w[j];
  }
  return fd_shift_words<words>(both, skipped);
}

//- fd_load_somewhere
// N elements that lie `stride` elements apart, at an address that may or may not be aligned for
// them.
template <class T, int N, class Index>
__device__ __forceinline__ fd_pack<fd_words<T>(N)> fd_load_somewhere(const T* p, Index stride) {
  constexpr int bytes = N * (int)sizeof(T) < 16 ? N * (int)sizeof(T) : 16;
  if (stride == 1 && (unsigned long long)p % bytes == 0) return fd_load<T, N>(p);
  return fd_gather<T, N>(p, stride);
}

//- fd_get
// Element k of a pack, in its register type.
template <class T, int Words>
__device__ __forceinline__ typename fd_storage<T>::reg fd_get(const fd_pack<Words>& pack, int k) {
  return fd_storage<T>::get(pack.w, k);
}

//- fd_put_pack
// N packed elements to neighbouring places by aligned accesses of up to 16 bytes.
template <class T, int N>
__device__ __forceinline__ void fd_put_pack(T* p, const fd_pack<fd_words<T>(N)>& r) {
  constexpr int bytes = N * (int)sizeof(T);
  if constexpr (bytes % 16 == 0) {
#pragma unroll
    for (int j = 0; j < bytes / 16; ++j) {
      reinterpret_cast<uint4*>(p)[j] =
          make_uint4(r.w[4 * j], r.w[4 * j + 1], r.w[4 * j + 2], r.w[4 * j + 3]);
    }
  } else if constexpr (bytes == 8) {
    *reinterpret_cast<uint2*>(p) = make_uint2(r.w[0], r.w[1]);
  } else if constexpr (bytes == 4) {
    *reinterpret_cast<unsigned int*>(p) = r.w[0];
  } else if constexpr (bytes == 2) {
    *reinterpret_cast<unsigned short*>(p) = (unsigned short)r.w[0];
  } else {
    static_assert(bytes == 1, "a vector is 1, 2, 4, 8 or a multiple of 16 bytes");
    *reinterpret_cast<unsigned char*>(p) = (unsigned char)r.w[0];
  }
}

//- fd_packed
// N register values as they lie in memory.
template <class T, int N>
__device__ __forceinline__ fd_pack<fd_words<T>(N)> fd_packed(
    const typename fd_storage<T>::reg* v) {
  fd_pack<fd_words<T>(N)> r;
  fd_storage<T>::template set<N>(r.w, v);
  return r;
}

//- fd_store
// N register values to neighbouring elements by aligned accesses of up to 16 bytes.
template <class T, int N>
__device__ __forceinline__ void fd_store(T* p, const typename fd_storage<T>::reg* v) {
  fd_put_pack<T, N>(p, fd_packed<T, N>(v));
}

//- fd_scatter
// N register values to elements that lie `stride` elements apart, one by one.
template <class T, int N, class Index>
__device__ __forceinline__ void fd_scatter(T* p, Index stride,
                                           const typename fd_storage<T>::reg* v) {
#pragma unroll
  for (int k = 0; k < N; ++k) fd_store<T, 1>(p + k * stride, v + k);
}

//- fd_store_inside
// Those of N register values whose number is at least `low` and below `high`, to neighbouring
// elements, one by one.
template <class T, int N, class Index>
__device__ __forceinline__ void fd_store_inside(T* p, const typename fd_storage<T>::reg* v,
                                                Index low, Index high) {
#pragma unroll
  for (int k = 0; k < N; ++k)
    if (k >= low && k < high) fd_store<T, 1>(p + k, v + k);
}

//- fd_store_part
// The same where the place of all N is aligned: by one access, if all are stored.
template <class T, int N, class Index>
__device__ __forceinline__ void fd_store_part(T* p, const typename fd_storage<T>::reg* v, Index low,
                                              Index high) {
  if (low <= 0 && high >= N)
    fd_store<T, N>(p, v);
  else
    fd_store_inside<T, N>(p, v, low, high);
}

//- fd_all_lanes
// Whether something holds in all lanes of the warp that are here; each lane may get an answer of its
// own where they are apart, and must do with either.
__device__ __forceinline__ bool fd_all_lanes(bool holds) {
  return __all_sync(__activemask(), holds);
}
