// A ticket: the rows of one request on their way through the engine. It owns its input bytes, knows how to
// put them into a batch, and owns its completion; there is no table of pending requests anywhere.
//
// Life of a ticket, seen from a front:
//   1. make_ref<MyTicket>(...), keep a second Ref if it may be cancelled;
//   2. Engine::submit. If it answers anything but ok, the ticket is still yours and complete() never comes;
//   3. else gather() is called at most once and complete() exactly once, in this order, on any thread
//      (a worker, or an event loop that runs batches itself: maybe not the loop that submitted it);
//   4. then CompletionSink::flush(), once for all tickets of that sink in the batch;
//   5. then the engine drops its reference.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "engine/clock.hpp"
#include "engine/ref.hpp"
#include "engine/status.hpp"

namespace fused_mlp {

// How a ticket ended. Pointers are valid only during complete().
struct Outcome {
  Status status = Status::ok;
  const float* y = nullptr;  // (rows, out_features); null unless ok
  std::uint32_t rows = 0;
  std::uint32_t batch_rows = 0;  // rows that shared the kernel call; 0 if it was never run
  Nanos queue_ns = 0;            // from arrival to the forming of the batch
  Nanos compute_ns = 0;          // the kernel call for the whole batch
  const char* strategy = "";
  std::string_view detail;  // when not ok: one line that may be sent to the caller
};

// Where finished tickets of one event loop gather before it is woken. Must outlive the tickets that name it
// (let the ticket hold a reference to it if its end is not otherwise after theirs).
class CompletionSink {
 public:
  // All tickets of one batch that belong here are complete: write, or wake whoever writes.
  virtual void flush() noexcept = 0;

 protected:
  ~CompletionSink() = default;
};

class Ticket {
 public:
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // The caller is gone. From any thread, at any time, also after completion. A ticket that is still queued
  // is completed as cancelled when its batch forms; one already in a batch completes as usual.
  void cancel() noexcept { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

  std::uint32_t rows() const noexcept { return rows_; }

  // Set before submit, left alone afterwards.
  Nanos deadline_ns = 0;  // on the engine's clock; 0: none
  Nanos arrival_ns = 0;   // 0: the time of submit. A front that has read the clock saves a second reading
  std::uint64_t trace_id = 0;  // of a request that is traced

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) dispose();
  }

 protected:
  Ticket(std::uint32_t rows, CompletionSink* sink) noexcept : rows_(rows), sink_(sink) {}
  virtual ~Ticket() = default;

  // Writes (rows, in_features) float32 at dst, converting from the request's dtype: the one copy in.
  virtual void gather(float* dst) noexcept = 0;
  virtual void complete(const Outcome& outcome) noexcept = 0;
  // After the last reference went, on whatever thread dropped it. Fronts that recycle tickets override it.
  virtual void dispose() noexcept { delete this; }

 private:
  friend class BatchRun;   // calls gather and complete
  friend class LaneQueue;  // links queued tickets

  std::atomic<std::uint32_t> references_{1};
  std::atomic<bool> cancelled_{false};
  std::uint32_t rows_;
  CompletionSink* sink_;
  Ticket* next_ = nullptr;
};

}  // namespace fused_mlp
