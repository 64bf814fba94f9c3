// SPDX-License-Identifier: Apache-2.0
// Reads and writes messages that would keep a loop from its other connections for long (large JSON): one
// thread for each loop, started with the first of them. Addresses take turns, and the connections of an
// address.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "front/methods/fair_queue.hpp"

namespace fused_mlp::front {

class Prediction;

class CodecThread {
 public:
  ~CodecThread();  // nothing may be left in it
  void push(uint64_t address, uint64_t connection, Prediction& prediction);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  FairQueue<Prediction*> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace fused_mlp::front
