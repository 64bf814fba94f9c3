// SPDX-License-Identifier: Apache-2.0
// How other threads reach a loop: finished work and tasks, behind an eventfd that the loop watches.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace fused_mlp::front {

// Something another thread has finished for a loop. Posting it allocates nothing: it is its own list node.
class Delivery {
 public:
  virtual void deliver() noexcept = 0;  // on the loop's thread

 protected:
  ~Delivery() = default;

 private:
  friend class Mailbox;
  Delivery* next_ = nullptr;
};

class Mailbox {
 public:
  Mailbox();
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  int fd() const { return event_fd_; }

  // From any thread:
  void post(Delivery* delivery) noexcept;  // lock-free; without a wake-up
  void wake() noexcept;
  void run_soon(std::function<void()> task);  // in a later round of the loop

  // From the loop's thread:
  void acknowledge() noexcept;       // the eventfd was readable
  uint64_t run_tasks() noexcept;     // returns how many of them threw
  Delivery* take_posted() noexcept;  // all of them, in the order they were posted; null: none
  // Delivers what take_posted returned.
  static void deliver_all(Delivery* first) noexcept;

 private:
  void signal() noexcept;

  const int event_fd_;
  std::atomic<Delivery*> posted_{nullptr};  // a stack
  std::atomic<bool> woken_{false};
  std::mutex tasks_mutex_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace fused_mlp::front
