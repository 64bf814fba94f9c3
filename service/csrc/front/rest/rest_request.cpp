// SPDX-License-Identifier: Apache-2.0
// Reads inference requests: JSON, whose numbers go straight from the text into the tensor, perhaps with the
// tensor's bytes behind it, or those bytes alone.
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "front/rest/json_reader.hpp"
#include "front/rest/rest_codec.hpp"

namespace fused_mlp::front {
namespace {

using std::literals::operator""sv;

constexpr size_t kKeptParserBytes = 64u << 10;  // documents up to this size are read without allocating

// A piece of Reader::texts_.
struct Place {
  size_t begin = 0, size = 0;
};

class Reader {
 public:
  explicit Reader(PredictInput& input) : input_(input) {}

  void read(json::value body, std::string_view binary);

 private:
  Place keep(std::string_view text) {
    texts_.append(text);
    return {texts_.size() - text.size(), text.size()};
  }
  void read_parameters(json::value value);
  void read_input(json::value value);
  void read_shape(json::value value);
  void read_input_parameters(json::value value);
  void read_data_at(const char* place, json::object& tensor);
  void read_output(json::value value);
  void read_data(json::value value, int depth);
  void add_number(json::value& value);
  void take_binary(std::string_view binary);
  void place_texts();

  PredictInput& input_;
  std::string texts_;  // strings of the request: the parser's own are gone with the next request
  Place id_, arm_;
  std::vector<Place> outputs_;
  std::string variant_, dtype_, name_;
  size_t inputs_ = 0, numbers_ = 0;
  uint64_t as_bytes_ = 0, as_numbers_ = 0;  // those of outputs_ that say so
  bool has_data_ = false;
  int64_t binary_size_ = -1;
};

void Reader::read_parameters(json::value value) {
  static constexpr std::initializer_list<std::string_view> kNames = {"variant"sv, "arm"sv,
                                                                     "binary_data_output"sv};
  each_field(value, "parameters", kNames, [&](std::string_view key, json::value each) {
    if (key == "variant") variant_ = read_text(each, "parameters: variant");
    if (key == "arm") arm_ = keep(read_text(each, "parameters: arm"));
    if (key == "binary_data_output") input_.binary_output = read_flag(each, "parameters: binary_data_output");
  });
}

void Reader::read_shape(json::value value) {
  each_element(value, "shape", [&](json::value size) {
    input_.add_dimension(read_whole(size, "shape: expected whole numbers"));
  });
}

void Reader::read_input_parameters(json::value value) {
  constexpr const char* kExpected = "binary_data_size: expected a whole number of bytes";
  each_field(value, "inputs: parameters", {"binary_data_size"}, [&](std::string_view, json::value each) {
    binary_size_ = read_whole(each, kExpected);
    if (binary_size_ < 0) fail(kExpected + (", got " + std::to_string(binary_size_)));
  });
}

// The data may come before the datatype that says how to read it: then it is read in a second pass.
void Reader::read_input(json::value value) {
  if (++inputs_ > 1) return pass_over(value);
  static constexpr std::initializer_list<std::string_view> kNames = {"data"sv, "name"sv, "datatype"sv,
                                                                     "shape"sv, "parameters"sv};
  const char* later = nullptr;  // where such data is
  json::object tensor = each_field(value, "inputs", kNames, [&](std::string_view key, json::value each) {
    if (key == "name") name_ = read_text(each, "name");
    if (key == "datatype") dtype_ = read_text(each, "datatype");
    if (key == "shape") read_shape(each);
    if (key == "parameters") read_input_parameters(each);
    if (key != "data") return;
    has_data_ = true;
    dtype_.empty() ? void(later = each.raw_json_token().data()) : read_data(each, 0);
  });
  if (later != nullptr) read_data_at(later, tensor);
}

void Reader::read_data_at(const char* place, json::object& tensor) {
  check(tensor.reset().error());
  for (auto each : tensor) {
    json::field field;
    check(std::move(each).get(field));
    if (field.value().raw_json_token().data() == place) read_data(field.value(), 0);
  }
}

void Reader::read_output(json::value value) {
  Place name;
  std::optional<bool> binary;
  each_field(value, "outputs", {"name", "parameters"}, [&](std::string_view key, json::value each) {
    if (key == "name") return void(name = keep(read_text(each, "outputs: name")));
    each_field(each, "outputs: parameters", {"binary_data"},
               [&](std::string_view, json::value flag) { binary = read_flag(flag, "outputs: binary_data"); });
  });
  if (outputs_.size() >= kMostHeads)
    fail("outputs: expected at most " + std::to_string(kMostHeads) + ", got more");
  const uint64_t bit = uint64_t{1} << outputs_.size();
  if (binary) (*binary ? as_bytes_ : as_numbers_) |= bit;
  outputs_.push_back(name);
}

void Reader::read_data(json::value value, int depth) {
  if (depth > static_cast<int>(kMostDimensions)) fail("data: expected fewer levels of arrays");
  each_element(value, "data", [&](json::value element) {
    json::json_type type{};
    check(element.type().get(type));
    if (type == json::json_type::array) return read_data(element, depth + 1);
    if (type != json::json_type::number) {
      fail("data: expected numbers, got " + shown(element.raw_json_token()));
    }
    add_number(element);
  });
}

// The text is rounded once: a double that lies half way between two floats may have been rounded to there, so
// that the text decides, as it does among subnormal floats.
bool must_read_again(double number) {
  constexpr uint64_t kDropped = (uint64_t{1} << 29) - 1, kHalf = uint64_t{1} << 28;
  const auto bits = std::bit_cast<uint64_t>(number);
  return (bits & kDropped) == kHalf || (std::abs(number) < 0x1p-126 && number != 0);
}

void Reader::add_number(json::value& value) {
  const std::string_view token = value.raw_json_token();
  double number = 0;
  if (value.get_double().get(number) != simdjson::SUCCESS) {
    fail("data: expected numbers, got " + quote_name(token.substr(0, token.find_first_of(" \n\r\t"))));
  }
  ++numbers_;
  if (dtype_ == "FP64") return input_.scattered.append(&number, sizeof number);
  auto narrow = static_cast<float>(number);
  if (must_read_again(number)) std::from_chars(token.data(), token.data() + token.size(), narrow);
  if (std::isinf(narrow)) {
    fail("data: expected numbers within FP32, got " +
         quote_name(token.substr(0, token.find_first_of(" \n\r\t"))));
  }
  input_.scattered.append(&narrow, sizeof narrow);
}

void Reader::take_binary(std::string_view binary) {
  if (has_data_ && binary_size_ >= 0) fail("inputs: expected data or binary_data_size, got both");
  if (has_data_ && input_.dtype != DType::fp32 && input_.dtype != DType::fp64) {
    fail("data: expected binary data for " + std::string(dtype_name(input_.dtype)) + ", got numbers");
  }
  const auto wanted = static_cast<uint64_t>(std::max<int64_t>(binary_size_, 0));
  if (binary.size() != wanted) {
    fail("body: expected " + std::to_string(wanted) + " bytes of binary data behind the JSON, got " +
         std::to_string(binary.size()));
  }
  if (!has_data_ && binary_size_ < 0) fail("inputs: expected data or binary_data_size, got neither");
  input_.typed = has_data_;
  if (!has_data_) input_.data = binary;
}

// Last: what is appended to may move.
void Reader::place_texts() {
  ByteBuffer& kept = input_.scattered;
  const size_t numbers = kept.size();
  kept.append(texts_.data(), texts_.size());
  const char* const begin = reinterpret_cast<const char*>(kept.data());
  const auto view = [&](Place place) { return std::string_view(begin + numbers + place.begin, place.size); };
  if (has_data_) input_.data = {begin, numbers};
  input_.request_id = view(id_);
  for (const Place place : outputs_) input_.outputs.push_back(view(place));
  if (std::string problem = input_.name_arm("parameters: arm", view(arm_)); !problem.empty()) fail(problem);
}

void Reader::read(json::value body, std::string_view binary) {
  static constexpr std::initializer_list<std::string_view> kNames = {"inputs"sv, "outputs"sv, "parameters"sv,
                                                                     "id"sv};
  each_field(body, "body", kNames, [&](std::string_view key, json::value each) {
    if (key == "inputs") each_element(each, "inputs", [&](json::value tensor) { read_input(tensor); });
    if (key == "outputs") each_element(each, "outputs", [&](json::value output) { read_output(output); });
    if (key == "parameters") read_parameters(each);
    if (key == "id") id_ = keep(read_text(each, "id"));
  });
  input_.arm.variant = variant_of(variant_);
  if (!variant_.empty() && input_.arm.variant == Variant::unspecified) {
    fail("parameters: expected variant fused or unfused, got " + quote_name(variant_));
  }
  if (inputs_ != 1 || name_ != "input") {
    fail("inputs: expected one tensor named 'input', got " + (inputs_ == 1   ? quote_name(name_)
                                                              : inputs_ == 0 ? "none"
                                                                             : std::to_string(inputs_)));
  }
  const auto dtype = dtype_from_name(dtype_);
  if (!dtype) fail(unknown_dtype_text(dtype_));
  input_.dtype = *dtype;
  input_.all_outputs = outputs_.empty();
  input_.binary_outputs = input_.binary_output ? ~as_numbers_ : as_bytes_;
  input_.outputs_field = "outputs";
  take_binary(binary);
  place_texts();
}

// simdjson reads beyond the end of its text: it gets a copy with room behind it.
struct Scratch {
  ByteBuffer text;
  json::parser parser;
};

// As Triton has it: nothing but the tensor, of the model's own dtype, and all outputs as bytes.
void take_raw_request(const uint8_t* data, size_t size, PredictInput& input) {
  input.data = {reinterpret_cast<const char*>(data), size};
  input.raw = input.all_outputs = input.binary_output = true;
}

}  // namespace

std::string read_rest_request(const uint8_t* data, size_t size, PredictInput& input) {
  if (input.head_bytes == 0) return take_raw_request(data, size, input), std::string();
  const size_t json_bytes = std::min(input.head_bytes, size);
  if (input.head_bytes != SIZE_MAX && input.head_bytes > size) {
    return "inference-header-content-length: expected at most the body's " + std::to_string(size) +
           " bytes, got " + std::to_string(input.head_bytes);
  }
  thread_local std::unique_ptr<Scratch> scratch;
  if (scratch == nullptr) scratch = std::make_unique<Scratch>();
  try {
    scratch->text.clear();
    uint8_t* text = scratch->text.extend(json_bytes + simdjson::SIMDJSON_PADDING);
    std::memcpy(text, data, json_bytes);
    std::memset(text + json_bytes, ' ', simdjson::SIMDJSON_PADDING);
    json::document document;
    check(scratch->parser.iterate(text, json_bytes, json_bytes + simdjson::SIMDJSON_PADDING).get(document));
    json::value body;
    const simdjson::error_code error = document.get_value().get(body);
    if (error == simdjson::SCALAR_DOCUMENT_AS_VALUE) fail("body: expected a JSON object, got a single value");
    check(error);
    Reader(input).read(body, {reinterpret_cast<const char*>(data) + json_bytes, size - json_bytes});
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS)
      fail("body: expected one JSON object, got more behind it");
  } catch (JsonProblem& problem) {
    input.request_id = {};
    scratch.reset();
    return std::move(problem.text);
  }
  if (json_bytes > kKeptParserBytes) scratch.reset();
  return {};
}

}  // namespace fused_mlp::front
