#include "front/gzip.hpp"

#include <zlib.h>

#include <algorithm>

#include "front/message.hpp"

namespace fused_mlp::front {

ReadError gunzip(const uint8_t* data, size_t size, size_t most_bytes, ByteBuffer& out) {
  constexpr int kGzipHeader = 16;
  z_stream stream{};
  if (inflateInit2(&stream, MAX_WBITS + kGzipHeader) != Z_OK) return ReadError::no_memory_left;
  stream.next_in = const_cast<Bytef*>(data);
  stream.avail_in = static_cast<uInt>(size);  // bounded by the message limit, which is below 4 GiB
  int state = Z_OK;
  while (state == Z_OK) {
    // One byte more than allowed, so that "too large" shows as output and not as a full buffer.
    const size_t chunk = std::min<size_t>(64u << 10, most_bytes + 1 - out.size());
    if (chunk == 0) break;
    stream.next_out = out.extend(chunk);
    stream.avail_out = static_cast<uInt>(chunk);
    state = inflate(&stream, Z_NO_FLUSH);
    out.drop_back(stream.avail_out);
    if (state == Z_BUF_ERROR) break;  // the input ends too early
  }
  const bool whole = state == Z_STREAM_END && stream.avail_in == 0;
  inflateEnd(&stream);
  if (out.size() > most_bytes) return ReadError::too_large;
  return whole ? ReadError::none : ReadError::bad_gzip;
}

}  // namespace fused_mlp::front
