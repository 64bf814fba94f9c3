// SPDX-License-Identifier: Apache-2.0
#include "engine/telemetry/trace.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>

namespace fused_mlp {

namespace {

// The spans of one thread. Only that thread and stop_trace() take the mutex, so it is almost never contended.
struct Track {
  std::mutex mutex;
  std::uint64_t trace = 0;  // the number of the trace it belongs to
  std::uint32_t thread = 0;
  std::string name;
  std::size_t capacity = 0;
  std::size_t dropped = 0;
  std::vector<TraceSpan> spans;
};

struct Recorder {
  std::mutex mutex;
  std::vector<std::shared_ptr<Track>> tracks;
  std::size_t capacity = 0;             // of each track, in spans
  std::atomic<std::uint64_t> trace{0};  // the number of the current trace
  std::atomic<std::uint64_t> requests{0};
};

// Never freed: a thread may outlive every static object.
Recorder& recorder() {
  static auto* instance = new Recorder;
  return *instance;
}

thread_local std::shared_ptr<Track> own_track;

Track& track_of_this_thread() {
  Recorder& all = recorder();
  if (!own_track || own_track->trace != all.trace.load(std::memory_order_relaxed)) {
    auto made = std::make_shared<Track>();
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof name);
    made->thread = static_cast<std::uint32_t>(syscall(SYS_gettid));
    made->name = name;
    const std::lock_guard lock(all.mutex);
    made->trace = all.trace.load(std::memory_order_relaxed);
    made->capacity = all.capacity;
    all.tracks.push_back(made);
    own_track = std::move(made);
  }
  return *own_track;
}

}  // namespace

const char* name_of(TracePhase phase) noexcept {
  constexpr const char* kNames[] = {"decode", "queue", "gather", "kernel", "scatter", "encode"};
  return kNames[static_cast<std::size_t>(phase)];
}

bool start_trace(std::size_t spans_per_thread) {
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  if (tracing()) return false;
  all.capacity = spans_per_thread;
  all.trace.fetch_add(1, std::memory_order_relaxed);
  detail::tracing.store(true, std::memory_order_relaxed);
  return true;
}

Trace stop_trace() {
  Recorder& all = recorder();
  std::vector<std::shared_ptr<Track>> tracks;
  {
    const std::lock_guard lock(all.mutex);
    detail::tracing.store(false, std::memory_order_relaxed);
    tracks.swap(all.tracks);
  }
  Trace trace;
  for (const std::shared_ptr<Track>& track : tracks) {
    const std::lock_guard lock(track->mutex);
    trace.spans.insert(trace.spans.end(), track->spans.begin(), track->spans.end());
    trace.threads[track->thread] = track->name;
    trace.dropped += track->dropped;
    track->spans = {};
    track->capacity = 0;  // for threads that have not seen the flag yet
  }
  return trace;
}

std::uint64_t next_trace_id() noexcept {
  return recorder().requests.fetch_add(1, std::memory_order_relaxed) + 1;
}

void record_span(TracePhase phase, std::uint64_t request, std::uint32_t rows, Nanos start, Nanos end,
                 std::string_view lane, const TraceContext& caller) noexcept {
  try {
    Track& track = track_of_this_thread();
    const std::lock_guard lock(track.mutex);
    if (track.spans.size() >= track.capacity) {
      ++track.dropped;
      return;
    }
    TraceSpan span{phase, track.thread, rows, request, start, end, caller};
    lane.copy(span.lane, std::min(lane.size(), sizeof span.lane - 1));
    track.spans.push_back(span);
  } catch (...) {
    // Out of memory: lose the span, not the request.
  }
}

}  // namespace fused_mlp
