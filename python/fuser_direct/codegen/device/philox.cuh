// Random numbers by Philox4x32-10; ops/philox.py says which element gets which bits.

//- fd_philox
// The four words of block `block`.
__device__ inline uint4 fd_philox(unsigned long long seed, unsigned long long offset,
                                  unsigned long long block) {
  unsigned int k0 = (unsigned int)seed, k1 = (unsigned int)(seed >> 32);
  uint4 c = make_uint4((unsigned int)block, (unsigned int)(block >> 32), (unsigned int)offset,
                       (unsigned int)(offset >> 32));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned int high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const unsigned int high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

//- fd_random_bits
// 24 bits for element `index` of a Float tensor, or 53 for one of a Double tensor; `pair` 0 or 1 picks
// the first or second word (or pair of words) of the element's couple, -1 the element's own.
__device__ __forceinline__ unsigned int fd_random_bits(float, long long seed, long long offset,
                                                       long long index, int pair) {
  const uint4 w = fd_philox(seed, offset, (unsigned long long)index >> 2);
  const int own = (int)(index & 3), j = pair < 0 ? own : (own & 2) + pair;
  const unsigned int low = j & 1 ? w.y : w.x, high = j & 1 ? w.w : w.z;
  return (j & 2 ? high : low) >> 8;
}
__device__ __forceinline__ unsigned long long fd_random_bits(double, long long seed,
                                                             long long offset, long long index,
                                                             int pair) {
  const uint4 w = fd_philox(seed, offset, (unsigned long long)index >> 1);
  const int j = pair < 0 ? (int)(index & 1) : pair;
  const unsigned int high = j ? w.z : w.x, low = j ? w.w : w.y;
  return (((unsigned long long)high << 32) | low) >> 11;
}

//- fd_random_unit
__device__ __forceinline__ float fd_random_unit(float) { return 5.9604644775390625e-08f; }
__device__ __forceinline__ double fd_random_unit(double) { return 1.1102230246251565e-16; }

//- fd_philox_uniform
template <class T>
__device__ inline T fd_philox_uniform(long long seed, long long offset, long long index) {
  return (T)fd_random_bits(T(), seed, offset, index, -1) * fd_random_unit(T());
}

//- fd_philox_normal
template <class T>
__device__ inline T fd_philox_normal(long long seed, long long offset, long long index) {
  const T unit = fd_random_unit(T());
  const T a = (T)(fd_random_bits(T(), seed, offset, index, 0) + 1) * unit;
  const T b = (T)fd_random_bits(T(), seed, offset, index, 1) * unit;
  const T radius = sqrt(T(-2) * log(a));
  return radius * (index & 1 ? sinpi(T(2) * b) : cospi(T(2) * b));
}
