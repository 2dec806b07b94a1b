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
// Every lane of an aligned group of Width lanes gets the reduction over those of the group that lie
// a multiple of Apart from it (both powers of two).
template <class Op, int Width, int Apart = 1, class T>
__device__ __forceinline__ T fd_reduce_lanes(T x, unsigned int members) {
#pragma unroll
  for (int distance = Width / 2; distance >= Apart; distance /= 2)
    x = Op::of(x, fd_shuffle(x, distance, members));
  return x;
}

//- fd_exp_base
// What exponents are taken relative to, given the largest so far: itself, or 0 for -infinity, so
// that exp(-infinity - base) is 0 before anything else has been seen.
__device__ __forceinline__ float fd_exp_base(float top) {
  return top < -3.402823466e38f ? 0.0f : top;
}
__device__ __forceinline__ double fd_exp_base(double top) {
  return top < -1.7976931348623157e308 ? 0.0 : top;
}

//- fd_by_exp
struct fd_by_exp {
  template <class T>
  __device__ static __forceinline__ T of(T x) {
    return fd_exp(x);
  }
};

//- fd_by_half_exp
// For terms exp(x), x <= 0, of a sum whose largest term is 1: relative error 7.3e-8 |x| + 2.4e-7. In
// a sum s of n such terms, over which the mean |x| by weight is at most ln n - ln s, that comes to no
// more than 7.3e-8 ln n + 2.4e-7: 1.1e-6 for 131072 terms, all at their worst.
struct fd_by_half_exp {
  __device__ static __forceinline__ float of(float x) { return fd_half_exp(x); }
};

//- fd_add_exp
// Adds exp(x[i] - m) to `sum`, m the maximum of all that has been added, which is then `top`.
template <class Exp, int N, class T>
__device__ __forceinline__ void fd_add_exp(T& top, T& sum, const T (&x)[N]) {
  T high = x[0];
#pragma unroll
  for (int i = 1; i < N; ++i) high = fd_maximum(high, x[i]);
  high = fd_maximum(top, high);
  const T base = fd_exp_base(high);
  T part = Exp::of(x[0] - base);
#pragma unroll
  for (int i = 1; i < N; ++i) part += Exp::of(x[i] - base);
  sum = sum * Exp::of(top - base) + part;
  top = high;
}

//- fd_rescaled
// A sum of exponentials relative to the maximum `top`, made one relative to `whole` >= `top`.
template <class Exp, class T>
__device__ __forceinline__ T fd_rescaled(T sum, T top, T whole) {
  return sum * Exp::of(top - fd_exp_base(whole));
}

//- fd_exp_sum
// The sum of exp(x - top) over a row. Where every x is -infinity it is NaN, as -infinity -
// (-infinity) is; a row without elements sums to 0.
template <class T>
__device__ __forceinline__ T fd_exp_sum(T sum, T top, bool is_walked) {
  return is_walked && fd_exp_base(top) != top ? top - top : sum;
}

//- fd_exp_sum_guarded
// The same, relative to 0 where `top` is infinite.
template <class T>
__device__ __forceinline__ T fd_exp_sum_guarded(T sum, T top) {
  return fd_exp_base(-top) == -top ? sum : top;
}

//- fd_deviation_base
// What a thread's deviations are taken from, given its first value: that value, or 0 where a
// difference from it could be infinite or NaN.
__device__ __forceinline__ float fd_deviation_base(float first) {
  return fabsf(first) < 1e37f ? first : 0.0f;
}
__device__ __forceinline__ double fd_deviation_base(double first) {
  return fabs(first) < 1e307 ? first : 0.0;
}

//- fd_multiply_add
__device__ __forceinline__ float fd_multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fd_multiply_add(double a, double b, double c) {
  return fma(a, b, c);
}

//- fd_choose_base
// Chooses the base by a thread's first two values: the first, unless the second is far from it, as
// where the first stands alone and would make all others deviate.
template <class T>
__device__ __forceinline__ void fd_choose_base(T& base, T x, bool is_second) {
  if (!is_second) base = fd_deviation_base(x);
  if (is_second && !(fabs(x - base) <= (T)0.5 * fabs(base))) base = 0;
}

//- fd_add_deviation
// Adds x - base to `sum` and its square to `squares`.
template <class T>
__device__ __forceinline__ void fd_add_deviation(T& sum, T& squares, T base, T x) {
  const T away = x - base;
  sum += away;
  squares = fd_multiply_add(away, away, squares);
}

//- fd_add_part
// Adds a part of `count` values to sums of deviations from `base` and of their squares: its sum, and
// its sum of squared deviations from its own mean.
template <class T>
__device__ __forceinline__ void fd_add_part(T& sum, T& squares, T base, T part, T own, T count) {
  const T away = part / count - base;
  const T moved = away * count;
  sum += moved;
  squares += own + moved * away;
}

//- fd_add_first_deviation
// The same, where the base isn't chosen yet until the second value is there.
template <class T>
__device__ __forceinline__ void fd_add_first_deviation(T& sum, T& squares, T& base, T x,
                                                       bool is_first, bool is_second) {
  if (is_first) base = fd_deviation_base(x);
  if (is_second && base != 0 && !(fabs(x - base) <= (T)0.5 * fabs(base))) {
    sum = base;
    squares = base * base;
    base = 0;
  }
  fd_add_deviation(sum, squares, base, x);
}

//- fd_centred
// The sum of squared deviations from the mean of `count` values, from that of their deviations from
// a base; inverse: 1 / count.
template <class T>
__device__ __forceinline__ T fd_centred(T sum, T squares, T count, T inverse) {
  return count > (T)1 ? squares - sum * (sum * inverse) : sum * (T)0;
}

//- fd_parts
// What combining two parts of `mine` and `other` values, other > 0, takes besides their sums.
template <class T>
struct fd_parts {
  T other, of_mine, of_other, weight;
  __device__ __forceinline__ fd_parts(T mine, T others) {
    other = others;
    of_mine = (T)1 / mine;
    of_other = (T)1 / others;
    weight = mine * (others / (mine + others));
  }
};

//- fd_combine_deviations
// Takes in another part: its sum of deviations from its base, and that of squared deviations from
// its mean.
template <class T>
__device__ __forceinline__ void fd_combine_deviations(T& sum, T& squares, T base, T others_sum,
                                                      T others_squares, T others_base,
                                                      const fd_parts<T>& parts) {
  const T moved = others_base - base;
  const T apart = moved + (others_sum * parts.of_other - sum * parts.of_mine);
  squares += others_squares + apart * apart * parts.weight;
  sum += fd_multiply_add(parts.other, moved, others_sum);
}

//- fd_rebased
// A sum of `count` deviations from `base`, made one of deviations from `common`.
template <class T>
__device__ __forceinline__ T fd_rebased(T sum, T count, T base, T common) {
  return fd_multiply_add(count, base - common, sum);
}

//- fd_moved_squares
// The sum of squared deviations from `mean`, given that from the mean of `count` values, which is
// their `sum` over `count`.
template <class T>
__device__ __forceinline__ T fd_moved_squares(T sum, T squares, T count, T mean) {
  const T apart = count > 0 ? sum / count - mean : (T)0;
  return squares + apart * apart * count;
}

//- fd_share_deviations
// Every lane of an aligned group of Width lanes gets the sums of all, relative to the base of lane 0
// and to their mean; `whole` is how many values they have together.
template <int Width, class T>
__device__ __forceinline__ void fd_share_deviations(T& count, T& sum, T& squares, T& base, T whole,
                                                    unsigned int members) {
  const T common = __shfl_sync(members, base, 0, Width);
  const T own = fd_rebased(sum, count, base, common);
  sum = fd_reduce_lanes<fd_reduce_sum, Width>(own, members);
  squares = fd_moved_squares(own, squares, count, whole > 0 ? sum / whole : (T)0);
  squares = fd_reduce_lanes<fd_reduce_sum, Width>(squares, members);
  base = common;
  count = whole;
}

//- fd_units_of_warp
// How many of `units` units, dealt out to the threads of a row in turn, `step` threads, those of
// warp `warp` have.
__device__ __forceinline__ unsigned int fd_units_of_warp(unsigned int units, unsigned int step,
                                                         unsigned int warp) {
  const unsigned int rest = units % step, first = warp * 32;
  const unsigned int more = rest < first ? 0 : rest - first;
  return units / step * 32 + (more < 32 ? more : 32);
}

//- fd_meet_row
// The barrier of the Threads threads of one thread row of a block: whole warps, 15 rows at most.
template <int Threads>
__device__ __forceinline__ void fd_meet_row() {
  asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.y + 1), "n"(Threads) : "memory");
}

//- fd_cluster_arrive fd_cluster_wait
// The barrier of all threads of a cluster: what was written before arriving can be read after waiting.
__device__ __forceinline__ void fd_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void fd_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

//- fd_cluster_start
// Tells the peers of the cluster that this block has started, without waiting for what its threads
// have under way: peers learn of nothing but of barriers, which were made known to them already.
__device__ __forceinline__ void fd_cluster_start() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

//- fd_wait_for_previous
// Waits until the kernel before this one on the stream has ended and its stores can be read.
__device__ __forceinline__ void fd_wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

//- fd_launch_next
// Lets the kernel after this one be launched, once all blocks have come here or ended.
__device__ __forceinline__ void fd_launch_next() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

//- fd_cluster_rank
// Number of this block in its cluster.
__device__ __forceinline__ unsigned int fd_cluster_rank() {
  unsigned int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

//- fd_put_4 fd_put_8 fd_put_1
// Writes 4, 8 bytes or 1 to the place that `local` has in the shared memory of block `rank`.
__device__ __forceinline__ void fd_put_4(void* local, unsigned int rank, unsigned int w) {
  asm volatile(
      "{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; st.shared::cluster.u32 [a], %2; }" ::"r"(
          (unsigned int)__cvta_generic_to_shared(local)),
      "r"(rank), "r"(w)
      : "memory");
}
__device__ __forceinline__ void fd_put_8(void* local, unsigned int rank, unsigned long long w) {
  asm volatile(
      "{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; st.shared::cluster.u64 [a], %2; }" ::"r"(
          (unsigned int)__cvta_generic_to_shared(local)),
      "r"(rank), "l"(w)
      : "memory");
}
__device__ __forceinline__ void fd_put_1(void* local, unsigned int rank, unsigned int w) {
  asm volatile(
      "{ .reg .b32 a; mapa.shared::cluster.u32 a, %0, %1; st.shared::cluster.u8 [a], %2; }" ::"r"(
          (unsigned int)__cvta_generic_to_shared(local)),
      "r"(rank), "r"(w)
      : "memory");
}

//- fd_put
// Writes a value to the place that `local` has in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ void fd_put(bool* local, unsigned int rank, bool x) {
  fd_put_1(local, rank, x ? 1u : 0u);
}
__device__ __forceinline__ void fd_put(int* local, unsigned int rank, int x) {
  fd_put_4(local, rank, (unsigned int)x);
}
__device__ __forceinline__ void fd_put(float* local, unsigned int rank, float x) {
  fd_put_4(local, rank, __float_as_uint(x));
}
__device__ __forceinline__ void fd_put(long long* local, unsigned int rank, long long x) {
  fd_put_8(local, rank, (unsigned long long)x);
}
__device__ __forceinline__ void fd_put(double* local, unsigned int rank, double x) {
  fd_put_8(local, rank,
           (unsigned long long)(unsigned int)__double2hiint(x) << 32 |
               (unsigned int)__double2loint(x));
}

//- fd_put [complex]
template <class T>
__device__ __forceinline__ void fd_put(fd_complex<T>* local, unsigned int rank, fd_complex<T> x) {
  fd_put(&local->re, rank, x.re);
  fd_put(&local->im, rank, x.im);
}

//- fd_reduce_block
// The reduction over `count` threads of a block, which have the places 0, 1, ...; all of them get it.
// Every thread of the block must come here; slots: shared memory, `count` elements for each group of
// threads that is reduced by itself; writes: whether this thread's x counts. Partial results are
// combined as a tree over places.
template <class Op, class T>
__device__ __forceinline__ T fd_reduce_block(T x, T* slots, unsigned int place, unsigned int count,
                                             bool writes) {
  __syncthreads();
  if (writes) slots[place] = x;
  __syncthreads();
  for (unsigned int half = count > 1 ? 1u << (31 - __clz(count - 1)) : 0; half > 0; half /= 2) {
    if (writes && place < half && place + half < count)
      slots[place] = Op::of(slots[place], slots[place + half]);
    __syncthreads();
  }
  return slots[0];
}

//- fd_send_4 fd_send_8
// Writes 4 or 8 bytes to the place that `local` has in the shared memory of block `rank`, and has
// the barrier at the place of `barrier` there count them. The sender waits for nothing.
__device__ __forceinline__ void fd_send_4(void* local, unsigned int rank, unsigned int w,
                                          unsigned long long* barrier) {
  asm volatile(
      "{ .reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 b, %1, %2; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [a], %3, [b]; }" ::"r"(
          (unsigned int)__cvta_generic_to_shared(local)),
      "r"((unsigned int)__cvta_generic_to_shared(barrier)), "r"(rank), "r"(w)
      : "memory");
}
__device__ __forceinline__ void fd_send_8(void* local, unsigned int rank, unsigned long long w,
                                          unsigned long long* barrier) {
  asm volatile(
      "{ .reg .b32 a, b; mapa.shared::cluster.u32 a, %0, %2; mapa.shared::cluster.u32 b, %1, %2; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [a], %3, [b]; }" ::"r"(
          (unsigned int)__cvta_generic_to_shared(local)),
      "r"((unsigned int)__cvta_generic_to_shared(barrier)), "r"(rank), "l"(w)
      : "memory");
}

//- fd_send
// Sends a value to the place that `local` has in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ void fd_send(int* local, unsigned int rank, int x,
                                        unsigned long long* barrier) {
  fd_send_4(local, rank, (unsigned int)x, barrier);
}
__device__ __forceinline__ void fd_send(float* local, unsigned int rank, float x,
                                        unsigned long long* barrier) {
  fd_send_4(local, rank, __float_as_uint(x), barrier);
}
__device__ __forceinline__ void fd_send(long long* local, unsigned int rank, long long x,
                                        unsigned long long* barrier) {
  fd_send_8(local, rank, (unsigned long long)x, barrier);
}
__device__ __forceinline__ void fd_send(double* local, unsigned int rank, double x,
                                        unsigned long long* barrier) {
  fd_send_8(local, rank,
            (unsigned long long)(unsigned int)__double2hiint(x) << 32 |
                (unsigned int)__double2loint(x),
            barrier);
}

//- fd_send [complex]
template <class T>
__device__ __forceinline__ void fd_send(fd_complex<T>* local, unsigned int rank, fd_complex<T> x,
                                        unsigned long long* barrier) {
  fd_send(&local->re, rank, x.re, barrier);
  fd_send(&local->im, rank, x.im, barrier);
}

//- fd_receive
// Waits until all that `barrier` expects has been sent, and can be read.
__device__ __forceinline__ void fd_receive(unsigned long long* barrier) {
  unsigned int is_open;
  do {
    asm volatile(
        "{ .reg .pred open; "
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 open, [%1], 0; "
        "selp.u32 %0, 1, 0, open; }"
        : "=r"(is_open)
        : "r"((unsigned int)__cvta_generic_to_shared(barrier))
        : "memory");
  } while (!is_open);
}
