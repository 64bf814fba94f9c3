// SPDX-License-Identifier: Apache-2.0
// Requests of both APIs as they come over the wire, and their answers. Against real clients:
// tests/conformance.
#include <cstring>
#include <protozero/pbf_reader.hpp>
#include <string>
#include <vector>

#include "codec/codec.hpp"
#include "codec/wire.hpp"
#include "testing/check.hpp"

using namespace fused_mlp;

namespace {

std::string field(unsigned number, std::string_view bytes) {
  std::string out(bytes_field_size(bytes.size()), '\0');
  Writer(reinterpret_cast<uint8_t*>(out.data())).bytes(number, bytes);
  return out;
}
std::string number(unsigned field_number, uint64_t value) {
  std::string out(number_field_size(value), '\0');
  Writer(reinterpret_cast<uint8_t*>(out.data())).number(field_number, value);
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

TEST(predict_requests_are_read_in_place) {
  Decoded d(predict_codec(), kPredict);
  CHECK_EQ(d.problem, "");
  CHECK_EQ(d.input.model, "m");
  CHECK_EQ(d.input.request_id, "id");
  CHECK_EQ(d.input.data, floats({1, 2}));
  CHECK(d.input.data.data() >= d.message.data() && d.input.data.data() < d.message.data() + d.message.size());
  CHECK(d.input.check(entry()).ok());
}

TEST(values_may_come_packed_unpacked_or_in_pieces) {
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

TEST(a_message_field_that_comes_twice_is_merged) {
  Decoded d(predict_codec(), field(3, field(1, kShape12)) + field(3, field(3, floats({1, 2}))));
  CHECK_EQ(d.input.data, floats({1, 2}));
  CHECK(d.input.check(entry()).ok());
}

TEST(what_a_predict_request_gets_wrong_is_named) {
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

TEST(no_part_of_a_request_crashes_the_decoders) {
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

TEST(infer_requests_are_read) {
  Decoded d(infer_codec(), field(2, "3") + kInfer);
  CHECK_EQ(d.problem, "");
  CHECK_EQ(d.input.arm.version, 3);
  CHECK_EQ(d.input.data, floats({1, 2}));
  CHECK(d.input.check(entry()).ok());
}

TEST(an_infer_request_may_name_its_variant_among_its_parameters) {
  const auto parameter = [](const char* name, const char* text) {
    return field(4, field(1, name) + field(2, field(3, text)));
  };
  const Decoded d(infer_codec(), parameter("priority", "x") + parameter("variant", "unfused") + kInfer);
  CHECK_EQ(d.problem, "");
  CHECK(d.input.arm.variant == Variant::unfused);
  const Decoded wrong(infer_codec(), parameter("variant", "fast") + kInfer);
  CHECK_EQ(wrong.problem, "parameters: expected variant fused or unfused, got 'fast'");
}

TEST(what_an_infer_request_gets_wrong_is_named) {
  const auto says = [](const std::string& message, const char* word) {
    const Decoded d(infer_codec(), message);
    CHECK(d.problem.find(word) != std::string::npos);
  };
  const std::string raw = field(7, floats({1, 2}));
  const std::string contents = field(5, field(6, floats({1, 2})));
  says(raw, "got none");
  says(field(5, field(1, "other")) + raw, "got 'other'");
  says(kInfer + field(5, kInput), "'input', 'input'");
  says(field(5, field(1, "input") + field(2, "INT8")) + raw, "INT8");
  says(field(5, kInput + contents) + raw, "both");
  says(field(5, kInput), "expected 1");
  says(kInfer + raw, "expected 1");
  says(field(5, field(1, "input") + field(2, "FP16") + contents), "raw_input_contents");
  says(field(5, kInput + field(5, field(7, "12345678"))), "fp32_contents");
  for (const char* version : {"0", "-1", "1.0", "x", "99999999999999999999", "9223372036854775808"}) {
    says(field(2, version) + kInfer, "model_version");
  }
}

TEST(answers_have_the_size_that_was_reserved_for_them) {
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

TEST(each_head_has_a_tensor_of_its_own) {
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

TEST(an_output_that_the_model_does_not_have_is_named) {
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

TEST(a_row_may_have_the_shape_of_the_model) {
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

TEST(an_id_is_cut_to_80_bytes_and_never_inside_a_character) {
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

TEST(bytes_that_cannot_be_read_leave_no_id_behind) {
  const Decoded d(predict_codec(), field(5, "\xff") + "\x0a");
  CHECK(d.problem.find("cannot be read") != std::string::npos);
  CHECK_EQ(d.input.request_id, "");
}

TEST(only_utf8_passes_as_utf8) {
  for (const char* text : {"", "plain", "\u00e9", "\u2603", "\U0001f600", "\U0010ffff"}) CHECK(is_utf8(text));
  for (const char* text : {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8",
                           "\xe2\x98", "a\xff"}) {
    CHECK(!is_utf8(text));
  }
}
