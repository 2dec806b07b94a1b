// Runs the text of a generated CUDA kernel on the CPU: threads of a block are fibers of one thread,
// which give way at barriers and shuffles. Included by the text, from which functions with inline
// assembly have been cut; they are defined here.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <deque>
#include <functional>
#include <map>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct uint2 {
  unsigned int x, y;
};
struct uint4 {
  unsigned int x, y, z, w;
};
static inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
static inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
  return {x, y, z, w};
}

template <class To, class From>
static inline To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "");
  To r;
  memcpy(&r, &x, sizeof r);
  return r;
}
static inline float __uint_as_float(unsigned int x) { return bits_as<float>(x); }
static inline unsigned int __float_as_uint(float x) { return bits_as<unsigned int>(x); }
static inline float __int_as_float(int x) { return bits_as<float>(x); }
static inline int __float_as_int(float x) { return bits_as<int>(x); }
static inline double __longlong_as_double(long long x) { return bits_as<double>(x); }
static inline int __double2hiint(double x) { return (int)(bits_as<unsigned long long>(x) >> 32); }
static inline int __double2loint(double x) { return (int)bits_as<unsigned long long>(x); }
static inline double __hiloint2double(int hi, int lo) {
  return bits_as<double>((unsigned long long)(unsigned int)hi << 32 | (unsigned int)lo);
}

static inline unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int s) {
  const unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned int r = 0;
  for (int i = 0; i < 4; ++i)
    r |= (unsigned int)(both >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
  return r;
}

static inline int __clz(unsigned int x) { return x ? __builtin_clz(x) : 32; }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
static inline unsigned int __umulhi(unsigned int a, unsigned int b) {
  return (unsigned int)((unsigned long long)a * b >> 32);
}
static inline unsigned int __funnelshift_r(unsigned int lo, unsigned int hi, unsigned int shift) {
  return (unsigned int)(((unsigned long long)hi << 32 | lo) >> (shift & 31));
}

static inline float rsqrt(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
// Newton steps from a rough start; accurate to double's last bits inside (-1, 1).
static inline double erfinv(double y) {
  if (!(fabs(y) < 1)) return fabs(y) == 1 ? y * INFINITY : NAN;
  const double l = log(1 - y * y), a = 0.147, b = 2 / (M_PI * a) + l / 2;
  double x = copysign(sqrt(sqrt(b * b - l / a) - b), y);
  for (int i = 0; i < 4; ++i) x -= (erf(x) - y) / (M_2_SQRTPI * exp(-x * x));
  return x;
}
static inline float erfinv(float y) { return (float)erfinv((double)y); }
static inline double erfcinv(double y) {
  double x = erfinv(1 - y);
  for (int i = 0; i < 3 && isfinite(x); ++i) x += (erfc(x) - y) / (M_2_SQRTPI * exp(-x * x));
  return x;
}
static inline float erfcinv(float y) { return (float)erfcinv((double)y); }

// --- the functions that are inline assembly on a GPU ---

static inline unsigned short bits_of_bf16(float x) {
  unsigned int b = __float_as_uint(x);
  if (isnan(x)) return 0x7fff;
  return (unsigned short)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
static inline unsigned int fd_narrow_bf16(float lo, float hi) {
  return (unsigned int)bits_of_bf16(hi) << 16 | bits_of_bf16(lo);
}
static inline unsigned int fd_narrow_half(float lo, float hi) {
  return (unsigned int)bits_as<unsigned short>((_Float16)hi) << 16 |
         bits_as<unsigned short>((_Float16)lo);
}
static inline float fd_widen_half(unsigned int bits) {
  return (float)bits_as<_Float16>((unsigned short)bits);
}
static inline float fd_max_float(float a, float b) {
  if (isnan(a) || isnan(b)) return NAN;
  if (a == b) return signbit(a) ? b : a;
  return a > b ? a : b;
}
static inline float fd_min_float(float a, float b) {
  if (isnan(a) || isnan(b)) return NAN;
  if (a == b) return signbit(a) ? a : b;
  return a < b ? a : b;
}
static inline float fd_exp2_approx(float x) { return exp2f(x); }
static inline float fd_log2_approx(float x) { return log2f(x); }
static inline float fd_reciprocal_approx(float x) { return 1.0f / x; }
static inline float fd_reciprocal_flushed(float x) {
  const float r = 1.0f / x;
  return fabsf(r) < 1.17549435e-38f ? copysignf(0.0f, r) : r;
}
static inline float fd_div_approx(float a, float b) { return a / b; }
template <class Pack>
static inline void fd_keep(Pack&) {}
static inline void fd_forget() {}
static inline void fd_wait_for_previous() {}
static inline void fd_launch_next() {}
template <class Index>
static inline void fd_keep_index(Index&) {}
static inline unsigned long long fd_keep_in_l2() { return 42; }
static inline unsigned long long fd_leave_l2_first() { return 42; }
static inline uint4 fd_load_16(const void* p, unsigned long long) { return *(const uint4*)p; }
static inline uint2 fd_load_8(const void* p, unsigned long long) { return *(const uint2*)p; }
static inline unsigned int fd_load_4(const void* p, unsigned long long) {
  return *(const unsigned int*)p;
}

// --- threads ---

struct dim3 {
  unsigned int x, y, z;
};
static dim3 threadIdx, blockIdx, gridDim, blockDim;

namespace emulation {

enum Wait { kReady, kBlock, kRow, kWarp, kCluster, kBarrier, kDone };

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  dim3 thread;
  Wait wait = kReady;
  unsigned int members = 0;
  unsigned int shuffles = 0;
  unsigned int block = 0;          // in the cluster
  unsigned int cluster_round = 0;  // barriers of the cluster it has arrived at
  unsigned int cluster_waits = 0;  // ... and has waited at
  unsigned long long* barrier = nullptr;  // barrier in shared memory it waits at
  // Asynchronous copies: they take place as late as they may, when their group is waited for.
  std::vector<std::function<void()>> begun;
  std::deque<std::vector<std::function<void()>>> groups;
};

// A barrier in shared memory. What is copied or sent arrives as late as it may, when it is waited for.
struct Barrier {
  unsigned int expected = 0, copied = 0;
  std::vector<std::function<void()>> copies;
  bool is_open() const { return expected != 0 && expected == copied; }
  void deliver() {
    for (auto& copy : copies) copy();
    copies.clear();
  }
};
static std::map<unsigned long long*, Barrier> barriers;
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static unsigned int current;
static std::function<void()> body;
static bool broken;
static unsigned int cluster = 1, block_threads;
static const unsigned int kMostBlocks = 16;
static unsigned int rank() { return fibers[current].block; }
// Shared variables: one for each block of a cluster, `bytes` apart.
struct Shared {
  char* base;
  size_t bytes;
};
static std::vector<Shared> shared_variables;
template <class T>
static T& shared_variable(T (&all)[kMostBlocks]) {
  for (Shared& s : shared_variables)
    if (s.base == (char*)all) return all[rank()];
  shared_variables.push_back({(char*)all, sizeof(T)});
  return all[rank()];
}
static void* in_block(void* local, unsigned int rank_there) {
  for (Shared& s : shared_variables) {
    const ptrdiff_t distance = (char*)local - s.base;
    if (distance >= 0 && (size_t)distance < kMostBlocks * s.bytes)
      return (char*)local + ((ptrdiff_t)rank_there - (ptrdiff_t)rank()) * (ptrdiff_t)s.bytes;
  }
  __builtin_trap();
}
// Values on their way through a shuffle; a lane is never more than one shuffle ahead of its peers.
static unsigned char slots[2][1024 * kMostBlocks][16];

static void give_way(Wait wait) {
  Fiber& self = fibers[current];
  self.wait = wait;
  swapcontext(&self.context, &scheduler);
}

static void start() {
  body();
  fibers[current].wait = kDone;
  swapcontext(&fibers[current].context, &scheduler);
}

static bool release() {
  bool any = false;
  std::vector<char> at_barrier(cluster, 1);
  unsigned int round = ~0u;
  for (Fiber& f : fibers) {
    at_barrier[f.block] &= f.wait == kBlock || f.wait == kDone;
    if (f.wait != kDone && f.cluster_round < round) round = f.cluster_round;
  }
  // Thread rows of all blocks, of which all threads are at their row's barrier.
  std::map<std::pair<unsigned int, unsigned int>, bool> at_row_barrier;
  for (Fiber& f : fibers) {
    bool& all = at_row_barrier.emplace(std::make_pair(f.block, f.thread.y), true).first->second;
    all &= f.wait == kRow;
  }
  for (unsigned int n = 0; n < fibers.size(); ++n) {
    Fiber& f = fibers[n];
    if ((f.wait == kBlock && at_barrier[f.block]) ||
        (f.wait == kRow && at_row_barrier.at({f.block, f.thread.y})) ||
        (f.wait == kCluster && f.cluster_round <= round) ||
        (f.wait == kBarrier && barriers.at(f.barrier).is_open())) {
      f.wait = kReady;
      any = true;
    }
    if (f.wait != kWarp) continue;
    bool complete = true;
    for (unsigned int lane = 0; lane < 32; ++lane) {
      if (!(f.members >> lane & 1)) continue;
      // Warps begin anew in each block of a cluster.
      const unsigned int peer = (n % block_threads) / 32 * 32 + n / block_threads * block_threads + lane;
      // A released peer is ready and has counted this shuffle already.
      complete &= peer < fibers.size() && fibers[peer].members == f.members &&
                  (fibers[peer].wait == kWarp ||
                   (fibers[peer].wait == kReady && fibers[peer].shuffles == f.shuffles));
    }
    if (complete) {
      f.wait = kReady;
      any = true;
    }
  }
  return any;
}

static void run_cluster(unsigned int first_block, bool backwards) {
  block_threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned int count = block_threads * cluster;
  fibers = std::vector<Fiber>(count);
  for (unsigned int n = 0; n < count; ++n) {
    Fiber& f = fibers[n];
    f.stack.resize(1 << 16);
    f.block = n / block_threads;
    const unsigned int t = n % block_threads;
    f.thread = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = &scheduler;
    makecontext(&f.context, start, 0);
  }
  for (;;) {
    bool done = true;
    for (unsigned int k = 0; k < count; ++k) {
      const unsigned int n = backwards ? count - 1 - k : k;
      if (fibers[n].wait != kReady) continue;
      current = n;
      threadIdx = fibers[n].thread;
      const unsigned int b = first_block + fibers[n].block;
      blockIdx = {b % gridDim.x, b / gridDim.x % gridDim.y, b / gridDim.x / gridDim.y};
      swapcontext(&scheduler, &fibers[n].context);
    }
    for (Fiber& f : fibers) done &= f.wait == kDone;
    if (done) return;
    if (!release()) {
      broken = true;  // Threads wait for others that never come.
      return;
    }
  }
}

// Whether every block ran to its end; `backwards`: threads and blocks in reverse order.
static bool run_grid(dim3 grid, dim3 block, unsigned int blocks, bool backwards,
                     std::function<void()> kernel) {
  cluster = blocks;
  body = kernel;
  broken = false;
  gridDim = grid;
  blockDim = block;
  const unsigned int count = grid.x * grid.y * grid.z;
  for (unsigned int b = 0; b < count && !broken; b += cluster)
    run_cluster(backwards ? count - cluster - b : b, backwards);
  return !broken;
}

}  // namespace emulation

static inline unsigned int __activemask() { return 1u << threadIdx.x % 32; }
// As if some lanes had peers for which it doesn't hold.
static inline bool __all_sync(unsigned int, bool holds) { return holds && threadIdx.x % 3 != 0; }
static inline void __syncthreads() { emulation::give_way(emulation::kBlock); }
// Kernels order their loads by it, and share nothing through it.
static inline void __syncwarp() {}
template <int Threads>
static inline void fd_meet_row() {
  if (blockDim.x != Threads || Threads % 32 || threadIdx.y >= 15) __builtin_trap();
  emulation::give_way(emulation::kRow);
}

// --- clusters and asynchronous copies ---

static inline unsigned int fd_cluster_rank() { return emulation::rank(); }
static inline void fd_cluster_arrive() { ++emulation::fibers[emulation::current].cluster_round; }
static inline void fd_cluster_start() { fd_cluster_arrive(); }
static inline void fd_cluster_wait() {
  emulation::give_way(emulation::kCluster);
  ++emulation::fibers[emulation::current].cluster_waits;
}
template <class T>
static inline void fd_put(T* local, unsigned int rank, T x) {
  memcpy(emulation::in_block(local, rank), &x, sizeof x);
}

static inline void fd_barrier_init(unsigned long long* first, int count) {
  for (int i = 0; i < count; ++i) emulation::barriers[first + i] = emulation::Barrier();
}
static inline void fd_barrier_expect(unsigned long long* barrier, unsigned int bytes) {
  emulation::barriers.at(barrier).expected = bytes;
}
static inline void fd_copy_bulk(void* to, const void* from, unsigned int bytes,
                                unsigned long long* barrier, unsigned long long = 0) {
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16) __builtin_trap();
  emulation::Barrier& here = emulation::barriers.at(barrier);
  here.copied += bytes;
  here.copies.push_back([=] { memcpy(to, from, bytes); });
}
static inline void fd_barrier_wait(unsigned long long* barrier) {
  emulation::Barrier& here = emulation::barriers.at(barrier);
  if (!here.is_open()) __builtin_trap();
  here.deliver();
}
// Only after all blocks are known to have started, and to one that hasn't ended.
template <class T>
static inline void fd_send(T* local, unsigned int rank, T x, unsigned long long* barrier) {
  using namespace emulation;
  bool is_there = fibers[current].cluster_waits > 0, runs = false;
  for (const Fiber& f : fibers) runs |= f.block == rank && f.wait != kDone;
  if (!is_there || !runs || sizeof x % 4) __builtin_trap();
  void* to = in_block(local, rank);
  Barrier& there = barriers.at((unsigned long long*)in_block(barrier, rank));
  there.copied += sizeof x;
  there.copies.push_back([=] { memcpy(to, &x, sizeof x); });
}
static inline void fd_receive(unsigned long long* barrier) {
  emulation::fibers[emulation::current].barrier = barrier;
  emulation::give_way(emulation::kBarrier);
  emulation::barriers.at(barrier).deliver();
}

template <int Bytes>
static inline void fd_copy_async(void* to, const void* from, unsigned long long = 0) {
  if ((uintptr_t)to % Bytes || (uintptr_t)from % Bytes) __builtin_trap();
  emulation::fibers[emulation::current].begun.push_back([=] { memcpy(to, from, Bytes); });
}
static inline void fd_commit_copies() {
  emulation::Fiber& self = emulation::fibers[emulation::current];
  self.groups.push_back(std::move(self.begun));
  self.begun.clear();
}
static inline void fd_wait_copies(int pending) {
  emulation::Fiber& self = emulation::fibers[emulation::current];
  for (; (int)self.groups.size() > pending; self.groups.pop_front())
    for (auto& copy : self.groups.front()) copy();
}

template <class T>
static inline T shuffle(unsigned int members, T x, unsigned int from) {
  using namespace emulation;
  const unsigned int self = current;
  unsigned char (*slot)[16] = slots[fibers[self].shuffles++ % 2];
  memcpy(slot[self], &x, sizeof x);
  fibers[self].members = members;
  give_way(kWarp);
  T r;
  memcpy(&r, slot[from], sizeof r);
  return r;
}
template <class T>
static inline T __shfl_xor_sync(unsigned int members, T x, int distance) {
  return shuffle(members, x, emulation::current ^ distance);
}
template <class T>
static inline T __shfl_sync(unsigned int members, T x, int lane, int width) {
  return shuffle(members, x, (emulation::current & -width) + lane);
}
