// Unpacking of gzip messages, with the output bounded: a few KiB can unpack to gigabytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/byte_buffer.hpp"

namespace fused_mlp::front {

enum class ReadError : uint8_t;

// ReadError::none, too_large (more than `most_bytes` came out) or bad_gzip.
ReadError gunzip(const uint8_t* data, size_t size, size_t most_bytes, ByteBuffer& out);

}  // namespace fused_mlp::front
