// Requests of both APIs as they come over the wire, and their answers. Against real clients:
// tests/conformance.
#include <cstring>
#include <string>
#include <vector>

#include "check.hpp"
#include "front/codec.hpp"
#include "front/framing.hpp"
#include "front/wire.hpp"

using namespace fused_mlp;
using namespace fused_mlp::front;

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
    problem = codec.decode(reinterpret_cast<const uint8_t*>(message.data()), message.size(), ask);
  }
  std::string message;
  Ask ask;
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
  return result;
}

}  // namespace

TEST(predict_requests_are_read_in_place) {
  const Decoded d(predict_codec(), kPredict);
  CHECK_EQ(d.problem, "");
  CHECK_EQ(d.ask.model, "m");
  CHECK_EQ(d.ask.request_id, "id");
  CHECK_EQ(d.ask.data, floats({1, 2}));
  CHECK(d.ask.data.data() >= d.message.data() && d.ask.data.data() < d.message.data() + d.message.size());
  CHECK(d.ask.check(entry()).ok());
}

TEST(values_may_come_packed_unpacked_or_in_pieces) {
  const std::string one = "\x25" + floats({1}), two = "\x25" + floats({2});
  for (const std::string& values :
       {field(4, floats({1, 2})), one + two, field(4, floats({1})) + two, one + field(4, floats({2}))}) {
    const Decoded d(predict_codec(), field(1, "m") + field(3, values));
    CHECK_EQ(d.problem, "");
    CHECK(d.ask.typed);
    CHECK_EQ(d.ask.data, floats({1, 2}));
    CHECK(d.ask.check(entry()).ok());
  }
}

TEST(a_message_field_that_comes_twice_is_merged) {
  const Decoded d(predict_codec(), field(3, field(1, kShape12)) + field(3, field(3, floats({1, 2}))));
  CHECK_EQ(d.ask.data, floats({1, 2}));
  CHECK(d.ask.check(entry()).ok());
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
          const Decoded d(*codec, bytes);
          if (d.problem.empty()) (void)d.ask.check(entry());
        }
      }
    }
  }
}

TEST(infer_requests_are_read) {
  const Decoded d(infer_codec(), field(2, "3") + kInfer);
  CHECK_EQ(d.problem, "");
  CHECK_EQ(d.ask.version, 3);
  CHECK_EQ(d.ask.data, floats({1, 2}));
  CHECK(d.ask.check(entry()).ok());
}

TEST(an_infer_request_may_name_its_variant_among_its_parameters) {
  const auto parameter = [](const char* name, const char* text) {
    return field(4, field(1, name) + field(2, field(3, text)));
  };
  const Decoded d(infer_codec(), parameter("priority", "x") + parameter("variant", "unfused") + kInfer);
  CHECK_EQ(d.problem, "");
  CHECK(d.ask.variant == Variant::unfused);
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
  says(kInfer + field(6, field(1, "logits")), "got 'logits'");
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
      Ask ask;
      ask.dtype = dtype;
      ask.request_id = "some id";
      Buffer out;
      codec->encode(ask, entry(), Variant::fused, outcome, out);
      uint8_t values[16];
      from_float32(dtype, y, 2, values);
      const std::string_view wanted(reinterpret_cast<char*>(values), 2 * dtype_size(dtype));
      const std::string_view got(reinterpret_cast<const char*>(out.data()), out.size());
      CHECK(got.find(wanted) != std::string_view::npos);
      CHECK_EQ(out.size() - kPrefixBytes, size_t{out.data()[3]} << 8 | out.data()[4]);
    }
  }
}
