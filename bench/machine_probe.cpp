// What this machine can do, for the benchmark to compare with: multiply-adds in registers, and reading
// memory. Built by machine_probe.py with -march=native, because a limit must not depend on how the kernel was
// built.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
#if defined(__x86_64__)
#define KEEP(v) asm volatile("" : "+v"(v))
#else
#define KEEP(v) asm volatile("" : "+w"(v))
#endif

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Ten sums: more than latency times throughput of any current core, few enough for 16 registers.
void multiply_add(long rounds) {
  Vector sums[10] = {};
  for (Vector& sum : sums) KEEP(sum);  // or the compiler sees ten times the same sum, and computes it once
  Vector a = Vector{} + 0.999f, b = Vector{} + 0.001f;
  for (long i = 0; i < rounds; ++i) {
    KEEP(a);
#pragma GCC unroll 10
    for (int s = 0; s < 10; ++s) sums[s] = sums[s] * a + b;
  }
  for (Vector& sum : sums) KEEP(sum);
}

void read_all(const float* data, std::size_t floats) {
  Vector sums[4] = {};
  for (std::size_t i = 0; i + 4 * kLanes <= floats; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      Vector v;
      std::memcpy(&v, data + i + s * kLanes, sizeof v);
      sums[s] += v;
    }
  }
  for (Vector& sum : sums) KEEP(sum);
}

// Starts `threads` copies of work(index) together; the time from the start until the last is done.
template <class Work>
double together(int threads, Work work) {
  if (threads == 1) {
    const double start = now();
    work(0);
    return now() - start;
  }
  std::atomic<int> ready{0};
  std::vector<double> ends(threads);
  double start = 0;
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) {
    others.emplace_back([&, t] {
      ready.fetch_add(1);
      while (ready.load() < threads) {
      }
      work(t);
      ends[t] = now();
    });
  }
  while (ready.load() < threads - 1) {
  }
  start = now();
  ready.fetch_add(1);
  work(0);
  ends[0] = now();
  for (std::thread& other : others) other.join();
  double last = 0;
  for (double end : ends) last = end > last ? end : last;
  return last - start;
}

}  // namespace

extern "C" {

// Multiplications and additions per second, all threads together, one measurement of about a millisecond.
double probe_flops(int threads) {
  constexpr long kRounds = 200000;
  const double seconds = together(threads, [](int) { multiply_add(kRounds); });
  return 2.0 * 10 * kLanes * kRounds * threads / seconds;
}

float* probe_allocate(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* data = std::aligned_alloc(kHugePage, rounded);
  if (data == nullptr) return nullptr;
#if defined(__linux__)
  (void)madvise(data, rounded, MADV_HUGEPAGE);
#endif
  std::memset(data, 0, rounded);
  return static_cast<float*>(data);
}

void probe_free(float* data) { std::free(data); }

// Seconds to read `bytes` once, each thread its share, wherever repeated reading keeps them.
double probe_read(const float* data, std::size_t bytes, int threads, int repeats) {
  const std::size_t floats = bytes / sizeof(float);
  const double seconds = together(threads, [=](int t) {
    const std::size_t first = floats * t / threads, last = floats * (t + 1) / threads;
    for (int r = 0; r < repeats; ++r) read_all(data + first, last - first);
  });
  return seconds / repeats;
}
}
