// SPDX-License-Identifier: Apache-2.0
// The objects behind the fake driver's handles: contexts, modules, streams (each a thread), events and
// graphs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor.hpp"

namespace fake_cuda {

// One primary context per device. A sticky error ends everything in it.
struct Context {
  int device = 0;
  int references = 0;
  std::atomic<int> sticky{0};
  std::unique_ptr<class Stream> null_stream;  // once it was used, while the context is retained
  Context();
  ~Context();
};

// A piece of work: returns a CUresult.
using Work = std::function<int()>;

struct Module {
  Context* context;
  std::uint64_t number;
  std::vector<Entry> entries;
  std::vector<const struct Function*> functions;
};

struct Function {
  Module* module;
  Entry entry;
  unsigned max_shared_bytes = 48 * 1024;
};

struct Event {
  Context* context;
};

// A chain: each piece of work depends on the one before it.
struct Graph {
  Context* context;
  std::vector<std::unique_ptr<Work>> nodes;
  bool loose = false;  // the last node waits for its edge
};

struct GraphExec {
  Context* context;
  std::vector<Work> work;
};

// When work may go on, and how long it takes.
struct Pace {
  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;
  std::atomic<unsigned> delay_us{20};
  bool drops = false;  // nothing is done
};

class Stream {
 public:
  Stream(Context& context, Pace& pace, unsigned seed);
  ~Stream();  // waits for its work
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Context& context() const { return context_; }
  // During a capture the work is recorded instead.
  void enqueue(Work work);
  bool idle();
  void wait_idle();

  // Called by the thread that captures; any thread may invalidate its capture.
  bool capturing() const { return captured_.has_value(); }
  void begin_capture() { captured_.emplace(), invalid_ = false; }
  void invalidate() { invalid_ = true; }
  // Nothing if it was invalidated.
  std::optional<std::vector<Work>> end_capture();

 private:
  void run();
  void run_one(const Work& work);

  Context& context_;
  Pace& pace_;
  unsigned seed_;
  std::optional<std::vector<Work>> captured_;
  std::atomic<bool> invalid_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  bool running_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace fake_cuda
