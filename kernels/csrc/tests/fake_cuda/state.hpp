// SPDX-License-Identifier: Apache-2.0
// The whole fake driver: what is alive, which calls shall fail, and what every call checks first.
#pragma once

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "objects.hpp"
#include "results.hpp"

namespace fake_cuda {

// The value of an environment variable.
unsigned long number(const char* name, unsigned long otherwise);

// Handles that are alive. Any other pointer is refused.
template <class T>
class Table {
 public:
  T* add(std::unique_ptr<T> made) {
    const std::lock_guard lock(mutex_);
    T* const handle = made.get();
    all_[handle] = std::move(made);
    return handle;
  }
  bool has(const void* handle) {
    const std::lock_guard lock(mutex_);
    return all_.contains(static_cast<const T*>(handle));
  }
  // Destroyed by the caller, outside of the lock.
  std::unique_ptr<T> take(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = all_.find(static_cast<const T*>(handle));
    if (found == all_.end()) return nullptr;
    std::unique_ptr<T> taken = std::move(found->second);
    all_.erase(found);
    return taken;
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return all_.size();
  }
  // None of them is destroyed meanwhile.
  template <class Visit>
  void visit(Visit visit) {
    const std::lock_guard lock(mutex_);
    for (const auto& each : all_) visit(*each.second);
  }

 private:
  std::mutex mutex_;
  std::map<const T*, std::unique_ptr<T>> all_;
};

struct Failure {
  int code, skip, times;
};

constexpr int kDevices = 2;

// The whole fake driver. Never destroyed: its users may outlive any static.
struct Fake {
  std::atomic<bool> initialized{false};
  Memory memory{number("FAKE_CUDA_MEMORY_MIB", 256) << 20};
  Executor executor{memory};
  Pace pace;
  std::array<Context, kDevices> contexts;
  std::mutex mutex;  // of what follows
  std::map<std::string, Failure> failures;
  std::map<std::string, unsigned> calls;
  std::map<Stream*, std::thread::id> captures;  // and which thread has begun them
  Table<Module> modules;
  Table<Function> functions;
  Table<Stream> streams;
  Table<Event> events;
  Table<Graph> graphs;
  Table<GraphExec> executables;
  std::atomic<std::uint64_t> numbers{1};
  const char* const fail_file = std::getenv("FAKE_CUDA_FAIL_FILE");
  const bool counting = std::getenv("FAKE_CUDA_STREAMS") == nullptr;  // not while calls are timed

  Fake();
  // The code that a call should fail with, or 0.
  int failure_of(const char* symbol);
};

Fake& fake();

// The context of the calling thread; null: none.
Context* current_context();
void push_context(Context* context);
Context* pop_context();

enum class Needs { kNothing, kContext, kHealthyContext };

// The checks that every call begins with: an injected failure, no current context, a sticky error.
int enter(const char* symbol, Needs needs = Needs::kHealthyContext);
// The same for calls that a capture of this thread does not survive.
int enter_unsafe(const char* symbol, Needs needs = Needs::kHealthyContext);
// Captures of the current context, whichever thread began them.
int break_captures_of_context();

int check_stream(Stream* stream);
template <class T>
int check_handle(Table<T>& table, T* handle) {
  if (!table.has(handle)) return kInvalidHandle;
  return handle->context == current_context() ? kSuccess : kInvalidContext;
}

// The current context's own, which the launcher's streams do not wait for: they are all non-blocking.
Stream* null_stream();

}  // namespace fake_cuda

#define ENTER(...) \
  if (const int code_ = (__VA_ARGS__); code_ != kSuccess) return code_
#define EXPORT extern "C" __attribute__((visibility("default")))
