// SPDX-License-Identifier: Apache-2.0
// Which header blocks become calls, and how the others are rejected.
#include <doctest/doctest.h>

#include "front/call/code.hpp"
#include "front/call/method.hpp"
#include "front/grpc/grpc_head.hpp"

using namespace fused_mlp::front;

namespace {

class OneMethod final : public Method {
 public:
  bool client_streams() const override { return false; }
  bool wants_metadata() const override { return true; }
  void on_message(Call&, Message&&) override {}
};

class OneMethodApplication final : public Application {
 public:
  Method* find(std::string_view path) override { return path == "/a.B/C" ? &method : nullptr; }
  OneMethod method;
};

using Fields = std::vector<std::pair<std::string, std::string>>;

const Fields kGood = {{":method", "POST"},
                      {":scheme", "http"},
                      {":path", "/a.B/C"},
                      {":authority", "x"},
                      {"content-type", "application/grpc"},
                      {"te", "trailers"}};

Fields with(Fields fields, const std::string& name, const std::string& value) {
  for (auto& field : fields) {
    if (field.first == name) {
      field.second = value;
      return fields;
    }
  }
  fields.emplace_back(name, value);
  return fields;
}

struct Read {
  explicit Read(const Fields& fields) {
    for (const auto& [name, value] : fields) head.field(name, value, limits, application);
    rejection = head.check(limits);
  }
  Limits limits;
  OneMethodApplication application;
  GrpcRequestHead head;
  std::optional<Rejection> rejection;
};

void check_rejected(const Fields& fields, int http_status, int code) {
  const Read read(fields);
  CHECK(read.rejection.has_value());
  CHECK_EQ(read.rejection->http_status, http_status);
  CHECK_EQ(read.rejection->code, code);
}

}  // namespace

TEST_CASE("a good head is a call") {
  const Read read(kGood);
  CHECK(!read.rejection.has_value());
  CHECK_EQ(read.head.timeout_ns(), -1);
  CHECK(read.head.encoding() == Encoding::identity);
}

TEST_CASE("content types of grpc are taken and others are not") {
  for (const char* type : {"application/grpc", "application/grpc+proto", "application/grpc;x=1"}) {
    CHECK(!Read(with(kGood, "content-type", type)).rejection.has_value());
  }
  for (const char* type : {"application/json", "application/grpc-web", "application/grpc+json", ""}) {
    check_rejected(with(kGood, "content-type", type), 415, kInternal);
  }
}

TEST_CASE("heads that are no call are told why") {
  check_rejected(with(kGood, ":method", "GET"), 405, kInternal);
  check_rejected(with(kGood, "te", "gzip"), 200, kInternal);
  check_rejected(with(kGood, ":path", "/a.B/D"), 200, kUnimplemented);
  check_rejected(with(kGood, "grpc-encoding", "snappy"), 200, kUnimplemented);
  check_rejected(with(kGood, "grpc-timeout", "soon"), 200, kInvalidArgument);
  check_rejected(with(kGood, "trace-bin", "*"), 200, kInvalidArgument);
}

TEST_CASE("headers beyond the limit are refused") {
  check_rejected(with(kGood, "x-large", std::string(Limits().max_header_bytes, 'x')), 200,
                 kResourceExhausted);
}

TEST_CASE("metadata is kept without what belongs to grpc") {
  Fields fields = with(kGood, "grpc-timeout", "5S");
  fields = with(fields, "x-text", "value");
  fields = with(fields, "x-bin", "AAE=,Ag");
  Read read(fields);
  CHECK(!read.rejection.has_value());
  CHECK_EQ(read.head.timeout_ns(), 5'000'000'000);
  const Metadata expected = {{"x-text", "value"}, {"x-bin", std::string("\0\1", 2)}, {"x-bin", "\2"}};
  CHECK(read.head.metadata() == expected);
}

TEST_CASE("a head names an arm and the key of a split") {
  const Read read(with(with(kGood, "x-ab-key", "user-1"), "x-fused-mlp-variant", "unfused"));
  CHECK(read.head.ab_key() == fused_mlp::hash_key("user-1"));
  CHECK(read.head.arm().name().variant == fused_mlp::Variant::unfused);
  const Read both(with(with(kGood, "x-fused-mlp-arm", "stable"), "x-fused-mlp-variant", "fused"));
  CHECK_EQ(both.head.arm().name().label, "stable");
  CHECK(both.head.arm().name().variant == fused_mlp::Variant::fused);
  const Read bad(with(kGood, "x-fused-mlp-arm", "3/fast"));
  CHECK_EQ(bad.head.arm().problem(),
           "x-fused-mlp-arm: expected a version or a label, a variant, or both, as in 3/fused, stable or "
           "unfused, got "
           "'3/fast'");
  const Read other(with(with(kGood, "x-ab-key", ""), "x-fused-mlp-variant", "fast"));
  CHECK(!other.head.ab_key());
  CHECK(!other.rejection.has_value());  // whether it matters is for the method to say
  CHECK_EQ(other.head.arm().problem(), "x-fused-mlp-variant: expected fused or unfused, got 'fast'");
}

TEST_CASE("a recycled head remembers nothing") {
  Read read(with(with(kGood, "grpc-encoding", "gzip"), "x-ab-key", "y"));
  read.head.field("x-fused-mlp-variant", "fast", read.limits, read.application);
  read.head.reset();
  CHECK((!read.head.ab_key() && read.head.arm().problem().empty()));
  CHECK(read.head.metadata().empty());
  CHECK(read.head.check(read.limits).has_value());
}

TEST_CASE("several traceparents count as none") {
  const std::string header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  Fields fields = with(kGood, "traceparent", header);
  CHECK(Read(fields).head.trace().present());
  for (int more = 0; more < 2; ++more) {
    fields.emplace_back("traceparent", header);
    CHECK(!Read(fields).head.trace().present());
  }
  Read again(fields);
  again.head.reset();
  again.head.field("traceparent", header, again.limits, again.application);
  CHECK(again.head.trace().present());
}
