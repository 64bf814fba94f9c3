// SPDX-License-Identifier: Apache-2.0
// The requests that one event loop keeps for itself, because it can run them soon. A mutex of its own guards
// them: other threads take it only when the engine drains or stops, or a lane is removed. So loops that keep
// up with their requests share no lock, and write to no memory that others write to.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/engine.hpp"
#include "engine/run/taken_batch.hpp"

namespace fused_mlp {

class alignas(64) LoopQueue {
 public:
  // A loop keeps requests that it can run in kBudget, and leaves others to all threads. While no core is
  // free, no thread could run them sooner, and all loops would meet at the scheduler's mutex: then it keeps
  // more.
  static constexpr Nanos kBudget = 200'000, kBusyBudget = 500'000;
  // The longest request, or batch, that it keeps, by its estimate.
  static constexpr Nanos kLongest = 100'000;

  LoopQueue() = default;
  LoopQueue(const LoopQueue&) = delete;
  LoopQueue& operator=(const LoopQueue&) = delete;

  bool empty() const noexcept { return batches_left_.load(std::memory_order_relaxed) == 0; }
  // Accepts what it may of the list, and takes those tickets. Returns how many are left.
  std::size_t keep(std::span<Submission> list);
  // Takes the oldest batch. False if there is none.
  bool take(TakenBatch& batch, Nanos now) noexcept;
  // A batch that this loop took is complete. Keeps a reference to its lane for the next one: counting
  // references to a lane would be a line that all loops write.
  void finished(TakenBatch& batch, std::size_t tickets) noexcept;
  // The lane was removed: gives up its reference.
  void forget(const Lane& lane) noexcept;
  // From now on it keeps nothing.
  void close() noexcept;
  // Everything that it has, as dropped, one batch per entry.
  void drop_all(std::vector<TakenBatch>& into);

  // Tickets. Once closed, the difference only falls.
  std::atomic<std::uint64_t> accepted{0}, ended{0};
  bool had_turn = false;  // the last batch that the loop took was from here. Loop thread only.

 private:
  // Tickets of one lane.
  struct Batch {
    std::shared_ptr<Lane> lane;
    std::vector<Ref<Ticket>> tickets;
    std::uint64_t rows = 0;
    Nanos estimate = 0;
  };
  Batch* add_rows(Lane& lane, std::uint32_t rows) noexcept;
  std::shared_ptr<Lane> reference(Lane& lane);

  std::mutex mutex_;
  std::vector<Batch> batches_;  // oldest first
  std::size_t first_ = 0;       // of batches_: those before it were taken, and keep their capacity
  std::size_t last_ = 0;
  Nanos estimate_ = 0;  // of all that it has
  bool closed_ = false;
  std::atomic<std::size_t> batches_left_{0};
  std::array<std::shared_ptr<Lane>, 8> lanes_;  // references of lanes it has run
  std::size_t replaced_ = 0;
};

}  // namespace fused_mlp
