// A recording of what the kernels of this process do, phase by phase, for a profile. Off unless somebody
// asked for it: then it costs one relaxed load per layer call. On, it is bounded: what does not fit is
// counted, not kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "isa.hpp"

namespace fused_mlp {

enum class Phase : unsigned char {
  kPack,    // a layer's weights into panels, at load
  kLayer,   // one layer over some rows and some columns
  kFinish,  // what follows the last layer: softmax, or an activation after a gate
};

struct PhaseSpan {
  Phase phase;
  std::uint32_t layer;
  std::uint32_t thread;  // as the operating system numbers it
  std::size_t rows;
  std::size_t in;
  std::size_t out;        // columns of this span, not of the layer
  std::int64_t start_ns;  // of the steady clock
  std::int64_t end_ns;
  std::int64_t product_ns;   // of which in products of tiles, with bias and relu
  std::int64_t epilogue_ns;  // and in activations, gates and copies, tile by tile in between
  std::uint64_t tiles;
  std::uint64_t flops;  // multiplications and additions; 0 where nothing is multiplied
};

namespace detail {
inline std::atomic<bool> recording{false};
}

inline bool recording_phases() { return detail::recording.load(std::memory_order_relaxed); }

struct PhaseRecording {
  std::vector<PhaseSpan> spans;
  std::size_t dropped;
};

// One recording at a time; starting another forgets the first.
void start_recording_phases(std::size_t capacity);
PhaseRecording stop_recording_phases();

// From here to the end of the scope. Costs a load when nothing is recorded.
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
