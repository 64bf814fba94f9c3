// SPDX-License-Identifier: Apache-2.0
// Counters that every request changes, one copy per thread: cores do not pass a cache line to each other with
// each request. A copy exists once its thread has counted something; readers add them up.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <new>

namespace fused_mlp {

// Defined in process_state.cpp.
extern std::atomic<unsigned> counting_threads;
extern constinit thread_local unsigned this_thread_counts_as;  // from 1; 0: it has not counted yet

template <class T>
class PerThread {
 public:
  static constexpr std::size_t kCopies = 32;  // more threads share them

  PerThread() = default;
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;
  ~PerThread() {
    for (const auto& copy : copies_) delete copy.load(std::memory_order_relaxed);
  }

  // The copy of the calling thread. Without memory for one, a shared one.
  T& mine() noexcept {
    if (this_thread_counts_as == 0) {
      this_thread_counts_as = 1 + counting_threads.fetch_add(1, std::memory_order_relaxed);
    }
    std::atomic<T*>& place = copies_[this_thread_counts_as % kCopies];
    T* const copy = place.load(std::memory_order_acquire);
    return copy != nullptr ? *copy : make(place);
  }

  template <class Visit>
  void each(Visit visit) const {
    visit(shared_);
    for (const auto& place : copies_) {
      if (const T* const copy = place.load(std::memory_order_acquire)) visit(*copy);
    }
  }

 private:
  T& make(std::atomic<T*>& place) noexcept {
    T* const made = new (std::nothrow) T();
    if (made == nullptr) return shared_;
    T* before = nullptr;
    if (place.compare_exchange_strong(before, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *before;
  }

  std::array<std::atomic<T*>, kCopies> copies_{};
  T shared_{};
};

}  // namespace fused_mlp
