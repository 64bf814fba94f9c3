// SPDX-License-Identifier: Apache-2.0
// Validation and conversion of wire tensors.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/run/tensor.hpp"

namespace fused_mlp::test {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TensorCheck tensor(std::vector<std::int64_t> shape, std::uint64_t bytes, DType dtype = DType::fp32) {
  return check_tensor(shape, dtype, bytes, RowShape{64}, 100);
}

TEST_CASE("valid shapes give their rows") {
  CHECK_EQ(tensor({3, 64}, 3 * 64 * 4).rows, 3u);
  CHECK_EQ(tensor({64}, 64 * 4).rows, 1u);
  CHECK_EQ(tensor({100, 64}, 100 * 64 * 8, DType::fp64).rows, 100u);
  CHECK_EQ(tensor({1, 64}, 64 * 2, DType::bf16).rows, 1u);
  CHECK_EQ(check_values({}, 64, RowShape{64}, 100).rows, 1u);
}

TEST_CASE("invalid shapes get a precise line") {
  CHECK_EQ(tensor({3, 64}, 767).error, "data: expected 768 bytes for [3, 64] FP32, got 767");
  CHECK_EQ(tensor({3, 63}, 756).error, "shape: expected 64 columns, got 63 in [3, 63]");
  CHECK_EQ(tensor({0, 64}, 0).error, "shape: expected at least 1 row, got 0 in [0, 64]");
  CHECK_EQ(tensor({-1, 64}, 256).error, "shape: expected sizes of at least 1, got [-1, 64]");
  CHECK_EQ(tensor({}, 256).error, "shape: expected [rows, 64] or [64], got []");
  CHECK_EQ(tensor({1, 65, 1}, 260).error, "shape: expected [rows, 64] or [64], got [1, 65, 1]");
  CHECK(!tensor({1, 1, 1, 1, 1, 1, 1, 1, 1, 64}, 256).ok());
  CHECK_EQ(tensor({101, 64}, 101 * 256).error,
           "shape: expected at most 100 rows per request, got 101; send them in parts");
  CHECK(!tensor(std::vector<std::int64_t>(1000, 1), 4).ok());
  CHECK(tensor(std::vector<std::int64_t>(1000, 1), 4).error.size() < 100);
  CHECK_EQ(check_values({}, 63, RowShape{64}, 100).error, "values: expected 64 numbers for one row, got 63");
  CHECK_EQ(check_values(std::vector<std::int64_t>{2, 64}, 127, RowShape{64}, 100).error,
           "values: expected 128 numbers for [2, 64], got 127");
}

TEST_CASE("shapes that overflow are refused") {
  CHECK(!tensor({kHuge, 64}, 0).ok());
  CHECK(!tensor({kHuge, kHuge}, 1).ok());
  CHECK(!tensor({std::numeric_limits<std::int64_t>::min(), 64}, 0).ok());
  CHECK(!tensor({(1LL << 58) + 1, 64}, 256).ok());  // 2^58 rows of 64 are 0 modulo 2^64
  CHECK(!tensor({1LL << 32, 1LL << 32, 64}, 256).ok());
  CHECK(!tensor({kHuge, kHuge, kHuge, 64}, 256).ok());
  CHECK(!tensor({kHuge, 0, 64}, 0).ok());
}

TEST_CASE("dimensions in front of a row are rows") {
  const TensorCheck check = tensor({2, 3, 64}, 6 * 256);
  CHECK_EQ(check.rows, 6u);
  CHECK_EQ(check.leading, 2u);
  CHECK_EQ(tensor({64}, 256).leading, 0u);
  CHECK_EQ(tensor({20, 6, 64}, 120 * 256).error,
           "shape: expected at most 100 rows per request, got 120; send them in parts");
}

TEST_CASE("a row may have the shape of its model") {
  const std::vector<std::int64_t> own = {1, 8, 8};
  const RowShape row{64, own};
  const auto check = [&](std::vector<std::int64_t> shape, std::uint64_t rows) {
    return check_tensor(shape, DType::fp32, rows * 256, row, 100);
  };
  CHECK_EQ(check({3, 1, 8, 8}, 3).rows, 3u);
  CHECK_EQ(check({3, 64}, 3).rows, 3u);
  CHECK_EQ(check({1, 8, 8}, 1).rows, 1u);
  CHECK_EQ(check({1, 8, 8}, 1).leading, 0u);
  CHECK_EQ(check({2, 3, 1, 8, 8}, 6).rows, 6u);
  CHECK_EQ(check({3, 8, 8}, 3).error, "shape: expected [rows, 1, 8, 8] or [rows, 64], got [3, 8, 8]");
  CHECK_EQ(check({3, 63}, 3).error, "shape: expected [rows, 1, 8, 8] or [rows, 64], got [3, 63]");
}

TEST_CASE("a row of a model without a shape may have any of its size") {
  CHECK_EQ(tensor({3, 8, 8}, 3 * 256).rows, 3u);
  CHECK_EQ(tensor({3, 8, 8}, 3 * 256).leading, 1u);
  CHECK_EQ(tensor({2, 3, 1, 8, 8}, 6 * 256).leading, 3u);
  CHECK_EQ(tensor({8, 8}, 256).error, "shape: expected 64 columns, got 8 in [8, 8]");  // no dimension of rows
  CHECK_EQ(tensor({3, 8, 9}, 3 * 288).error, "shape: expected [rows, 64] or [64], got [3, 8, 9]");
  CHECK_EQ(tensor({3, 8, 8}, 3 * 256 - 1).error, "data: expected 768 bytes for [3, 8, 8] FP32, got 767");
  CHECK_EQ(tensor({0, 8, 8}, 0).error, "shape: expected at least 1 row, got 0 in [0, 8, 8]");
  CHECK(!tensor({3, 0, 8}, 0).ok());
  CHECK(!tensor({1, 1LL << 32, 1LL << 32}, 256).ok());
  CHECK(!tensor({1, kHuge, 2}, 256).ok());
}

// The value of a half by its definition, not by the code under test.
double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::nan("") : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

TEST_CASE("every half widens exactly and survives the round trip") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    float wide = 0;
    to_float32(DType::fp16, &half, 1, &wide);
    const double expected = half_value(half);
    std::uint16_t back = 0;
    from_float32(DType::fp16, &wide, 1, &back);
    if (std::isnan(expected)) {
      CHECK(std::isnan(wide));
      CHECK(std::isnan(half_value(back)));
    } else {
      CHECK_EQ(static_cast<double>(wide), expected);
      CHECK_EQ(std::signbit(wide), std::signbit(expected));
      CHECK_EQ(back, half);
    }
  }
}

TEST_CASE("narrowing to half rounds to nearest even everywhere") {
  // Around every boundary between two neighbouring finite halves (the last one counts as 65536).
  for (std::uint32_t low = 0; low < 0x7C00; ++low) {
    const double below = half_value(static_cast<std::uint16_t>(low));
    const double above = low == 0x7BFF ? 65536.0 : half_value(static_cast<std::uint16_t>(low + 1));
    const auto middle = static_cast<float>((below + above) / 2);  // exact: one more bit than a half has
    const std::uint32_t even = low % 2 == 0 ? low : low + 1;
    const float values[] = {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY)};
    const std::uint32_t expected[] = {low, even, low + 1};
    for (int i = 0; i < 3; ++i) {
      for (const bool negative : {false, true}) {
        const float value = negative ? -values[i] : values[i];
        std::uint16_t half = 0;
        from_float32(DType::fp16, &value, 1, &half);
        CHECK_EQ(half, expected[i] | (negative ? 0x8000u : 0u));
      }
    }
  }
}

TEST_CASE("bfloat narrowing rounds to nearest even and keeps nan") {
  const auto narrow = [](std::uint32_t bits) {
    const auto value = std::bit_cast<float>(bits);
    std::uint16_t result = 0;
    from_float32(DType::bf16, &value, 1, &result);
    return result;
  };
  for (std::uint32_t top = 0; top < 0x7F80; ++top) {
    const std::uint32_t bits = top << 16;
    const std::uint32_t even = top + top % 2;
    CHECK_EQ(narrow(bits), top);
    CHECK_EQ(narrow(bits + 0x7FFF), top);
    CHECK_EQ(narrow(bits + 0x8000), even);
    CHECK_EQ(narrow(bits + 0x8001), top + 1);
    CHECK_EQ(narrow(bits | 0x80008001u), 0x8000u | (top + 1));
  }
  CHECK_EQ(narrow(0x7F800000), 0x7F80u);          // infinity
  CHECK((narrow(0x7F800001) & 0x7FFF) > 0x7F80);  // a NaN whose payload is all in the lost half
  CHECK((narrow(0xFFFFFFFF) & 0x7FFF) > 0x7F80);  // and one that rounding up would wrap
}

TEST_CASE("unaligned bytes of every dtype convert") {
  const std::vector<float> values = {1.5f, -2.0f, 0.0f, 1024.0f, -0.09375f};
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16, DType::fp64}) {
    std::vector<unsigned char> bytes(1 + values.size() * dtype_size(dtype));
    from_float32(dtype, values.data(), values.size(), bytes.data() + 1);
    std::vector<float> back(values.size());
    to_float32(dtype, bytes.data() + 1, back.size(), back.data());
    CHECK_EQ(back, values);  // all of them exact in eight bits of mantissa
  }
}

TEST_CASE("dtypes have names and numbers") {
  CHECK(dtype_from_name("BF16") == DType::bf16);
  CHECK(!dtype_from_name("INT8"));
  CHECK(dtype_from_proto(0) == DType::fp32);
  CHECK(dtype_from_proto(4) == DType::fp64);
  CHECK(!dtype_from_proto(5));
  CHECK(!dtype_from_proto(-1));
}

}  // namespace
}  // namespace fused_mlp::test
