// SPDX-License-Identifier: Apache-2.0
// Writing protobuf messages into a ByteBuffer, by protozero's writer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <protozero/basic_pbf_writer.hpp>
#include <protozero/varint.hpp>
#include <string_view>

#include "codec/byte_buffer.hpp"

template <>
struct protozero::buffer_customization<fused_mlp::ByteBuffer> {
  using Buffer = fused_mlp::ByteBuffer;
  static size_t size(const Buffer* buffer) noexcept { return buffer->size(); }
  static void append(Buffer* buffer, const char* data, size_t count) { buffer->append(data, count); }
  static void append_zeros(Buffer* buffer, size_t count) { std::memset(buffer->extend(count), 0, count); }
  static void resize(Buffer* buffer, size_t size) { buffer->drop_back(buffer->size() - size); }
  static void reserve_additional(Buffer*, size_t) {}  // encode() reserves room for the whole message
  static void erase_range(Buffer* buffer, size_t from, size_t to) {
    std::memmove(buffer->data() + from, buffer->data() + to, buffer->size() - to);
    buffer->drop_back(to - from);
  }
  static char* at_pos(Buffer* buffer, size_t at) { return reinterpret_cast<char*>(buffer->data()) + at; }
  static void push_back(Buffer* buffer, char byte) { *buffer->extend(1) = static_cast<uint8_t>(byte); }
};

namespace fused_mlp {

using Writer = protozero::basic_pbf_writer<ByteBuffer>;

// Proto3: a field that has its default is left out.
inline void add_number(Writer& writer, unsigned field, uint64_t value) {
  if (value != 0) writer.add_uint64(field, value);
}
// What add_number writes, for a field with a number below 16.
inline size_t number_size(uint64_t value) { return value == 0 ? 0 : 1 + protozero::length_of_varint(value); }
inline void add_text(Writer& writer, unsigned field, std::string_view text) {
  if (!text.empty()) writer.add_bytes(field, text.data(), text.size());
}
// Begins a field of `size` bytes, which come next.
inline void begin_field(ByteBuffer& out, unsigned field, size_t size) {
  constexpr unsigned kLengthDelimited = 2;
  protozero::add_varint_to_buffer(&out, field << 3 | kLengthDelimited);
  protozero::add_varint_to_buffer(&out, size);
}
// The bytes of a field of `size` bytes with a number below 16.
inline size_t field_size(size_t size) { return 1 + protozero::length_of_varint(size) + size; }

}  // namespace fused_mlp
