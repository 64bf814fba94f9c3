// SPDX-License-Identifier: Apache-2.0
#include "profile/probe.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "isa/isa.hpp"
#include "model/float_buffer.hpp"
#include "threads/spin.hpp"

namespace fused_mlp {

namespace {

constexpr long kRounds = 200000;
// Enough repeats that the first one, which fills the caches, has little weight.
constexpr std::size_t kReadBytes = std::size_t{64} << 20;
constexpr std::size_t kMinRepeats = 4;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Runs `threads` copies of work(index) at once; returns the time from the start until the last has finished.
template <class Work>
double time_together(unsigned threads, const Work& work) {
  enum : int { kWait, kGo, kGiveUp };
  std::atomic<unsigned> ready{0};
  std::atomic<int> signal{kWait};
  std::vector<double> ends(threads);
  std::vector<std::thread> others;
  others.reserve(threads);
  const auto finish = [&](int how) {
    signal.store(how);
    for (std::thread& other : others) other.join();
  };
  for (unsigned t = 1; t < threads; ++t) {
    try {
      others.emplace_back([&, t] {
        ready.fetch_add(1);
        while (signal.load() == kWait) pause_cpu();
        if (signal.load() == kGiveUp) return;
        work(t);
        ends[t] = seconds();
      });
    } catch (const std::system_error& error) {
      finish(kGiveUp);
      throw std::runtime_error("expected to start " + std::to_string(threads) + " threads, got " +
                               std::to_string(t) + " (" + error.what() + "): ask for fewer");
    }
  }
  while (ready.load() < threads - 1) pause_cpu();
  const double start = seconds();
  signal.store(kGo);
  work(0);
  ends[0] = seconds();
  finish(kGo);
  return *std::max_element(ends.begin(), ends.end()) - start;
}

const Isa& best_isa(bool int8 = false) { return *usable_isas(int8).list[0]; }

}  // namespace

double probe_flops(unsigned threads, bool int8) {
  threads = std::max(threads, 1u);
  const Isa& isa = best_isa(int8);
  const auto multiply_add = int8 ? isa.multiply_add_int8 : isa.multiply_add;
  std::vector<double> done(threads);
  const double elapsed = time_together(threads, [&](unsigned t) { done[t] = multiply_add(kRounds); });
  return done[0] * threads / elapsed;
}

double probe_read_seconds(std::size_t bytes, unsigned threads, unsigned samples) {
  threads = std::max(threads, 1u);
  bytes = std::max(bytes, sizeof(float));
  const Isa& isa = best_isa();
  FloatBuffer buffer(bytes / sizeof(float));
  std::fill_n(buffer.data(), buffer.size(), 1.0f);  // unwritten pages would all map to one page of zeros
  const std::size_t repeats = std::max(kMinRepeats, kReadBytes / bytes);
  double best = 0;
  for (unsigned sample = 0; sample < std::max(samples, 1u); ++sample) {
    const double elapsed = time_together(threads, [&](unsigned t) {
      const std::size_t first = buffer.size() * t / threads;
      const std::size_t last = buffer.size() * (t + 1) / threads;
      for (std::size_t r = 0; r < repeats; ++r) isa.read(buffer.data() + first, last - first);
    });
    best = sample == 0 ? elapsed : std::min(best, elapsed);
  }
  return best / static_cast<double>(repeats);
}

double probe_random_line_seconds(const float* data, std::size_t floats, int samples) {
  constexpr std::size_t kLines = 1 << 16, kAhead = 32;
  const std::uint64_t lines = std::max<std::size_t>(floats / 16, 1);
  std::vector<std::size_t> at(kLines + kAhead);
  double best = std::numeric_limits<double>::infinity();
  // Other lines in every call: those of the last one may still be in a cache.
  auto state = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  for (int sample = 0; sample < samples; ++sample) {
    for (std::size_t& each : at) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      each = (state >> 33) % lines * 16;
    }
    float sum = 0;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kLines; ++i) {
      __builtin_prefetch(data + at[i + kAhead]);
      sum += data[at[i]];
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    asm volatile("" : : "r"(&sum) : "memory");
    best = std::min(best, taken.count() / kLines);
  }
  return best;
}

}  // namespace fused_mlp
