// SPDX-License-Identifier: Apache-2.0
#include "model/scratch.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>

namespace fused_mlp {

namespace {
struct Registry;
}  // namespace

struct LargeScratch {
  LargeScratch(std::size_t floats, Registry& registry);
  ~LargeScratch();

  FloatBuffer buffer;
  Registry& registry;
  bool used = true;  // since the last trim
};

namespace {

constexpr std::size_t kLargeFloats = (std::size_t{1} << 20) / sizeof(float);
constexpr auto kTrimPeriod = std::chrono::seconds(1);

// The large array of a thread while it is not in use. Whoever takes it, the thread or a trim, leaves null.
struct Slot {
  std::atomic<LargeScratch*> kept{nullptr};
  Slot();
  ~Slot();
};

struct Registry {
  std::mutex mutex;
  std::unordered_set<Slot*> slots;
  bool trimmed = false;               // by a thread
  std::atomic<std::size_t> bytes{0};  // of all large arrays, also those in use
};

// Never destroyed: threads may end after static objects. A forked child has neither the other threads nor
// their arrays, and the mutex may be locked for ever: it starts anew.
std::atomic<Registry*> registry{new Registry};

Registry& shared() {
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { registry.store(new Registry); });
  (void)at_fork;
  return *registry.load(std::memory_order_acquire);
}

Slot::Slot() {
  Registry& all = shared();
  const std::lock_guard lock(all.mutex);
  all.slots.insert(this);
}

Slot::~Slot() {
  Registry& all = shared();
  const std::lock_guard lock(all.mutex);
  all.slots.erase(this);
  delete kept.load(std::memory_order_relaxed);
}

Slot& own_slot() {
  thread_local Slot slot;
  return slot;
}

// Runs in its own thread.
void keep_trimming() {
  do std::this_thread::sleep_for(kTrimPeriod);
  while (trim_scratch() > 0);
}

// Called when there is one more large array.
void have_trimmed() {
  Registry& all = shared();
  const std::lock_guard lock(all.mutex);
  if (all.trimmed) return;
  try {
    std::thread(keep_trimming).detach();
    all.trimmed = true;
  } catch (const std::system_error&) {
    // No more threads: the array is kept until its thread ends.
  }
}

}  // namespace

LargeScratch::LargeScratch(std::size_t floats, Registry& registry) : buffer(floats), registry(registry) {
  registry.bytes.fetch_add(floats * sizeof(float), std::memory_order_relaxed);
}

LargeScratch::~LargeScratch() {
  registry.bytes.fetch_sub(buffer.size() * sizeof(float), std::memory_order_relaxed);
}

Scratch::Scratch(std::size_t floats) {
  if (floats == 0) return;
  if (floats <= kLargeFloats) {
    thread_local FloatBuffer small;
    if (small.size() < floats) {
      small = FloatBuffer();  // free the old one before allocating
      small = FloatBuffer(floats);
    }
    data_ = small.data();
    return;
  }
  large_ = own_slot().kept.exchange(nullptr, std::memory_order_acquire);
  if (large_ == nullptr || large_->buffer.size() < floats) {
    delete large_;
    large_ = nullptr;
    large_ = new LargeScratch(floats, shared());
    have_trimmed();
  }
  data_ = large_->buffer.data();
}

void Scratch::give_back() {
  large_->used = true;
  // A trim may have held another one when this one was taken.
  delete own_slot().kept.exchange(large_, std::memory_order_acq_rel);
}

std::size_t trim_scratch() {
  Registry& all = shared();
  const std::lock_guard lock(all.mutex);
  for (Slot* slot : all.slots) {
    LargeScratch* large = slot->kept.exchange(nullptr, std::memory_order_acquire);
    if (large == nullptr) continue;
    LargeScratch* none = nullptr;
    const bool keep = std::exchange(large->used, false);
    if (!keep || !slot->kept.compare_exchange_strong(none, large, std::memory_order_release)) delete large;
  }
  const std::size_t bytes = all.bytes.load(std::memory_order_relaxed);
  all.trimmed = all.trimmed && bytes > 0;
  return bytes;
}

}  // namespace fused_mlp
