// SPDX-License-Identifier: Apache-2.0
// A ticket: the rows of one request while the engine has them. It owns its input bytes, copies them into a
// batch, and receives its own result: there is no table of pending requests.
//
// Life of a ticket, seen from a front:
//   1. make_ref<MyTicket>(...); keep a second Ref to be able to cancel it.
//   2. Engine::submit. If the status is not ok, the caller keeps the ticket and complete() is not called.
//   3. Otherwise the engine calls gather() at most once, then complete() exactly once, on any thread (a
//      worker, or an event loop that runs batches; not necessarily the one that submitted the ticket).
//   4. Then it calls CompletionSink::flush() once for all tickets of that sink in the batch.
//   5. Then it releases its reference.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/clock.hpp"
#include "engine/ref.hpp"
#include "engine/status.hpp"
#include "kernel_api.h"

namespace fused_mlp {

using WordRun = ::fused_mlp_words;

// How a ticket ended. Pointers are valid only during complete().
struct Outcome {
  Status status = Status::ok;
  const float* y = nullptr;  // (rows, out_features); null unless ok
  std::uint32_t rows = 0;
  std::uint32_t batch_rows = 0;  // rows of the kernel call, batch mates included; 0 if there was none
  Nanos queue_ns = 0;            // from arrival until the batch was formed
  Nanos compute_ns = 0;          // the kernel call for the whole batch
  Nanos computed_at = 0;         // when it ended
  std::uint64_t batch = 0;       // of the batch mates too
  const char* strategy = "";
  std::string_view detail;  // when not ok: one line that may be sent to the caller
};

// Collects the finished tickets of one event loop, so that each batch wakes the loop once. Must outlive its
// tickets (a ticket may hold a reference to it).
class CompletionSink {
 public:
  // All tickets of a batch that use this sink are complete: write the responses or wake the event loop.
  virtual void flush() noexcept = 0;

 protected:
  ~CompletionSink() = default;
};

class Ticket {
 public:
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // Marks the request as cancelled by its caller. Safe on any thread at any time, also after completion. A
  // queued ticket completes as cancelled when its batch is formed; one already in a batch completes as usual.
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

  bool late(Nanos now) const noexcept { return deadline_ns != 0 && deadline_ns <= now; }
  // Its caller no longer waits for the answer.
  bool gone(Nanos now) const noexcept { return cancelled() || late(now); }

  std::uint32_t rows() const noexcept { return rows_; }

  // Set before submit, constant afterwards.
  Nanos deadline_ns = 0;       // on the engine's clock; 0: none
  Nanos arrival_ns = 0;        // 0: the time of submit
  std::uint64_t trace_id = 0;  // 0: not traced
  std::uint64_t flow = 0;      // its owner, for example a connection: flows share a lane fairly
  double weight = 1;           // of its flow: one of weight 2 gets twice the rows of one of weight 1

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) dispose();
  }

 protected:
  Ticket(std::uint32_t rows, CompletionSink* sink) noexcept : rows_(rows), sink_(sink) {}
  virtual ~Ticket() = default;

  // Writes (rows, in_features) float32 to dst, converting from the request's dtype.
  virtual void gather(float* dst) noexcept = 0;
  // The words that its rows have in common; none where it has only whole rows. And its rows then, in its own
  // memory, for a kernel that computes such words once.
  virtual std::span<const WordRun> shared() const noexcept { return {}; }
  virtual fused_mlp_group group() const noexcept { return {}; }
  virtual void complete(const Outcome& outcome) noexcept = 0;
  // Called on the thread that released the last reference. Fronts that recycle tickets override it.
  virtual void dispose() noexcept { delete this; }

 private:
  friend class BatchRunner;  // calls these
  friend class LaneQueue;    // links queued tickets

  std::atomic<std::uint32_t> references_{1};
  std::atomic<bool> cancelled_{false};
  std::uint32_t rows_;
  CompletionSink* sink_;
  Ticket* next_ = nullptr;  // of the same flow and urgency
  Nanos due_ns_ = 0;        // its place in the flow: see LaneQueue
};

}  // namespace fused_mlp
