// SPDX-License-Identifier: Apache-2.0
#include "front/http2/nghttp2_check.hpp"

#include <nghttp2/nghttp2.h>

#include <new>
#include <string>

namespace fused_mlp::front {
namespace {

constexpr int kManyContinuations = 64;  // nghttp2 with the fix takes 8

std::string frame(char type, char stream, const std::string& payload) {
  std::string text = {0, 0, static_cast<char>(payload.size()), type, 0, 0, 0, 0, stream};
  return text + payload;
}

}  // namespace

bool nghttp2_bounds_continuations() {
  std::string input = NGHTTP2_CLIENT_MAGIC + frame(NGHTTP2_SETTINGS, 0, "");
  input += frame(NGHTTP2_HEADERS, 1, "\x82");  // begins a header block, and does not end it
  for (int i = 0; i < kManyContinuations; ++i) input += frame(NGHTTP2_CONTINUATION, 1, "");

  nghttp2_session_callbacks* callbacks = nullptr;
  nghttp2_session* session = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) throw std::bad_alloc();
  const int error = nghttp2_session_server_new(&session, callbacks, nullptr);
  nghttp2_session_callbacks_del(callbacks);
  if (error != 0) throw std::bad_alloc();
  const auto taken =
      nghttp2_session_mem_recv(session, reinterpret_cast<const uint8_t*>(input.data()), input.size());
  nghttp2_session_del(session);
  return taken < 0;
}

}  // namespace fused_mlp::front
