// SPDX-License-Identifier: Apache-2.0
// Reads the elements of a named tensor in order, whatever form they came in. Throws protozero::exception for
// bytes that are no such form.
#pragma once

#include <bit>
#include <cstring>
#include <protozero/exception.hpp>
#include <protozero/pbf_reader.hpp>
#include <type_traits>

#include "codec/wire_tensor.hpp"

namespace fused_mlp {

class ElementCursor {
 public:
  explicit ElementCursor(const WireTensor& tensor)
      : element_(tensor.element), field_(tensor.typed_field), piece_(tensor.data) {
    if (field_ == 0) return;
    fields_ = protozero::pbf_reader(tensor.data.data(), tensor.data.size());
    piece_ = {};
  }

  // Up to `count` numbers, converted; fewer: there are no more. Out: int64_t, of whole numbers alone, or
  // float.
  template <class Out>
  size_t read(Out* out, size_t count) {
    size_t done = 0;
    while (done < count && (!piece_.empty() || next_piece())) {
      done += field_ != 0 && is_whole(element_) ? read_varints(out + done, count - done)
                                                : read_fixed(out + done, count - done);
    }
    return done;
  }

  // False: there are no more.
  bool read(std::string_view& word) {
    if (field_ != 0) {
      if (!next_piece()) return false;
      word = piece_;
      piece_ = {};
      return true;
    }
    if (piece_.empty()) return false;
    uint32_t size = 0;
    if (piece_.size() >= sizeof size) std::memcpy(&size, piece_.data(), sizeof size);
    if (piece_.size() < sizeof size || piece_.size() - sizeof size < size)
      throw protozero::end_of_buffer_exception();
    word = piece_.substr(sizeof size, size);
    piece_.remove_prefix(sizeof size + size);
    return true;
  }

  bool at_end() { return piece_.empty() && !next_piece(); }

 private:
  // The next piece of a repeated field: packed numbers, or one number or string, which may be empty.
  bool next_piece() {
    using protozero::pbf_wire_type;
    while (field_ != 0 && fields_.next(field_)) {
      const bool delimited = fields_.wire_type() == pbf_wire_type::length_delimited;
      if (delimited) {
        const protozero::data_view bytes = fields_.get_view();
        piece_ = {bytes.data(), bytes.size()};
      } else {
        const char* const begin = fields_.data().data();
        fields_.skip();
        piece_ = {begin, static_cast<size_t>(fields_.data().data() - begin)};
      }
      if (!delimited && element_ == Element::bytes) throw protozero::invalid_tag_exception();
      if (!piece_.empty() || element_ == Element::bytes) return true;
    }
    return false;
  }

  template <class Out>
  size_t read_varints(Out* out, size_t count) {
    const char* at = piece_.data();
    const char* const end = at + piece_.size();
    size_t done = 0;
    for (; done < count && at != end; ++done) {
      const uint64_t bits = protozero::decode_varint(&at, end);
      out[done] = element_ == Element::uint64    ? static_cast<Out>(bits)
                  : element_ == Element::int64   ? static_cast<Out>(static_cast<int64_t>(bits))
                  : element_ == Element::boolean ? static_cast<Out>(bits != 0)
                  : element_ >= Element::uint8   ? static_cast<Out>(static_cast<uint32_t>(bits))
                                                 : static_cast<Out>(static_cast<int32_t>(bits));
    }
    piece_.remove_prefix(static_cast<size_t>(at - piece_.data()));
    return done;
  }

  template <class Out>
  size_t read_fixed(Out* out, size_t count) {
    const size_t size = element_size(element_);
    count = std::min(count, piece_.size() / size);
    if (count == 0) throw protozero::end_of_buffer_exception();
    const char* const bytes = piece_.data();
    piece_.remove_prefix(count * size);
    switch (element_) {
      case Element::int8:
        return convert<int8_t>(bytes, out, count);
      case Element::int16:
        return convert<int16_t>(bytes, out, count);
      case Element::int32:
        return convert<int32_t>(bytes, out, count);
      case Element::int64:
        return convert<int64_t>(bytes, out, count);
      case Element::uint8:
        return convert<uint8_t>(bytes, out, count);
      case Element::uint16:
        return convert<uint16_t>(bytes, out, count);
      case Element::uint32:
        return convert<uint32_t>(bytes, out, count);
      case Element::uint64:
        return convert<uint64_t>(bytes, out, count);
      case Element::boolean:
        for (size_t i = 0; i < count; ++i) out[i] = static_cast<Out>(bytes[i] != 0);
        return count;
      default:
        if constexpr (std::is_same_v<Out, float>) to_float32(static_cast<DType>(element_), bytes, count, out);
        return count;
    }
  }

  template <class T, class Out>
  static size_t convert(const char* bytes, Out* out, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, bytes + i * sizeof value, sizeof value);
      out[i] = static_cast<Out>(value);
    }
    return count;
  }

  const Element element_;
  const unsigned field_;
  protozero::pbf_reader fields_;
  std::string_view piece_;
};

}  // namespace fused_mlp
