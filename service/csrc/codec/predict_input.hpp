// SPDX-License-Identifier: Apache-2.0
// A decoded prediction request of either API: views into the message that holds it, no copies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/byte_buffer.hpp"
#include "codec/input_layout.hpp"
#include "codec/ranking.hpp"
#include "codec/wire_tensor.hpp"
#include "engine/route/router.hpp"
#include "engine/run/tensor.hpp"

namespace fused_mlp {

struct PredictInput {
  std::string_view model, request_id;
  ArmName arm;  // as far as it names one
  // The outputs that it asks for by name, as views; the API defines what no name means.
  std::vector<std::string_view> outputs;
  const char* outputs_field = "output";  // that names them, for error texts
  bool all_outputs = false;
  int64_t dimensions[kMaxDimensions + 1];  // one more than any valid shape has; the rest is not kept
  size_t dimension_count = 0;
  size_t leading = 0;  // of which are in front of a row; known once it was checked
  DType dtype = DType::fp32;
  std::string_view data;         // raw little-endian elements, any alignment
  size_t head_bytes = SIZE_MAX;  // of the message, in front of binary tensors; SIZE_MAX: all of it
  uint64_t binary_outputs = 0;   // those of `outputs` that are wanted as bytes, where the API asks for that
  bool binary_output = false;    // so are all where none is named
  bool raw = false;              // without a shape: the size of `data` says how many rows it has
  bool typed = false;            // from a repeated field of numbers, not from raw bytes
  ByteBuffer scattered;          // holds them when they came in several pieces
  // In place of the tensor above: anything but one tensor of floats called `input`.
  std::vector<WireTensor> tensors;
  SharedInputs shared;  // of them
  ByteBuffer records;   // that they became; `data` from then on
  // The words that all rows have in common, which are in front of the others; none: rows are whole.
  std::vector<WordRun> shared_words;
  Ranking ranking;
  uint8_t rank_head = 0;                   // whose scores rank; set when the request is validated
  const WireTensor* ids_tensor = nullptr;  // whose ids are answered; the same
  // The requested outputs of the model, in the order of the answer. Set when the request is validated.
  uint8_t heads[kMaxHeads];
  size_t head_count = 0;

  std::span<const int64_t> shape() const { return {dimensions, dimension_count}; }
  void add_dimension(int64_t size) {
    if (dimension_count <= kMaxDimensions) dimensions[dimension_count++] = size;
  }
  // Whether the outputs that it names and its tensors fit the model. Quick, whatever their size.
  TensorCheck check(const RouteEntry& entry);
  // For a model with named inputs, after check: packs them into `rows` records, which take
  // `record_bytes`. Returns what is wrong with their values, or nothing.
  std::string pack(const RouteEntry& entry, uint32_t rows);
  size_t record_bytes(const RouteEntry& entry, uint32_t rows) const {
    return (size_t{rows} * (entry.in_features - shared_width()) + shared_width()) * sizeof(float);
  }
  size_t shared_width() const {
    size_t width = 0;
    for (const WordRun& run : shared_words) width += run.last - run.first;
    return width;
  }
  // Makes whole rows of records with shared words.
  void repeat_shared(uint32_t rows);
  // Rows with shared words, where they are.
  fused_mlp_group group(uint32_t rows) const noexcept {
    const auto* const words = reinterpret_cast<const float*>(data.data());
    return {words, words + shared_width(), rows};
  }
  // Writes whole rows.
  void gather(uint32_t rows, float* dst) const noexcept;
  // Of the answer, at most.
  size_t most_rows(const RouteEntry& entry, uint32_t rows) const {
    return ranking.wanted() && entry.heads[rank_head].width == 1 ? ranking.most(rows) : rows;
  }
  size_t most_columns(const Head& head) const {
    return ranking.wanted() && head.width > 1 && head_count == 1 ? ranking.most(head.width) : head.width;
  }
  // Bytes that it keeps beside the message.
  size_t own_bytes() const {
    return (scattered.empty() ? 0 : scattered.capacity()) +
           (tensors.empty() ? 0 : tensors.capacity() * sizeof(WireTensor)) +
           (shared.names.empty() ? 0 : shared.names.capacity() * sizeof(std::string_view));
  }
  // Adds shared inputs by their names, with commas in between. What is wrong; empty: nothing.
  std::string share(std::string_view names);
  // Names an arm by its text, unless it names a version or variant already. What is wrong; empty: nothing.
  std::string name_arm(const char* field, std::string_view text);
  // The caller's id, fit to be logged and sent back: at most 80 bytes, never cut inside a character.
  std::string_view short_id() const;
  // The error for bytes that are not `message` ("a fused_mlp.v1.PredictRequest"). Drops the id: it may not be
  // UTF-8.
  std::string unreadable(std::string_view message);
  void reset() {
    model = request_id = data = {};
    outputs.clear();
    outputs_field = "output";
    all_outputs = false;
    leading = head_count = 0;
    arm = {};
    dimension_count = 0;
    dtype = DType::fp32;
    head_bytes = SIZE_MAX;
    binary_outputs = 0;
    binary_output = raw = false;
    typed = false;
    scattered.reset(1u << 10);
    records.reset(1u << 10);
    if (tensors.capacity() > kKeptTensors) std::vector<WireTensor>().swap(tensors);
    tensors.clear();
    if (shared.names.capacity() > kKeptTensors) shared.names = {};
    shared.names.clear();
    shared.every_single = false;
    shared_words.clear();
    ranking = {};
    ids_tensor = nullptr;
  }

 private:
  static constexpr size_t kKeptTensors = 32;
  TensorCheck check_tensors(const RouteEntry& entry);
  TensorCheck check_named(const InputLayout& layout, uint32_t max_request_rows);
  std::string check_ranking(const RouteEntry& entry, uint32_t rows);
  std::string choose_heads(const RouteEntry& entry);
  std::string deduce_shape(const RouteEntry& entry);
};

// The numbers of a packed or unpacked repeated field, in one piece where they came in one.
class PackedNumbers {
 public:
  explicit PackedNumbers(ByteBuffer& scattered) : scattered_(scattered) {}
  // A piece that stays where it is.
  void add(std::string_view piece) {
    if (piece.empty()) return;
    if (whole_.empty()) {
      whole_ = piece;
    } else {
      add_copy(piece.data(), piece.size());
    }
  }
  void add_copy(const void* piece, size_t size) {
    if (scattered_.empty()) scattered_.append(whole_.data(), whole_.size());
    scattered_.append(piece, size);
    whole_ = {reinterpret_cast<const char*>(scattered_.data()), scattered_.size()};
  }
  std::string_view bytes() const { return whole_; }

 private:
  ByteBuffer& scattered_;
  std::string_view whole_;
};

// Strings of protobuf are UTF-8; anything else is refused and never sent back.
bool is_utf8(std::string_view text);

}  // namespace fused_mlp
