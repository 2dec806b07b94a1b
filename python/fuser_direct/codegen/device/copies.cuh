// Loads under a cache policy, asynchronous copies to shared memory, and what hides values from the
// compiler between passes.

//- fd_keep_in_l2
// A cache policy for loads: lines stay in L2 as long as others can go (sm_80 and later).
__device__ __forceinline__ unsigned long long fd_keep_in_l2() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

//- fd_leave_l2_first
// A cache policy for loads: lines leave L2 before all others (sm_80 and later).
__device__ __forceinline__ unsigned long long fd_leave_l2_first() {
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

//- fd_load_16 fd_load_8 fd_load_4
// 16, 8 or 4 aligned bytes under a cache policy.
__device__ __forceinline__ uint4 fd_load_16(const void* p, unsigned long long policy) {
  uint4 q;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w)
               : "l"(p), "l"(policy));
  return q;
}
__device__ __forceinline__ uint2 fd_load_8(const void* p, unsigned long long policy) {
  uint2 q;
  asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(q.x), "=r"(q.y)
               : "l"(p), "l"(policy));
  return q;
}
__device__ __forceinline__ unsigned int fd_load_4(const void* p, unsigned long long policy) {
  unsigned int w;
  asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(w) : "l"(p), "l"(policy));
  return w;
}

//- fd_load_under
// As fd_load, under a cache policy where the access is of 4 bytes or more.
template <class T, int N>
__device__ __forceinline__ fd_pack<fd_words<T>(N)> fd_load_under(unsigned long long policy,
                                                                 const T* p) {
  constexpr int bytes = N * (int)sizeof(T);
  fd_pack<fd_words<T>(N)> r;
  if constexpr (bytes % 16 == 0) {
#pragma unroll
    for (int j = 0; j < bytes / 16; ++j) {
      const uint4 q = fd_load_16(reinterpret_cast<const uint4*>(p) + j, policy);
      r.w[4 * j] = q.x;
      r.w[4 * j + 1] = q.y;
      r.w[4 * j + 2] = q.z;
      r.w[4 * j + 3] = q.w;
    }
  } else if constexpr (bytes == 8) {
    const uint2 q = fd_load_8(p, policy);
    r.w[0] = q.x;
    r.w[1] = q.y;
  } else if constexpr (bytes == 4) {
    r.w[0] = fd_load_4(p, policy);
  } else {
    r = fd_load<T, N>(p);
  }
  return r;
}

//- fd_copy_async
// Begins a copy of 4, 8 or 16 aligned bytes from global to shared memory, which this thread may read
// after a wait of its own.
template <int Bytes>
__device__ __forceinline__ void fd_copy_async(void* to, const void* from) {
  const unsigned int target = (unsigned int)__cvta_generic_to_shared(to);
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(target), "l"(from), "n"(Bytes)
                 : "memory");
}
template <int Bytes>
__device__ __forceinline__ void fd_copy_async(void* to, const void* from,
                                              unsigned long long policy) {
  const unsigned int target = (unsigned int)__cvta_generic_to_shared(to);
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(target),
                 "l"(from), "l"(policy)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3;" ::"r"(target),
                 "l"(from), "n"(Bytes), "l"(policy)
                 : "memory");
}

//- fd_commit_copies
// Makes one group of the copies that this thread has begun since the last group.
__device__ __forceinline__ void fd_commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

//- fd_wait_copies
// Waits until at most `pending` of this thread's groups (or some fewer) are under way; `pending` is a
// constant once loops are unrolled.
__device__ __forceinline__ void fd_wait_copies(int pending) {
#define FD_WAIT(n)                                        \
  case n:                                                 \
    asm volatile("cp.async.wait_group " #n ";" ::: "memory"); \
    break;
  switch (pending < 32 ? pending : 31) {
    FD_WAIT(0) FD_WAIT(1) FD_WAIT(2) FD_WAIT(3) FD_WAIT(4) FD_WAIT(5) FD_WAIT(6) FD_WAIT(7)
    FD_WAIT(8) FD_WAIT(9) FD_WAIT(10) FD_WAIT(11) FD_WAIT(12) FD_WAIT(13) FD_WAIT(14) FD_WAIT(15)
    FD_WAIT(16) FD_WAIT(17) FD_WAIT(18) FD_WAIT(19) FD_WAIT(20) FD_WAIT(21) FD_WAIT(22) FD_WAIT(23)
    FD_WAIT(24) FD_WAIT(25) FD_WAIT(26) FD_WAIT(27) FD_WAIT(28) FD_WAIT(29) FD_WAIT(30) FD_WAIT(31)
  }
#undef FD_WAIT
}

//- fd_barrier_init
// Makes `count` barriers in shared memory, each for one arrival, known to bulk copies.
__device__ __forceinline__ void fd_barrier_init(unsigned long long* barriers, int count) {
  for (int i = 0; i < count; ++i) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(
                     (unsigned int)__cvta_generic_to_shared(barriers + i))
                 : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

//- fd_barrier_expect
// The one arrival at a barrier, which opens once this many bytes have been copied.
__device__ __forceinline__ void fd_barrier_expect(unsigned long long* barrier, unsigned int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   (unsigned int)__cvta_generic_to_shared(barrier)),
               "r"(bytes)
               : "memory");
}

//- fd_copy_bulk
// Begins a copy from global to shared memory that counts at `barrier`; addresses and `bytes` are
// multiples of 16.
__device__ __forceinline__ void fd_copy_bulk(void* to, const void* from, unsigned int bytes,
                                             unsigned long long* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          (unsigned int)__cvta_generic_to_shared(to)),
      "l"(from), "r"(bytes), "r"((unsigned int)__cvta_generic_to_shared(barrier))
      : "memory");
}
__device__ __forceinline__ void fd_copy_bulk(void* to, const void* from, unsigned int bytes,
                                             unsigned long long* barrier,
                                             unsigned long long policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"((unsigned int)__cvta_generic_to_shared(to)),
      "l"(from), "r"(bytes), "r"((unsigned int)__cvta_generic_to_shared(barrier)), "l"(policy)
      : "memory");
}

//- fd_barrier_wait
// Waits until a barrier opens for the first time.
__device__ __forceinline__ void fd_barrier_wait(unsigned long long* barrier) {
  unsigned int is_open;
  do {
    asm volatile(
        "{ .reg .pred open; mbarrier.try_wait.parity.shared::cta.b64 open, [%1], 0; "
        "selp.u32 %0, 1, 0, open; }"
        : "=r"(is_open)
        : "r"((unsigned int)__cvta_generic_to_shared(barrier))
        : "memory");
  } while (!is_open);
}

//- fd_issue_loads
// Loads that stand above are under way before anything below is waited for: accesses to memory don't
// move over a barrier. Without one the assembler puts a load near its use, behind a wait for others.
__device__ __forceinline__ void fd_issue_loads() { __syncwarp(); }

//- fd_keep_index
// Hides where an index came from, so that what was computed from it is computed again instead of
// staying in registers. A lane gets its own value from the shuffle, which the assembler doesn't see
// through, as it does through an empty statement. For whole warps.
__device__ __forceinline__ void fd_keep_index(unsigned int& i) {
  asm volatile(
      "{ .reg .u32 lane; mov.u32 lane, %%laneid; "
      "shfl.sync.idx.b32 %0, %0, lane, 31, 0xffffffff; }"
      : "+r"(i));
}
__device__ __forceinline__ void fd_keep_index(unsigned long long& i) {
  unsigned int low = (unsigned int)i;
  fd_keep_index(low);
  i = low;
}

//- fd_forget
// Makes the compiler read memory again, instead of keeping what it has read alive in registers.
__device__ __forceinline__ void fd_forget() { asm volatile("" ::: "memory"); }

//- fd_keep
// Hides where a pack came from, so that the compiler unpacks it again instead of keeping the
// unpacked floats alive from an earlier pass over it (two to three times the registers, and
// spills).
template <int Words>
__device__ __forceinline__ void fd_keep(fd_pack<Words>& pack) {
#pragma unroll
  for (int j = 0; j < Words; ++j) asm volatile("" : "+r"(pack.w[j]));
}
