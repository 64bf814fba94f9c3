// SPDX-License-Identifier: Apache-2.0
// Streams, and what is enqueued on them.
#include "work.hpp"

using namespace fake_cuda;

EXPORT int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, Stream* stream) {
  ENTER(enter("cuMemcpyHtoDAsync_v2"));
  ENTER(check_stream(stream));
  return enqueue(stream, copy(to, from, bytes, true));
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, Stream* stream) {
  ENTER(enter("cuMemcpyDtoHAsync_v2"));
  ENTER(check_stream(stream));
  return enqueue(stream, copy(from, to, bytes, false));
}

EXPORT int cuStreamCreate(Stream** stream, unsigned flags) {
  ENTER(enter("cuStreamCreate"));
  if (flags != 1) return kInvalidValue;  // only those that do not wait for the null stream
  const auto seed = static_cast<unsigned>(fake().numbers++);
  *stream = fake().streams.add(std::make_unique<Stream>(*current_context(), fake().pace, seed));
  return kSuccess;
}

EXPORT int cuStreamDestroy_v2(Stream* stream) {
  ENTER(enter("cuStreamDestroy_v2", Needs::kContext));
  ENTER(check_stream(stream));
  {
    const std::lock_guard lock(fake().mutex);
    fake().captures.erase(stream);
  }
  fake().streams.take(stream);
  return kSuccess;
}

EXPORT int cuStreamQuery(Stream* stream) {
  ENTER(enter("cuStreamQuery"));
  ENTER(check_stream(stream));
  if (stream->capturing()) return stream->invalidate(), kCaptureUnsupported;
  if (!stream->idle()) return kNotReady;
  return current_context()->sticky.load();
}

EXPORT int cuStreamSynchronize(Stream* stream) {
  ENTER(enter("cuStreamSynchronize"));
  if (stream == nullptr) {
    stream = null_stream();
  } else {
    ENTER(check_stream(stream));
  }
  if (stream->capturing()) return stream->invalidate(), kCaptureUnsupported;
  stream->wait_idle();
  return current_context()->sticky.load();
}

EXPORT int cuCtxSynchronize() {
  ENTER(enter("cuCtxSynchronize"));
  ENTER(break_captures_of_context());
  fake().streams.visit([](Stream& stream) {
    if (&stream.context() == current_context()) stream.wait_idle();
  });
  null_stream()->wait_idle();
  return current_context()->sticky.load();
}

EXPORT int cuEventCreate(Event** event, unsigned) {
  ENTER(enter("cuEventCreate"));
  auto made = std::make_unique<Event>();
  made->context = current_context();
  *event = fake().events.add(std::move(made));
  return kSuccess;
}

EXPORT int cuEventDestroy_v2(Event* event) {
  ENTER(enter("cuEventDestroy_v2", Needs::kContext));
  ENTER(check_handle(fake().events, event));
  fake().events.take(event);
  return kSuccess;
}

EXPORT int cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) {
  ENTER(enter("cuLaunchHostFunc"));
  ENTER(check_stream(stream));
  return enqueue(stream, [=] {
    function(argument);
    return static_cast<int>(kSuccess);
  });
}

EXPORT int cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                          Stream* stream, void** parameters, void** extra) {
  ENTER(enter("cuLaunchKernel"));
  ENTER(check_stream(stream));
  Work work;
  ENTER(prepare(function,
                {reinterpret_cast<fused_mlp::cuda::CUfunction>(function), grid_x, grid_y, grid_z, block_x,
                 block_y, block_z, shared_bytes, parameters, extra, nullptr, nullptr},
                work));
  return enqueue(stream, std::move(work));
}
