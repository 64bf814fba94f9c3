// SPDX-License-Identifier: Apache-2.0
#include "front/call/gzip.hpp"

#include <algorithm>
#include <new>

namespace fused_mlp::front {

Gunzip::Gunzip(const uint8_t* data, size_t size, size_t max_bytes) : left_(size), max_bytes_(max_bytes) {
  constexpr int kAnyHeader = 32;  // gzip's, or zlib's, which HTTP calls deflate
  if (inflateInit2(&stream_, MAX_WBITS + kAnyHeader) != Z_OK) throw std::bad_alloc();
  stream_.next_in = const_cast<Bytef*>(data);
}

Gunzip::State Gunzip::step(ByteBuffer& out) {
  const size_t chunk = next_bytes(out);
  stream_.next_out = out.extend(chunk);
  stream_.avail_out = static_cast<uInt>(chunk);
  const size_t given = std::min(left_, kStepInput);
  stream_.avail_in = static_cast<uInt>(given);
  const int state = inflate(&stream_, Z_NO_FLUSH);
  left_ -= given - stream_.avail_in;
  out.drop_back(stream_.avail_out);
  if (out.size() > max_bytes_) return State::too_large;
  if (state == Z_STREAM_END) return left_ == 0 ? State::done : State::broken;
  return state == Z_OK ? State::unfinished : State::broken;  // Z_BUF_ERROR: the input ends too early
}

}  // namespace fused_mlp::front
