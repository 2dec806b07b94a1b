// Reductions: how two partial results combine, and how the threads of a group share theirs. Orders
// are fixed, so the same inputs give the same bits on every run.

//- fd_reduce_sum
struct fd_reduce_sum {
  template <class T>
  __device__ static __forceinline__ T of(T a, T b) {
    return a + b;
  }
  __device__ static __forceinline__ bool of(bool a, bool b) { return a || b; }
};

//- fd_reduce_prod
struct fd_reduce_prod {
  template <class T>
  __device__ static __forceinline__ T of(T a, T b) {
    return a * b;
  }
  __device__ static __forceinline__ bool of(bool a, bool b) { return a && b; }
};

//- fd_reduce_max
struct fd_reduce_max {
  template <class T>
  __device__ static __forceinline__ T of(T a, T b) {
    return fd_maximum(a, b);
  }
};

//- fd_reduce_min
struct fd_reduce_min {
  template <class T>
  __device__ static __forceinline__ T of(T a, T b) {
    return fd_minimum(a, b);
  }
};

//- fd_shuffle
// The value of the lane whose number differs in the bits of `distance`.
template <class T>
__device__ __forceinline__ T fd_shuffle(T x, int distance, unsigned int members) {
  return __shfl_xor_sync(members, x, distance);
}
__device__ __forceinline__ bool fd_shuffle(bool x, int distance, unsigned int members) {
  return __shfl_xor_sync(members, x ? 1 : 0, distance) != 0;
}

//- fd_shuffle [complex]
template <class T>
__device__ __forceinline__ fd_complex<T> fd_shuffle(fd_complex<T> x, int distance,
                                                    unsigned int members) {
  return fd_complex<T>(__shfl_xor_sync(members, x.re, distance),
                       __shfl_xor_sync(members, x.im, distance));
}

//- fd_reduce_lanes
// Every lane of an aligned group of Width lanes (a power of two) gets the reduction over the group.
template <class Op, int Width, class T>
__device__ __forceinline__ T fd_reduce_lanes(T x, unsigned int members) {
#pragma unroll
  for (int distance = Width / 2; distance > 0; distance /= 2)
    x = Op::of(x, fd_shuffle(x, distance, members));
  return x;
}
