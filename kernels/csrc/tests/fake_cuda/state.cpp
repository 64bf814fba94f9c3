// SPDX-License-Identifier: Apache-2.0
#include "state.hpp"

#include <cstring>
#include <fstream>
#include <vector>

namespace fake_cuda {

unsigned long number(const char* name, unsigned long otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoul(text, nullptr, 10) : otherwise;
}

Fake::Fake() {
  for (int i = 0; i < kDevices; ++i) contexts[static_cast<std::size_t>(i)].device = i;
  pace.delay_us = static_cast<unsigned>(number("FAKE_CUDA_DELAY_US", 20));
  const char* const streams_mode = std::getenv("FAKE_CUDA_STREAMS");
  pace.drops = streams_mode != nullptr && std::strcmp(streams_mode, "drop") == 0;
}

int Fake::failure_of(const char* symbol) {
  if (fail_file != nullptr) {
    std::ifstream file(fail_file);
    std::string name;
    int code = 0;
    if (file >> name >> code && name == symbol) return code;
  }
  if (!counting) return 0;
  const std::lock_guard lock(mutex);
  ++calls[symbol];
  const auto found = failures.find(symbol);
  if (found == failures.end()) return 0;
  Failure& failure = found->second;
  if (failure.skip > 0) return --failure.skip, 0;
  if (failure.times <= 0) return 0;
  --failure.times;
  return failure.code;
}

Fake& fake() {
  static Fake* const made = new Fake;
  return *made;
}

namespace {

// Aligned: LeakSanitizer takes a thread's block of these for something else where it lies 16 bytes into a
// page.
alignas(64) thread_local std::vector<Context*> current;

template <class Which>
int break_captures(Which which) {
  const std::lock_guard lock(fake().mutex);
  int code = kSuccess;
  for (const auto& [stream, by] : fake().captures) {
    if (!which(*stream, by)) continue;
    stream->invalidate();
    code = kCaptureUnsupported;
  }
  return code;
}

}  // namespace

Context* current_context() { return current.empty() ? nullptr : current.back(); }

void push_context(Context* context) { current.push_back(context); }

Context* pop_context() {
  Context* const popped = current_context();
  if (popped != nullptr) current.pop_back();
  return popped;
}

int enter(const char* symbol, Needs needs) {
  if (!fake().initialized) return kNotInitialized;
  if (const int code = fake().failure_of(symbol)) return code;
  if (needs == Needs::kNothing) return kSuccess;
  if (current_context() == nullptr || current_context()->references == 0) return kInvalidContext;
  return needs == Needs::kContext ? kSuccess : current_context()->sticky.load();
}

int enter_unsafe(const char* symbol, Needs needs) {
  if (const int code = enter(symbol, needs)) return code;
  return break_captures([](const Stream&, std::thread::id by) { return by == std::this_thread::get_id(); });
}

int break_captures_of_context() {
  return break_captures(
      [](const Stream& stream, std::thread::id) { return &stream.context() == current_context(); });
}

int check_stream(Stream* stream) {
  if (!fake().streams.has(stream)) return kInvalidHandle;
  return &stream->context() == current_context() ? kSuccess : kInvalidContext;
}

Stream* null_stream() {
  const std::lock_guard lock(fake().mutex);
  Context& context = *current_context();
  if (!context.null_stream) context.null_stream = std::make_unique<Stream>(context, fake().pace, 0);
  return context.null_stream.get();
}

}  // namespace fake_cuda
