// SPDX-License-Identifier: Apache-2.0
// Writing protobuf: sizes first, then bytes into exactly that much room. For messages whose fields are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace fused_mlp {

constexpr size_t varint_size(uint64_t value) {
  size_t size = 1;
  while (value >= 0x80) {
    value >>= 7;
    ++size;
  }
  return size;
}

// All our field numbers are below 16, so a tag is one byte.
constexpr size_t number_field_size(uint64_t value) { return value == 0 ? 0 : 1 + varint_size(value); }
constexpr size_t bytes_field_size(size_t size) { return 1 + varint_size(size) + size; }
constexpr size_t text_field_size(std::string_view text) {
  return text.empty() ? 0 : bytes_field_size(text.size());
}

class Writer {
 public:
  explicit Writer(uint8_t* at) : at_(at) {}
  uint8_t* at() const { return at_; }

  void varint(uint64_t value) {
    while (value >= 0x80) {
      *at_++ = static_cast<uint8_t>(value | 0x80);
      value >>= 7;
    }
    *at_++ = static_cast<uint8_t>(value);
  }
  // Proto3: a field that has its default is left out.
  void number(unsigned field, uint64_t value) {
    if (value == 0) return;
    tag(field, 0);
    varint(value);
  }
  void text(unsigned field, std::string_view text) {
    if (!text.empty()) bytes(field, text);
  }
  void bytes(unsigned field, std::string_view bytes) {
    begin(field, bytes.size());
    std::memcpy(at_, bytes.data(), bytes.size());
    at_ += bytes.size();
  }
  // A field of `size` bytes that the caller writes next (a message, or the room it skips).
  void begin(unsigned field, size_t size) {
    tag(field, 2);
    varint(size);
  }
  uint8_t* skip(size_t size) {
    uint8_t* place = at_;
    at_ += size;
    return place;
  }

 private:
  void tag(unsigned field, unsigned type) { *at_++ = static_cast<uint8_t>(field << 3 | type); }
  uint8_t* at_;
};

}  // namespace fused_mlp
