// SPDX-License-Identifier: Apache-2.0
// Tickets over Python buffers, and the queue that returns their results: it has a file descriptor for an
// asyncio loop to watch. Outputs are written straight into Python bytes.
#pragma once

#include <Python.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "engine/run/tensor.hpp"
#include "engine/schedule/lane.hpp"
#include "engine/ticket.hpp"

namespace fused_mlp {

class PythonTicket;

// How a ticket ended, as Python reads it: with texts of its own, since it outlives the batch.
struct TicketResult {
  std::shared_ptr<PyObject> token;
  std::shared_ptr<PyObject> data;  // bytes in the request's dtype; null unless ok
  std::string strategy, detail;

  void set(const Outcome& outcome) noexcept {
    outcome_ = outcome;
    outcome_.y = nullptr;
    try {
      strategy = outcome.strategy;
      detail = outcome.detail;
    } catch (const std::bad_alloc&) {  // without its texts
    }
  }
  Outcome outcome() const {
    Outcome told = outcome_;
    told.strategy = strategy.c_str();
    told.detail = detail;
    return told;
  }

 private:
  Outcome outcome_;  // its texts may be gone
};

// The part of a completion queue that tickets share. May outlive the Python object, which closes it.
class CompletionChannel final : public CompletionSink {
 public:
  CompletionChannel();
  ~CompletionChannel();
  CompletionChannel(const CompletionChannel&) = delete;
  CompletionChannel& operator=(const CompletionChannel&) = delete;

  int fd() const noexcept { return fd_; }
  void push(Ref<PythonTicket> ticket) noexcept;
  void flush() noexcept override;
  std::vector<Ref<PythonTicket>> take();
  void close();

 private:
  std::vector<Ref<PythonTicket>> take_all();  // with the mutex

  const int fd_;  // eventfd, readable while results wait
  std::mutex mutex_;
  PythonTicket* newest_ = nullptr;  // a list of references: pushing allocates nothing
  std::size_t finished_ = 0;        // its length
  bool closed_ = false;
  std::atomic<bool> signalled_{false};
};

// Created and read with the GIL; gathered and completed without it.
class PythonTicket final : public Ticket {
 public:
  // `input` holds rows * in_features elements (the caller has checked). Takes ownership of it.
  PythonTicket(std::uint32_t rows, DType dtype, const Lane& lane, Py_buffer input, PyObject* token,
               std::shared_ptr<CompletionChannel> channel);

  PythonTicket* next = nullptr;  // in its channel's list

  bool has_output() const noexcept { return output_ != nullptr; }
  // Call it after completion, with the GIL. Moves the Python objects into the result, so that releasing the
  // last reference, usually on a worker, needs no GIL.
  TicketResult take_result();

 protected:
  ~PythonTicket() override;
  void gather(float* dst) noexcept override;
  void complete(const Outcome& outcome) noexcept override;

 private:
  const DType dtype_;
  const std::size_t in_count_;
  const std::size_t out_count_;
  Py_buffer input_;
  PyObject* token_;
  // Created at submit, with the GIL, and filled without it: no other thread has a reference yet.
  PyObject* output_;
  std::shared_ptr<CompletionChannel> channel_;
  TicketResult result_;  // its Python objects only after hand_over()
};

// The Python objects for a ticket and a completion queue.
struct TicketHandle {
  Ref<PythonTicket> ticket;
};

struct CompletionQueue {
  std::shared_ptr<CompletionChannel> channel = std::make_shared<CompletionChannel>();
  CompletionQueue() = default;
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;
  ~CompletionQueue() { channel->close(); }
};

}  // namespace fused_mlp
