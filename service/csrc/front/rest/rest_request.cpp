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

// A piece of Reader::texts_, or of the elements in PredictInput::scattered.
struct Place {
  size_t begin = 0, size = 0;
};

// One of the inputs, as far as it was read.
struct JsonTensor {
  WireTensor tensor;
  Place name, datatype, data;
  bool has_datatype = false, has_data = false;
  int64_t binary_size = -1;
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
  void read_shared(json::value value);
  void read_input(json::value value);
  void read_shape(json::value value);
  void read_input_parameters(json::value value);
  void read_data_at(const char* place, json::object& tensor);
  void read_output(json::value value);
  void read_data(json::value value);
  void read_elements(json::value value, int depth);
  void add_element(json::value& value, json::json_type type);
  void add_number(json::value& value);
  void take_binary(std::string_view binary);
  void place_texts();

  PredictInput& input_;
  std::string texts_;  // strings of the request: the parser's own are gone with the next request
  Place id_, arm_, rank_output_, rank_ids_;
  std::vector<Place> shared_;
  std::vector<Place> outputs_;
  std::string variant_;
  std::vector<JsonTensor> tensors_;
  Element element_ = Element::fp32;         // of the data that is read
  size_t elements_ = 0;                     // of it so far
  uint64_t as_bytes_ = 0, as_numbers_ = 0;  // those of outputs_ that say so
};

void Reader::read_parameters(json::value value) {
  static constexpr std::initializer_list<std::string_view> kNames = {
      "variant"sv, "arm"sv, "binary_data_output"sv, "shared"sv, "top_k"sv, "min_score"sv,
      "output"sv,  "ids"sv};
  Ranking& ranking = input_.ranking;
  each_field(value, "parameters", kNames, [&](std::string_view key, json::value each) {
    if (key == "variant") variant_ = read_text(each, "parameters: variant");
    if (key == "arm") arm_ = keep(read_text(each, "parameters: arm"));
    if (key == "binary_data_output") input_.binary_output = read_flag(each, "parameters: binary_data_output");
    if (key == "shared") read_shared(each);
    if (key == "top_k") {
      ranking.limited = true;
      ranking.top_k = read_whole(each, "top_k: expected a whole number");
    }
    if (key == "min_score") {
      const std::string_view token = each.raw_json_token();
      ranking.bounded = true;
      if (each.get_double().get(ranking.min_score) != simdjson::SUCCESS)
        fail("min_score: expected a number, got " + shown(token));
    }
    if (key == "output") rank_output_ = keep(read_text(each, "parameters: output"));
    if (key == "ids") rank_ids_ = keep(read_text(each, "parameters: ids"));
  });
}

// true, names with commas in between, or an array of names.
void Reader::read_shared(json::value value) {
  json::json_type type{};
  check(value.type().get(type));
  if (type == json::json_type::boolean) {
    input_.shared.every_single = read_flag(value, "shared");
  } else if (type == json::json_type::array) {
    each_element(value, "shared",
                 [&](json::value name) { shared_.push_back(keep(read_text(name, "shared"))); });
  } else {
    shared_.push_back(keep(read_text(value, "shared")));
  }
}

void Reader::read_shape(json::value value) {
  each_element(value, "shape", [&](json::value size) {
    tensors_.back().tensor.add_dimension(read_whole(size, "shape: expected whole numbers"));
  });
}

void Reader::read_input_parameters(json::value value) {
  constexpr const char* kExpected = "binary_data_size: expected a whole number of bytes";
  each_field(value, "inputs: parameters", {"binary_data_size"}, [&](std::string_view, json::value each) {
    int64_t& size = tensors_.back().binary_size;
    size = read_whole(each, kExpected);
    if (size < 0) fail(kExpected + (", got " + std::to_string(size)));
  });
}

// The data may come before the datatype that says how to read it: then it is read in a second pass.
void Reader::read_input(json::value value) {
  if (tensors_.size() == kMaxInputs)
    fail("inputs: expected at most " + std::to_string(kMaxInputs) + ", got more");
  tensors_.emplace_back();
  static constexpr std::initializer_list<std::string_view> kNames = {"data"sv, "name"sv, "datatype"sv,
                                                                     "shape"sv, "parameters"sv};
  const char* later = nullptr;  // where such data is
  json::object tensor = each_field(value, "inputs", kNames, [&](std::string_view key, json::value each) {
    JsonTensor& own = tensors_.back();
    if (key == "name") own.name = keep(read_text(each, "name"));
    if (key == "datatype") {
      const std::string_view name = read_text(each, "datatype");
      own.datatype = keep(name);
      own.tensor.element = element_ = element_from_name(name);
      own.has_datatype = true;
    }
    if (key == "shape") read_shape(each);
    if (key == "parameters") read_input_parameters(each);
    if (key != "data") return;
    own.has_data = true;
    own.has_datatype ? read_data(each) : void(later = each.raw_json_token().data());
  });
  if (!tensors_.back().has_datatype) tensors_.back().tensor.element = element_ = Element::unknown;
  if (later != nullptr) read_data_at(later, tensor);
}

void Reader::read_data_at(const char* place, json::object& tensor) {
  check(tensor.reset().error());
  for (auto each : tensor) {
    json::field field;
    check(std::move(each).get(field));
    if (field.value().raw_json_token().data() == place) read_data(field.value());
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
  if (outputs_.size() >= kMaxHeads)
    fail("outputs: expected at most " + std::to_string(kMaxHeads) + ", got more");
  const uint64_t bit = uint64_t{1} << outputs_.size();
  if (binary) (*binary ? as_bytes_ : as_numbers_) |= bit;
  outputs_.push_back(name);
}

void Reader::read_data(json::value value) {
  elements_ = 0;
  const size_t begin = input_.scattered.size();
  read_elements(value, 0);
  tensors_.back().data = {begin, input_.scattered.size() - begin};
}

void Reader::read_elements(json::value value, int depth) {
  if (depth > static_cast<int>(kMaxDimensions)) fail("data: expected fewer levels of arrays");
  size_t rows = 0, row_elements = 0;
  each_element(value, "data", [&](json::value element) {
    json::json_type type{};
    check(element.type().get(type));
    if (type != json::json_type::array) return add_element(element, type);
    const size_t before = elements_;
    read_elements(element, depth + 1);
    const size_t count = elements_ - before;
    if (rows++ == 0) row_elements = count;
    if (count != row_elements) {
      fail("data: expected rows of one length, got " + std::to_string(row_elements) + " and " +
           std::to_string(count) + " values; fill up shorter ones");
    }
  });
}

// Whole numbers take eight bytes, whatever their datatype.
void Reader::add_element(json::value& value, json::json_type type) {
  ++elements_;
  ByteBuffer& out = input_.scattered;
  if (element_ == Element::bytes) {
    const std::string_view text = read_text(value, "data");
    const auto size = static_cast<uint32_t>(text.size());
    out.append(&size, sizeof size);
    return out.append(text.data(), text.size());
  }
  if (element_ == Element::boolean && type == json::json_type::boolean) {
    const uint64_t flag = read_flag(value, "data");
    return out.append(&flag, sizeof flag);
  }
  if (type != json::json_type::number) fail("data: expected numbers, got " + shown(value.raw_json_token()));
  if (!is_whole(element_)) return add_number(value);
  uint64_t number = 0;
  if (element_ == Element::uint64) {
    if (value.get_uint64().get(number) != simdjson::SUCCESS) {
      fail("data: expected whole numbers from 0, got " + shown(value.raw_json_token()));
    }
  } else {
    number = static_cast<uint64_t>(read_whole(value, "data: expected whole numbers of up to 64 bits"));
  }
  out.append(&number, sizeof number);
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
  if (element_ == Element::fp64) return input_.scattered.append(&number, sizeof number);
  auto narrow = static_cast<float>(number);
  if (must_read_again(number)) std::from_chars(token.data(), token.data() + token.size(), narrow);
  if (std::isinf(narrow)) {
    fail("data: expected numbers within FP32, got " +
         quote_name(token.substr(0, token.find_first_of(" \n\r\t"))));
  }
  input_.scattered.append(&narrow, sizeof narrow);
}

// Binary data comes behind the JSON in the order of the inputs that say so.
void Reader::take_binary(std::string_view binary) {
  uint64_t wanted = 0;
  for (const JsonTensor& each : tensors_) {
    if (each.has_data && each.binary_size >= 0) fail("inputs: expected data or binary_data_size, got both");
    const bool narrow = each.tensor.element == Element::fp16 || each.tensor.element == Element::bf16;
    if (each.has_data && narrow) {
      fail("data: expected binary data for " + std::string(element_name(each.tensor.element)) +
           ", got numbers");
    }
    const auto size = static_cast<uint64_t>(std::max<int64_t>(each.binary_size, 0));
    wanted = size > SIZE_MAX - wanted ? SIZE_MAX : wanted + size;
  }
  if (binary.size() != wanted) {
    fail("body: expected " + std::to_string(wanted) + " bytes of binary data behind the JSON, got " +
         std::to_string(binary.size()));
  }
  for (JsonTensor& each : tensors_) {
    if (!each.has_data && each.binary_size < 0)
      fail("inputs: expected data or binary_data_size, got neither");
    if (each.has_data) continue;
    each.tensor.data = binary.substr(0, static_cast<size_t>(each.binary_size));
    binary.remove_prefix(static_cast<size_t>(each.binary_size));
  }
}

// Last: what is appended to may move.
void Reader::place_texts() {
  ByteBuffer& kept = input_.scattered;
  const size_t elements = kept.size();
  kept.append(texts_.data(), texts_.size());
  const char* const begin = reinterpret_cast<const char*>(kept.data());
  const auto view = [&](Place place) { return std::string_view(begin + elements + place.begin, place.size); };
  for (JsonTensor& each : tensors_) {
    WireTensor& tensor = each.tensor;
    tensor.name = view(each.name);
    tensor.datatype = view(each.datatype);
    if (!each.has_data) continue;
    tensor.data = {begin + each.data.begin, each.data.size};
    if (is_whole(tensor.element) && tensor.element != Element::uint64) tensor.element = Element::int64;
  }
  input_.request_id = view(id_);
  input_.ranking.output = view(rank_output_);
  input_.ranking.ids = view(rank_ids_);
  for (const Place names : shared_) {
    if (std::string problem = input_.share(view(names)); !problem.empty()) fail(problem);
  }
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
  if (tensors_.empty()) fail("inputs: expected tensors by name, got none");
  input_.all_outputs = outputs_.empty();
  input_.binary_outputs = input_.binary_output ? ~as_numbers_ : as_bytes_;
  input_.outputs_field = "outputs";
  take_binary(binary);
  place_texts();
  JsonTensor& first = tensors_.front();
  if (tensors_.size() > 1 || first.tensor.name != kOnlyInput || !is_float(first.tensor.element)) {
    for (const JsonTensor& each : tensors_) input_.tensors.push_back(each.tensor);
    return;
  }
  input_.dtype = static_cast<DType>(first.tensor.element);
  input_.typed = first.has_data;
  input_.data = first.tensor.data;
  for (const int64_t size : first.tensor.shape()) input_.add_dimension(size);
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
