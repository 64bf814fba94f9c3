// SPDX-License-Identifier: Apache-2.0
// Requests of both APIs as they come over the wire, and their answers. Against real clients:
// tests/conformance.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <random>
#include <string>
#include <vector>

#include "codec/codec.hpp"
#include "codec/input_layout.hpp"
#include "codec/ranking.hpp"

using namespace fused_mlp;

namespace {

std::string field(unsigned number, std::string_view bytes) {
  std::string out;
  protozero::pbf_writer(out).add_bytes(number, bytes.data(), bytes.size());
  return out;
}
std::string number(unsigned field_number, uint64_t value) {
  std::string out;
  if (value != 0) protozero::pbf_writer(out).add_uint64(field_number, value);
  return out;
}
std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

struct Decoded {
  Decoded(const Codec& codec, std::string bytes) : message(std::move(bytes)) {
    problem = codec.decode(reinterpret_cast<const uint8_t*>(message.data()), message.size(), input);
  }
  std::string message;
  PredictInput input;
  std::string problem;
};

const std::string kShape12 = "\x01\x02";
const std::string kPredict =
    field(1, "m") + field(3, field(1, kShape12) + field(3, floats({1, 2}))) + field(5, "id");
const std::string kInput = field(1, "input") + field(2, "FP32") + field(3, kShape12);
const std::string kInfer = field(1, "m") + field(3, "id") + field(5, kInput) + field(7, floats({1, 2}));

RouteEntry entry() {
  RouteEntry result;
  result.model = "m";
  result.version = 3;
  result.in_features = result.out_features = 2;
  return with_heads(std::move(result));
}

// Two heads side by side, the second of one column.
RouteEntry two_heads() {
  RouteEntry result;
  result.model = "m";
  result.in_features = 2;
  result.out_features = 3;
  result.heads = {{"pi", 0, 2, false}, {"v", 2, 1, true}};
  return with_heads(std::move(result));
}

std::string encoded(const Codec& codec, Decoded& d, const RouteEntry& route, const std::vector<float>& y) {
  const TensorCheck check = d.input.check(route);
  CHECK_EQ(check.error, "");
  Outcome outcome;
  outcome.rows = check.rows;
  ByteBuffer out;
  codec.encode(d.input, route, Variant::fused, outcome, {y.data()}, out);
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}
// All fields of that number, one after the other.
std::vector<std::string> fields(const std::string& message, uint32_t number) {
  std::vector<std::string> found;
  protozero::pbf_reader reader(message);
  while (reader.next()) {
    if (reader.tag() == number && reader.wire_type() == protozero::pbf_wire_type::length_delimited) {
      found.push_back(reader.get_string());
    } else {
      reader.skip();
    }
  }
  return found;
}

}  // namespace

TEST_CASE("predict requests are read in place") {
  Decoded d(predict_codec(), kPredict);
  CHECK_EQ(d.problem, "");
  CHECK_EQ(d.input.model, "m");
  CHECK_EQ(d.input.request_id, "id");
  CHECK_EQ(d.input.data, floats({1, 2}));
  CHECK(
      (d.input.data.data() >= d.message.data() && d.input.data.data() < d.message.data() + d.message.size()));
  CHECK(d.input.check(entry()).ok());
}

TEST_CASE("values may come packed unpacked or in pieces") {
  const std::string one = "\x25" + floats({1}), two = "\x25" + floats({2});
  for (const std::string& values :
       {field(4, floats({1, 2})), one + two, field(4, floats({1})) + two, one + field(4, floats({2}))}) {
    Decoded d(predict_codec(), field(1, "m") + field(3, values));
    CHECK_EQ(d.problem, "");
    CHECK(d.input.typed);
    CHECK_EQ(d.input.data, floats({1, 2}));
    CHECK(d.input.check(entry()).ok());
  }
}

TEST_CASE("a message field that comes twice is merged") {
  Decoded d(predict_codec(), field(3, field(1, kShape12)) + field(3, field(3, floats({1, 2}))));
  CHECK_EQ(d.input.data, floats({1, 2}));
  CHECK(d.input.check(entry()).ok());
}

TEST_CASE("what a predict request gets wrong is named") {
  const auto says = [](const std::string& message, const char* word) {
    const Decoded d(predict_codec(), message);
    CHECK(d.problem.find(word) != std::string::npos);
  };
  says(number(4, 3), "variant");
  says(number(2, static_cast<uint64_t>(-1)), "version");
  says(field(3, field(3, "xxxx") + field(4, floats({1}))), "both");
  says(field(3, number(2, 9)), "dtype");
  says(field(3, number(2, 2) + field(4, floats({1}))), "FP32");
  says(field(3, field(4, "xxx")), "cannot be read");
  says(field(1, "\xff"), "cannot be read");
  says(kPredict.substr(0, kPredict.size() - 1), "cannot be read");
}

TEST_CASE("no part of a request crashes the decoders") {
  for (const Codec* codec : {&predict_codec(), &infer_codec()}) {
    for (const std::string& whole : {kPredict, kInfer}) {
      for (size_t size = 0; size <= whole.size(); ++size) {
        for (int byte = 0; byte < 256; byte += 5) {
          std::string bytes = whole.substr(0, size);
          if (size > 0) bytes.back() = static_cast<char>(byte);
          Decoded d(*codec, bytes);
          if (d.problem.empty()) (void)d.input.check(entry());
        }
      }
    }
  }
}

TEST_CASE("infer requests are read") {
  Decoded d(infer_codec(), field(2, "3") + kInfer);
  CHECK_EQ(d.problem, "");
  CHECK_EQ(d.input.arm.version, 3);
  CHECK_EQ(d.input.data, floats({1, 2}));
  CHECK(d.input.check(entry()).ok());
}

TEST_CASE("an infer request may name its variant among its parameters") {
  const auto parameter = [](const char* name, const char* text) {
    return field(4, field(1, name) + field(2, field(3, text)));
  };
  const Decoded d(infer_codec(), parameter("priority", "x") + parameter("variant", "unfused") + kInfer);
  CHECK_EQ(d.problem, "");
  CHECK(d.input.arm.variant == Variant::unfused);
  const Decoded wrong(infer_codec(), parameter("variant", "fast") + kInfer);
  CHECK_EQ(wrong.problem, "parameters: expected variant fused or unfused, got 'fast'");
}

TEST_CASE("what an infer request gets wrong is named") {
  const auto says = [](const std::string& message, const char* word) {
    const Decoded d(infer_codec(), message);
    CHECK(d.problem.find(word) != std::string::npos);
  };
  const std::string raw = field(7, floats({1, 2}));
  const std::string contents = field(5, field(6, floats({1, 2})));
  says(raw, "got none");
  says(kInfer + field(5, kInput), "expected 2 for 2 inputs, got 1");
  says(field(5, kInput + contents) + raw, "both");
  says(field(5, kInput), "expected 1");
  says(kInfer + raw, "expected 1");
  says(field(5, field(1, "input") + field(2, "FP16") + contents), "raw_input_contents");
  says(field(5, kInput + field(5, field(7, "12345678"))), "fp32_contents");
  for (const char* version : {"0", "-1", "1.0", "x", "99999999999999999999", "9223372036854775808"}) {
    says(field(2, version) + kInfer, "model_version");
  }
}

TEST_CASE("a model without named inputs takes one tensor of floats") {
  const auto says = [](const std::string& message, const char* text) {
    Decoded d(infer_codec(), message);
    CHECK_EQ(d.problem, "");
    CHECK_EQ(d.input.check(entry()).error, text);
  };
  const std::string raw = field(7, floats({1, 2}));
  says(field(5, field(1, "other")) + raw, "inputs: expected one tensor named 'input', got 'other'");
  says(kInfer + field(5, kInput) + raw, "inputs: expected one tensor named 'input', got 'input', 'input'");
  says(field(5, field(1, "input") + field(2, "INT8")) + raw,
       "dtype: expected FP32, FP16, BF16 or FP64, got 'INT8'");
}

// An id of two tables of three rows, in any order with a word and floats.
RouteEntry ranker() {
  auto words = std::make_shared<const Vocabulary>(std::vector<std::string>{"a", "b"}, Vocabulary::kRefuse);
  std::vector<NamedInput> inputs;
  inputs.push_back({"ids", InputKind::whole, {2}, true, nullptr, {{3}}});
  inputs.push_back({"word", InputKind::strings, {}, false, words, {{2}}});
  inputs.push_back({"x", InputKind::floats, {}, false, nullptr, {{}}});
  RouteEntry result;
  result.model = "m";
  result.in_features = 4;
  result.out_features = 1;
  result.layout = std::make_shared<const InputLayout>(std::move(inputs));
  return with_heads(std::move(result));
}

const std::string kRanker = field(5, field(1, "x") + field(2, "FP32") + field(3, "\x01")) +
                            field(5, field(1, "ids") + field(2, "UINT8") + field(3, "\x01\x01")) +
                            field(5, field(1, "word") + field(2, "BYTES") + field(3, "\x01")) +
                            field(7, floats({0.5f})) + field(7, "\x02") +
                            field(7, std::string("\x01\0\0\0b", 5));

TEST_CASE("named inputs become one record") {
  Decoded d(infer_codec(), kRanker);
  CHECK_EQ(d.problem, "");
  const TensorCheck check = d.input.check(ranker());
  CHECK_EQ(check.error, "");
  CHECK_EQ(check.rows, 1u);
  CHECK_EQ(d.input.pack(ranker(), check.rows), "");
  int32_t words[4];
  CHECK_EQ(d.input.data.size(), sizeof words);
  std::memcpy(words, d.input.data.data(), sizeof words);
  CHECK_EQ(words[0], 2);
  CHECK_EQ(words[1], kAbsent);
  CHECK_EQ(words[2], 1);
  float x;
  std::memcpy(&x, words + 3, sizeof x);
  CHECK_EQ(x, 0.5f);
}

TEST_CASE("no part of a request with named inputs crashes the decoders") {
  const RouteEntry route = ranker();
  for (size_t size = 0; size <= kRanker.size(); ++size) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string bytes = kRanker;
      if (size < bytes.size()) bytes[size] = static_cast<char>(byte);
      if (byte % 16 == 0) bytes.resize(size);
      Decoded d(infer_codec(), bytes);
      if (!d.problem.empty()) continue;
      const TensorCheck check = d.input.check(route);
      if (check.ok()) (void)d.input.pack(route, check.rows);
    }
  }
}

TEST_CASE("answers have the size that was reserved for them") {
  const float y[] = {1.5f, -2};
  Outcome outcome;
  outcome.y = y;
  outcome.rows = 1;
  outcome.batch_rows = 300;
  outcome.queue_ns = 1'000'000'000'000;
  outcome.strategy = "gemv";
  for (const Codec* codec : {&predict_codec(), &infer_codec(), &infer_stream_codec()}) {
    for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16, DType::fp64}) {
      PredictInput input;
      input.dtype = dtype;
      input.request_id = "some id";
      ByteBuffer out;
      out.append("before", 6);
      const std::string data(2 * dtype_size(dtype), '\0');
      input.data = data;
      input.add_dimension(2);
      CHECK(input.check(entry()).ok());
      codec->encode(input, entry(), Variant::fused, outcome, {y}, out);
      // Every byte was written: the whole is readable as a message to its end.
      protozero::pbf_reader reader(reinterpret_cast<const char*>(out.data()) + 6, out.size() - 6);
      bool found = false;
      while (reader.next()) reader.skip(), found = true;
      CHECK(found);
    }
  }
}

TEST_CASE("each head has a tensor of its own") {
  const std::vector<float> y = {1, 2, 3, 4, 5, 6};  // two rows of pi, pi, v
  const std::string input = field(1, "input") + field(2, "FP32") + field(3, "\x02\x02");
  const std::string infer = field(1, "m") + field(5, input) + field(7, floats({1, 2, 3, 4}));
  const RouteEntry route = two_heads();
  const auto answer = [&](const std::string& names) {
    Decoded d(infer_codec(), infer + names);
    return fields(encoded(infer_codec(), d, route, y), 6);
  };
  const std::string pi = floats({1, 2, 4, 5}), v = floats({3, 6});
  CHECK_EQ(answer(""), (std::vector{pi, v}));
  CHECK_EQ(answer(field(6, field(1, "v"))), std::vector{v});
  CHECK_EQ(answer(field(6, field(1, "v")) + field(6, field(1, "pi"))), (std::vector{v, pi}));
  CHECK_EQ(answer(field(6, field(1, "v")) + field(6, field(1, "v"))), std::vector{v});

  const std::string predict = field(1, "m") + field(3, field(1, "\x02\x02") + field(3, floats({1, 2, 3, 4})));
  Decoded first(predict_codec(), predict), named(predict_codec(), predict + field(6, "v")),
      all(predict_codec(), predict + field(6, "*"));
  const std::string of_first = encoded(predict_codec(), first, route, y);
  CHECK_EQ(fields(fields(of_first, 1)[0], 3)[0], pi);
  CHECK_EQ(fields(of_first, 9), std::vector<std::string>{"pi"});
  const std::string of_named = encoded(predict_codec(), named, route, y);
  CHECK_EQ(fields(fields(of_named, 1)[0], 3)[0], v);
  CHECK_EQ(fields(of_named, 9), std::vector<std::string>{"v"});
  const std::string other = fields(encoded(predict_codec(), all, route, y), 11)[0];
  CHECK_EQ(fields(other, 1), std::vector<std::string>{"v"});
  CHECK_EQ(fields(fields(other, 2)[0], 3)[0], v);
}

TEST_CASE("an output that the model does not have is named") {
  Decoded infer(infer_codec(), kInfer + field(6, field(1, "logits")));
  CHECK_EQ(infer.input.check(two_heads()).error, "outputs: expected 'pi' or 'v', got 'logits'");
  CHECK_EQ(infer.input.check(entry()).error, "outputs: expected 'output', got 'logits'");
  // The other API next, in the same object, as the native front recycles them.
  infer.input.reset();
  const std::string predict = kPredict + field(6, "logits");
  CHECK_EQ(
      predict_codec().decode(reinterpret_cast<const uint8_t*>(predict.data()), predict.size(), infer.input),
      "");
  CHECK_EQ(infer.input.check(two_heads()).error, "output: expected 'pi' or 'v', got 'logits'");
}

TEST_CASE("a row may have the shape of the model") {
  RouteEntry images = entry();
  images.input_shape = {1, 2};
  const std::string data = field(3, floats({1, 2, 3, 4, 5, 6}));
  const auto answer = [&](const char* shape, size_t rank) {
    Decoded d(predict_codec(), field(3, field(1, std::string_view(shape, rank)) + data));
    return fields(fields(encoded(predict_codec(), d, images, {1, 2, 3, 4, 5, 6}), 1)[0], 1)[0];
  };
  CHECK_EQ(answer("\x03\x02", 2), "\x03\x02");
  CHECK_EQ(answer("\x03\x01\x02", 3), "\x03\x02");
  CHECK_EQ(answer("\x03\x01\x01\x02", 4), "\x03\x01\x02");  // dimensions in front are kept
  Decoded wrong(predict_codec(), field(3, field(1, "\x03\x02\x01") + data));
  CHECK_EQ(wrong.input.check(images).error, "shape: expected [rows, 1, 2] or [rows, 2], got [3, 2, 1]");
}

TEST_CASE("an id is cut to 80 bytes and never inside a character") {
  const std::string ascii(100, 'x'), accents = "x" + std::string(79, 'y') + "\xc3\xa9";
  PredictInput input;
  for (const auto& [id, size] : {std::pair{ascii, size_t{80}}, {ascii.substr(0, 80), 80}, {accents, 80}}) {
    input.request_id = id;
    CHECK_EQ(input.short_id(), std::string_view(id).substr(0, size));
  }
  const std::string wide = std::string(79, 'y') + "\xc3\xa9";
  input.request_id = wide;
  CHECK_EQ(input.short_id(), std::string(79, 'y'));
}

TEST_CASE("bytes that cannot be read leave no id behind") {
  const Decoded d(predict_codec(), field(5, "\xff") + "\x0a");
  CHECK(d.problem.find("cannot be read") != std::string::npos);
  CHECK_EQ(d.input.request_id, "");
}

TEST_CASE("only utf8 passes as utf8") {
  for (const char* text : {"", "plain", "\u00e9", "\u2603", "\U0001f600", "\U0010ffff"}) CHECK(is_utf8(text));
  for (const char* text : {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8",
                           "\xe2\x98", "a\xff"}) {
    CHECK(!is_utf8(text));
  }
}

// By sorting all of them.
std::vector<int64_t> best_of(const Ranking& ranking, const std::vector<float>& scores) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int64_t i) { return scores[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return std::isnan(at(b)) ? !std::isnan(at(a)) : at(a) > at(b);
  });
  if (ranking.bounded) std::erase_if(order, [&](int64_t i) { return !(at(i) >= ranking.min_score); });
  if (ranking.limited) order.resize(std::min(order.size(), static_cast<size_t>(ranking.top_k)));
  return order;
}

TEST_CASE("the best scores are those of a stable sort with nan last") {
  std::mt19937 random(7);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float special[] = {NAN, kInfinity, -kInfinity, 0.0f, -0.0f, 1e-45f, -1e-45f, -NAN};
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> scores(1 + random() % 300);
    for (float& score : scores) {
      const uint32_t kind = random() % 8;
      score = kind == 0 ? special[random() % 8] : static_cast<float>(random() % 50) - 25.0f;
    }
    Ranking ranking;
    ranking.limited = random() % 4 != 0;
    ranking.top_k = 1 + random() % 40;
    ranking.bounded = random() % 3 == 0 || !ranking.limited;
    ranking.min_score = static_cast<float>(random() % 60) - 30.0f;
    std::vector<int64_t> positions;
    append_best(ranking, scores.data(), scores.size(), 1, positions);
    CHECK(positions == best_of(ranking, scores));
    std::vector<float> apart(scores.size() * 3);
    for (size_t i = 0; i < scores.size(); ++i) apart[3 * i] = scores[i];
    std::vector<int64_t> same;
    append_best(ranking, apart.data(), scores.size(), 3, same);
    CHECK(same == positions);
  }
}

// The input `u` of one float and `c` of two.
std::string shared_request(const std::string& u, size_t u_rows, const std::string& rest = {}) {
  const auto named = [](const char* name, const std::string& tensor) {
    return field(8, field(1, name) + field(2, tensor));
  };
  const auto shape = [](size_t rows, size_t columns) {
    return field(1, std::string{static_cast<char>(rows), static_cast<char>(columns)});
  };
  return field(1, "m") + named("u", shape(u_rows, 1) + field(3, u)) +
         named("c", shape(3, 2) + field(3, floats({1, 2, 3, 4, 5, 6}))) + field(9, "u") + rest;
}

RouteEntry two_inputs() {
  RouteEntry result;
  result.model = "m";
  result.in_features = 3;
  result.out_features = 1;
  std::vector<NamedInput> inputs(2);
  inputs[0].name = "c";
  inputs[0].shape = {2};
  inputs[1].name = "u";
  inputs[1].shape = {1};
  for (NamedInput& input : inputs) input.fields.emplace_back();
  result.layout = std::make_shared<const InputLayout>(std::move(inputs));
  return with_heads(std::move(result));
}

TEST_CASE("shared inputs are packed once and repeated when rows are gathered") {
  const RouteEntry model = two_inputs();
  Decoded d(predict_codec(), shared_request(floats({9}), 1));
  CHECK_EQ(d.problem, "");
  const TensorCheck check = d.input.check(model);
  CHECK_EQ(check.error, "");
  CHECK_EQ(check.rows, 3u);
  CHECK_EQ(d.input.record_bytes(model, 3), 7 * sizeof(float));
  CHECK_EQ(d.input.pack(model, 3), "");
  const fused_mlp_group group = d.input.group(3);
  CHECK(std::vector<float>(group.shared, group.shared + 1) == (std::vector<float>{9}));
  CHECK(std::vector<float>(group.own, group.own + 6) == (std::vector<float>{1, 2, 3, 4, 5, 6}));
  std::vector<float> rows(9);
  d.input.gather(3, rows.data());
  CHECK(rows == std::vector<float>{1, 2, 9, 3, 4, 9, 5, 6, 9});
  d.input.repeat_shared(3);
  CHECK_EQ(d.input.shared_words.size(), 0u);
  CHECK_EQ(d.input.data, floats(rows));
  Decoded wrong(predict_codec(), shared_request(floats({9, 8}), 2));
  CHECK_EQ(wrong.input.check(model).error,
           "input 'u': expected 1 row of a shared input, got 2 beside 3 of 'c'");
}

TEST_CASE("the best rows are answered with their positions") {
  const RouteEntry model = two_inputs();
  Decoded d(predict_codec(), shared_request(floats({9}), 1, number(10, 2)));
  CHECK_EQ(d.input.check(model).error, "");
  const std::string answer = encoded(predict_codec(), d, model, {0.5f, NAN, 2.0f});
  const std::string tensor = fields(answer, 1)[0];
  CHECK_EQ(fields(tensor, 1)[0], std::string("\x02\x01"));
  CHECK_EQ(fields(tensor, 3)[0], floats({2.0f, 0.5f}));
  CHECK_EQ(fields(answer, 12)[0], std::string("\x02\0", 2));
}
