// SPDX-License-Identifier: Apache-2.0
#include "codec/predict_input.hpp"

namespace fused_mlp {
namespace {

constexpr size_t kShownNames = 4;

std::string unknown_output(const char* field, const RouteEntry& entry, std::string_view name) {
  std::string expected;
  for (size_t i = 0; i < std::min(entry.heads.size(), kShownNames); ++i) {
    const bool last = i + 1 == entry.heads.size();
    expected += (i == 0 ? "" : last ? " or " : ", ") + quote_name(entry.heads[i].name);
  }
  if (entry.heads.size() > kShownNames) expected += ", ...";
  return field + (": expected " + expected) + ", got " + quote_name(name);
}

// Why a model that takes one tensor of floats cannot take these.
std::string not_one_input(const std::vector<WireTensor>& tensors) {
  if (tensors.size() == 1 && tensors[0].name == kOnlyInput) return unknown_dtype_text(tensors[0].datatype);
  std::string names;
  for (size_t i = 0; i < std::min(tensors.size(), kShownNames); ++i) {
    names += (i == 0 ? "" : ", ") + quote_name(tensors[i].name);
  }
  return "inputs: expected one tensor named 'input', got " + names;
}

}  // namespace

TensorCheck PredictInput::check(const RouteEntry& entry) {
  if (std::string problem = choose_heads(entry); !problem.empty()) return {0, std::move(problem)};
  TensorCheck check = check_tensors(entry);
  if (check.ok() && (ranking.wanted() || !ranking.ids.empty()))
    check.error = check_ranking(entry, check.rows);
  return check;
}

// After the heads and tensors. A head whose columns are ranked is answered alone.
std::string PredictInput::check_ranking(const RouteEntry& entry, uint32_t rows) {
  if (std::string problem = ranking.check(); !problem.empty()) return problem;
  rank_head = heads[0];
  if (!ranking.output.empty()) {
    size_t index = 0;
    while (index < entry.heads.size() && entry.heads[index].name != ranking.output) ++index;
    if (index == entry.heads.size()) return unknown_output("output", entry, ranking.output);
    rank_head = static_cast<uint8_t>(index);
  }
  const Head& head = entry.heads[rank_head];
  const std::string columns = quote_name(head.name) + " of " + std::to_string(head.width) + " columns";
  if (head.width > 1) {
    if (ranking.bounded && rows > 1) {
      return "min_score: expected one row for " + columns + ", got " + std::to_string(rows);
    }
    if (!ranking.ids.empty()) return "ids: expected an output of one column, got " + columns;
    heads[0] = rank_head;
    head_count = 1;
  }
  if (ranking.ids.empty()) return {};
  const auto named = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const WireTensor& tensor) { return tensor.name == ranking.ids; });
  const NamedInput* const input =
      named == tensors.end() || entry.layout == nullptr ? nullptr : &entry.layout->inputs()[named->input];
  if (input == nullptr || input->kind != InputKind::whole || input->width != 1 || named->shared) {
    return "ids: expected the name of an input with one id for each row, got " + quote_name(ranking.ids);
  }
  ids_tensor = &*named;
  return {};
}

TensorCheck PredictInput::check_tensors(const RouteEntry& entry) {
  if (entry.layout != nullptr) return check_named(*entry.layout, entry.max_request_rows);
  if (!tensors.empty()) return {0, not_one_input(tensors)};
  if (!shared.names.empty())
    return {0, "shared: expected a model with several inputs by name, got one of a single tensor"};
  if (raw) {
    if (std::string problem = deduce_shape(entry); !problem.empty()) return {0, std::move(problem)};
  }
  const RowShape row{entry.in_features, entry.input_shape};
  TensorCheck check =
      typed ? check_values(shape(), data.size() / dtype_size(dtype), row, entry.max_request_rows)
            : check_tensor(shape(), dtype, data.size(), row, entry.max_request_rows);
  leading = check.leading;
  return check;
}

// One tensor without a name is the input of a model that has one.
TensorCheck PredictInput::check_named(const InputLayout& layout, uint32_t max_request_rows) {
  if (raw)
    return {0, "body: expected JSON with inputs " + layout.names() + ", got the bytes of a tensor alone"};
  if (tensors.empty()) {
    if (dimension_count == 0 && data.empty()) return {0, "inputs: expected " + layout.names() + ", got none"};
    WireTensor& only = tensors.emplace_back();
    only.name = layout.inputs().size() == 1 ? std::string_view(layout.inputs()[0].name) : kOnlyInput;
    only.element = static_cast<Element>(dtype);
    only.data = data;
    for (const int64_t size : shape()) only.add_dimension(size);
  }
  TensorCheck check = check_inputs(layout, tensors, max_request_rows, shared);
  if (check.ok()) shared_words = fused_mlp::shared_words(layout, tensors);
  leading = check.leading;
  typed |= tensors[0].typed_field != 0;
  dtype = DType::fp32;  // of the answer
  return check;
}

std::string PredictInput::pack(const RouteEntry& entry, uint32_t rows) {
  const size_t bytes = record_bytes(entry, rows);
  records.clear();
  auto* words = reinterpret_cast<float*>(records.extend(bytes));
  data = {reinterpret_cast<const char*>(words), bytes};
  return pack_inputs(*entry.layout, tensors, rows, words);
}

void PredictInput::repeat_shared(uint32_t rows) {
  if (shared_words.empty()) return;
  const size_t width = (data.size() / sizeof(float) - shared_width()) / rows + shared_width();
  ByteBuffer whole;
  const size_t bytes = rows * width * sizeof(float);
  gather(rows, reinterpret_cast<float*>(whole.extend(bytes)));
  records.swap(whole);
  shared_words.clear();
  data = {reinterpret_cast<const char*>(records.data()), bytes};
}

void PredictInput::gather(uint32_t rows, float* dst) const noexcept {
  if (shared_words.empty()) return to_float32(dtype, data.data(), data.size() / dtype_size(dtype), dst);
  const auto* const words = reinterpret_cast<const float*>(data.data());
  const float* own = words + shared_width();
  const size_t width = (data.size() / sizeof(float) - shared_width()) / rows + shared_width();
  for (uint32_t row = 0; row < rows; ++row, dst += width) {
    const float* from = words;
    size_t at = 0;
    for (const WordRun& run : shared_words) {
      std::copy_n(own, run.first - at, dst + at);
      own += run.first - at;
      std::copy_n(from, run.last - run.first, dst + run.first);
      from += run.last - run.first;
      at = run.last;
    }
    std::copy_n(own, width - at, dst + at);
    own += width - at;
  }
}

std::string PredictInput::choose_heads(const RouteEntry& entry) {
  head_count = 0;
  if (outputs.empty()) {
    const size_t count = all_outputs ? entry.heads.size() : 1;
    for (; head_count < count; ++head_count) heads[head_count] = static_cast<uint8_t>(head_count);
    return {};
  }
  uint64_t chosen = 0;  // one that is named twice is answered once
  for (const std::string_view name : outputs) {
    size_t index = 0;
    while (index < entry.heads.size() && entry.heads[index].name != name) ++index;
    if (index == entry.heads.size()) return unknown_output(outputs_field, entry, name);
    if ((chosen >> index & 1) != 0) continue;
    chosen |= uint64_t{1} << index;
    heads[head_count++] = static_cast<uint8_t>(index);
  }
  return {};
}

std::string PredictInput::deduce_shape(const RouteEntry& entry) {
  const size_t row_bytes = entry.in_features * dtype_size(dtype);
  if (data.empty() || data.size() % row_bytes != 0) {
    return "body: expected rows of " + std::to_string(row_bytes) + " bytes, " +
           std::to_string(entry.in_features) + " numbers of " + std::string(dtype_name(dtype)) + ", got " +
           std::to_string(data.size()) + " bytes";
  }
  dimension_count = 0;
  add_dimension(static_cast<int64_t>(data.size() / row_bytes));
  add_dimension(static_cast<int64_t>(entry.in_features));
  return {};
}

std::string PredictInput::share(std::string_view names) {
  for (size_t end = 0; end != std::string_view::npos; names.remove_prefix(end + 1)) {
    end = names.find(',');
    if (shared.names.size() == kMaxInputs)
      return "shared: expected at most " + std::to_string(kMaxInputs) + " names, got more";
    shared.names.push_back(names.substr(0, end));
    if (end == std::string_view::npos) break;
  }
  return {};
}

std::string PredictInput::name_arm(const char* field, std::string_view text) {
  if (text.empty()) return {};
  ArmName named;
  if (!parse_arm(text, named)) {
    return field + (": expected " + std::string(kArmExpected)) + ", got " + quote_name(text);
  }
  if ((named.names_version() && arm.names_version()) ||
      (named.variant != Variant::unspecified && arm.variant != Variant::unspecified)) {
    return field + (": expected it in place of version and variant, got " + quote_name(text)) +
           " beside them";
  }
  arm.complete(named);
  return {};
}

std::string_view PredictInput::short_id() const {
  constexpr size_t kMost = 80;
  return cut_text(request_id, kMost);
}

std::string PredictInput::unreadable(std::string_view message) {
  request_id = {};
  return "message: expected " + std::string(message) + ", got bytes that cannot be read as one";
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < length) return false;
    uint32_t point = lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<uint8_t>(text[i + k]);
      if ((byte & 0xc0) != 0x80) return false;
      point = point << 6 | (byte & 0x3f);
    }
    const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
    if (overlong || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
    i += length;
  }
  return true;
}

}  // namespace fused_mlp
