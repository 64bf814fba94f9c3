// SPDX-License-Identifier: Apache-2.0
// Records the phases of all kernels of this process, for a profile. While off it costs one relaxed load per
// layer call. While on, the number of spans is bounded; spans that do not fit are counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "isa/isa.hpp"

namespace fused_mlp {

enum class Phase : unsigned char {
  kPack,   // packing a product's weights, at load
  kLayer,  // one product with its epilogue, over some rows and some columns
  // Operations row by row:
  kNorm,
  kSoftmax,
  kCombine,
  kAffine,
  kMap,  // a function, or a copy
  kQuantize,
  kLookup,
  kGroup,  // dot products of pairs, or sums, of the vectors of a value
};

struct PhaseSpan {
  Phase phase;
  std::uint32_t layer;   // the operation's number in its program
  std::uint32_t thread;  // the operating system's thread id
  std::size_t rows;
  std::size_t in;
  std::size_t out;        // columns of this span, not of the operation
  std::int64_t start_ns;  // of the steady clock
  std::int64_t end_ns;
  std::int64_t product_ns;   // the part in products of tiles, including bias and relu
  std::int64_t epilogue_ns;  // the part in activations, gates and copies
  std::uint64_t tiles;
  std::uint64_t flops;  // multiplications and additions; 0 for other phases than kLayer
};

namespace detail {
inline std::atomic<bool> recording{false};
}

inline bool recording_phases() { return detail::recording.load(std::memory_order_relaxed); }

struct PhaseRecording {
  std::vector<PhaseSpan> spans;
  std::size_t dropped;
};

// One recording at a time; starting another discards the first.
void start_recording_phases(std::size_t capacity);
PhaseRecording stop_recording_phases();

// Records its own lifetime as a span.
class RecordedPhase {
 public:
  RecordedPhase(Phase phase, std::size_t layer, std::size_t rows, std::size_t in, std::size_t out,
                std::uint64_t flops = 0);
  ~RecordedPhase();
  RecordedPhase(const RecordedPhase&) = delete;
  RecordedPhase& operator=(const RecordedPhase&) = delete;

  TileTimes* tiles() { return &tiles_; }

 private:
  bool recorded_;
  PhaseSpan span_;
  TileTimes tiles_;
  unsigned long long first_tick_ = 0;
};

}  // namespace fused_mlp
