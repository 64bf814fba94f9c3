// SPDX-License-Identifier: Apache-2.0
#include "front/server/mailbox.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <exception>
#include <system_error>
#include <utility>

namespace fused_mlp::front {

Mailbox::Mailbox() : event_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Mailbox::~Mailbox() { ::close(event_fd_); }

void Mailbox::post(Delivery* delivery) noexcept {
  Delivery* head = posted_.load(std::memory_order_relaxed);
  do {
    delivery->next_ = head;
  } while (
      !posted_.compare_exchange_weak(head, delivery, std::memory_order_release, std::memory_order_relaxed));
}

void Mailbox::signal() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event_fd_, &one, sizeof one);
}

void Mailbox::wake() noexcept {
  if (!woken_.exchange(true, std::memory_order_acq_rel)) signal();
}

void Mailbox::run_soon(std::function<void()> task) {
  {
    const std::lock_guard lock(tasks_mutex_);
    tasks_.push_back(std::move(task));
  }
  signal();  // also for the loop's own tasks, which run in its next round
}

void Mailbox::acknowledge() noexcept {
  uint64_t count;
  [[maybe_unused]] const ssize_t n = ::read(event_fd_, &count, sizeof count);
  woken_.exchange(false, std::memory_order_acq_rel);  // before looking at what was posted
}

uint64_t Mailbox::run_tasks() noexcept {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(tasks_mutex_);
    tasks.swap(tasks_);
  }
  uint64_t failures = 0;
  for (auto& task : tasks) {
    try {
      task();
    } catch (const std::exception&) {
      ++failures;
    }
  }
  return failures;
}

Delivery* Mailbox::take_posted() noexcept {
  Delivery* stack = posted_.exchange(nullptr, std::memory_order_acquire);
  Delivery* in_order = nullptr;  // the last one posted is on top of the stack
  while (stack != nullptr) {
    Delivery* next = std::exchange(stack->next_, in_order);
    in_order = std::exchange(stack, next);
  }
  return in_order;
}

void Mailbox::deliver_all(Delivery* first) noexcept {
  while (first != nullptr) {
    Delivery* next = first->next_;  // a delivery may be recycled, or posted again
    first->deliver();
    first = next;
  }
}

}  // namespace fused_mlp::front
