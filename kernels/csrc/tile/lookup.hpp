// SPDX-License-Identifier: Apache-2.0
// Lookups in tables. Tables are larger than the caches: rows are prefetched so many cache lines ahead of
// their use, over all lookups and all rows of the batch, so that their misses overlap. Bags are summed in
// registers, in the order of their ids.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "isa/isa.hpp"
#include "tile/activation_math.hpp"

namespace fused_mlp {

template <class V>
struct Lookups {
  using Reg = typename V::Reg;
  static constexpr std::size_t kLanes = V::kLanes;
  // How many cache lines are on their way: more than a core reads at once, and a fraction of the L1 cache.
  static constexpr std::size_t kAheadLines = 64;
  static constexpr std::size_t kMaxRows = 32;  // of a block
  // How much of a bag and of a table row is prefetched ahead. The sum of a bag prefetches later ids, the
  // processor itself later bytes.
  static constexpr std::size_t kAheadIds = 32;
  static constexpr std::size_t kAheadBytes = 1024;

  // Blocks of rows; in a block one lookup after the other. Each row of each lookup prefetches the same row of
  // the lookup that comes `ahead` later, in this block or in the next one.
  static void run(const LookupCall* calls, std::size_t count, std::size_t rows) {
    if (!calls[0].lookup->prefetched) {
      for (std::size_t i = 0; i < count; ++i) look_up(calls[i], 0, rows, calls[i], 0, 0);
      return;
    }
    std::size_t sum = 0;  // of the lines of one row
    for (std::size_t i = 0; i < count; ++i) sum += lines(*calls[i].lookup);
    const std::size_t height =
        std::min(std::clamp<std::size_t>(kAheadLines * count / sum, 1, kMaxRows), rows);
    const std::size_t ahead = std::clamp<std::size_t>(kAheadLines * count / (sum * height), 1, count);
    for (std::size_t i = 0; i < ahead; ++i) {
      const Ahead first(calls[i]);
      for (std::size_t r = 0; r < height; ++r) first.prefetch(r);
    }
    for (std::size_t row = 0; row < rows; row += height) {
      const std::size_t end = std::min(row + height, rows);
      for (std::size_t i = 0; i < count; ++i) {
        const bool same = i + ahead < count;
        const LookupCall& later = calls[same ? i + ahead : i + ahead - count];
        const std::size_t first = same ? row : end;
        look_up(calls[i], row, end, later, first, std::min(first + (end - row), rows));
      }
    }
  }

 private:
  static std::size_t row_bytes(const Lookup& lookup) {
    return lookup.features * bytes_per_weight(lookup.precision);
  }
  static std::size_t lines(const Lookup& lookup) {
    return std::min(lookup.ids, kAheadIds) * ((std::min(row_bytes(lookup), kAheadBytes) + 63) / 64);
  }

  // The table rows that rows of a lookup will read. In registers, and inlined by force: GCC takes a function
  // that only prefetches for one without effect, and drops its calls.
  struct Ahead {
    const char* table;
    const float* scales;
    std::size_t bytes;
    std::size_t most;  // bytes that are prefetched
    bool whole;        // rows begin and end at cache lines
    std::size_t count;
    const float* ids;
    std::size_t stride;

    explicit Ahead(const LookupCall& call)
        : table(static_cast<const char*>(call.lookup->table)),
          scales(call.lookup->scales),
          bytes(row_bytes(*call.lookup)),
          most(std::min(bytes, kAheadBytes)),
          whole((bytes | reinterpret_cast<std::uintptr_t>(table)) % 64 == 0),
          count(std::min(call.lookup->ids, kAheadIds)),
          ids(call.ids),
          stride(call.ids_stride) {}

    [[gnu::always_inline]] void prefetch(std::size_t row) const {
      const float* const words = ids + row * stride;
      for (std::size_t k = 0; k < count; ++k) prefetch_id(id_at(words, k));
    }
    [[gnu::always_inline]] void prefetch_id(std::int32_t id) const {
      if (id < 0) return;
      const char* const row = table + static_cast<std::size_t>(id) * bytes;
      for (std::size_t at = 0; at < most; at += 64) __builtin_prefetch(row + at);
      if (!whole) __builtin_prefetch(row + most - 1);
      if (scales != nullptr) __builtin_prefetch(scales + id);
    }
  };

  static std::int32_t id_at(const float* words, std::size_t index) {
    std::int32_t id;
    __builtin_memcpy(&id, words + index, sizeof id);
    return id;
  }

  // A row of a table, widened as it is read: `load` takes whole registers, `part` the last one.
  struct Float32Row {
    const float* values;
    Float32Row(const Lookup& l, std::size_t id)
        : values(static_cast<const float*>(l.table) + id * l.features) {}
    Reg load(std::size_t c) const { return V::load(values + c); }
    Reg part(std::size_t c, std::size_t n) const { return V::load_part(values + c, n); }
  };
  template <class Value>
  static void copy_part(const Value* from, std::size_t n, Value* to) {
    __builtin_memset(to, 0, kLanes * sizeof(Value));
#pragma GCC unroll 4
    for (std::size_t size = kLanes / 2; size > 0; size /= 2) {
      if ((n & size) == 0) continue;
      __builtin_memcpy(to, from, size * sizeof(Value));
      from += size, to += size;
    }
  }
  struct Bfloat16Row {
    const std::uint16_t* values;
    Bfloat16Row(const Lookup& l, std::size_t id)
        : values(static_cast<const std::uint16_t*>(l.table) + id * l.features) {}
    Reg load(std::size_t c) const { return V::load_halves(values + c); }
    Reg part(std::size_t c, std::size_t n) const {
      std::uint16_t copy[kLanes];
      copy_part(values + c, n, copy);
      return V::load_halves(copy);
    }
  };
  struct Int8Row {
    const std::int8_t* values;
    Reg scale;
    Int8Row(const Lookup& l, std::size_t id)
        : values(static_cast<const std::int8_t*>(l.table) + id * l.features), scale(V::set1(l.scales[id])) {}
    Reg load(std::size_t c) const { return V::load_bytes(values + c) * scale; }
    Reg part(std::size_t c, std::size_t n) const {
      alignas(16) std::int8_t copy[kLanes < 8 ? 8 : kLanes];
      copy_part(values + c, n, copy);
      return V::load_bytes(copy) * scale;
    }
  };

  // Rows [row, end) of a lookup, while rows [first, last) of a later one are prefetched: as many, or fewer.
  static void look_up(const LookupCall& call, std::size_t row, std::size_t end, const LookupCall& later,
                      std::size_t first, std::size_t last) {
    switch (call.lookup->precision) {
      case Precision::kFloat32:
        return look_up_as<Float32Row>(call, row, end, later, first, last);
      case Precision::kBfloat16:
        return look_up_as<Bfloat16Row>(call, row, end, later, first, last);
      case Precision::kInt8:
        return look_up_as<Int8Row>(call, row, end, later, first, last);
    }
  }

  template <class Row>
  static void look_up_as(const LookupCall& call, std::size_t row, std::size_t end, const LookupCall& later,
                         std::size_t first, std::size_t last) {
    const Lookup lookup = *call.lookup;  // a copy, which no store can change
    const Ahead ahead(later), own(call);
    const float* ids = call.ids + row * call.ids_stride;
    float* y = call.y + row * call.y_stride;
    if (!lookup.bag && lookup.ids == 1 && ahead.count == 1) {  // the usual case, without inner loops
      const float* next = ahead.ids + first * ahead.stride;
      for (std::size_t r = row; r < end; ++r, ++first) {
        if (first < last) ahead.prefetch_id(id_at(next, 0));
        copy(Row(lookup, static_cast<std::size_t>(id_at(ids, 0))), lookup.features, y);
        next += ahead.stride, ids += call.ids_stride, y += call.y_stride;
      }
      return;
    }
    const float* factors = call.factors == nullptr ? nullptr : call.factors + row * call.factors_stride;
    for (std::size_t r = row; r < end; ++r, ++first) {
      if (first < last) ahead.prefetch(first);
      if (!lookup.bag) {
        embed<Row>(lookup, own, ids, y);
      } else {
        bag<Row>(lookup, own, ids, factors, y);
      }
      ids += call.ids_stride, y += call.y_stride;
      if (factors != nullptr) factors += call.factors_stride;
    }
  }

  template <class Row>
  static void embed(const Lookup& lookup, const Ahead& own, const float* ids, float* y) {
    for (std::size_t k = 0; k < lookup.ids; ++k, y += lookup.features) {
      if (k + kAheadIds < lookup.ids) own.prefetch_id(id_at(ids, k + kAheadIds));
      copy(Row(lookup, static_cast<std::size_t>(id_at(ids, k))), lookup.features, y);
    }
  }
  template <class Row>
  static void copy(const Row& row, std::size_t n, float* y) {
    std::size_t c = 0;
    for (; c + kLanes <= n; c += kLanes) V::store(y + c, row.load(c));
    if (c < n) V::store_part(y + c, row.part(c, n - c), n - c);
  }

  template <class Row>
  static void bag(const Lookup& lookup, const Ahead& own, const float* ids, const float* factors, float* y) {
    const std::size_t n = lookup.features;
    std::size_t c = 0;
    for (; c + 4 * kLanes <= n; c += 4 * kLanes) bag_columns<Row, 4>(lookup, own, ids, factors, y, c, kLanes);
    for (; c + kLanes <= n; c += kLanes) bag_columns<Row, 1>(lookup, own, ids, factors, y, c, kLanes);
    if (c < n) bag_columns<Row, 1>(lookup, own, ids, factors, y, c, n - c);
  }

  // Columns [c, c + Width * lanes) of a bag; `lanes` is less than a register only if Width is 1.
  template <class Row, std::size_t Width>
  static void bag_columns(const Lookup& lookup, const Ahead& own, const float* ids, const float* factors,
                          float* y, std::size_t c, std::size_t lanes) {
    const bool max = lookup.reduction == Reduction::kMax;
    Reg sums[Width];
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Width; ++k) sums[k] = V::set1(max ? -__builtin_inff() : 0.0f);
    std::size_t counted = 0;
    for (std::size_t i = 0; i < lookup.ids; ++i) {
      if (c == 0 && i + kAheadIds < lookup.ids) own.prefetch_id(id_at(ids, i + kAheadIds));
      const std::int32_t id = id_at(ids, i);
      if (id < 0 || id == lookup.padding) continue;
      ++counted;
      const Row row(lookup, static_cast<std::size_t>(id));
      const Reg factor = V::set1(factors == nullptr ? 1.0f : factors[i]);
#pragma GCC unroll 4
      for (std::size_t k = 0; k < Width; ++k) {
        const Reg value = lanes == kLanes ? row.load(c + k * kLanes) : row.part(c, lanes);
        sums[k] = max                  ? Math<V>::template combine<Combination::kMaximum>(sums[k], value)
                  : factors == nullptr ? sums[k] + value
                                       : V::multiply_add(value, factor, sums[k]);
      }
    }
    const bool mean = lookup.reduction == Reduction::kMean && counted > 0;
    const Reg divisor = V::set1(static_cast<float>(counted));
#pragma GCC unroll 4
    for (std::size_t k = 0; k < Width; ++k) {
      const Reg value = counted == 0 ? V::zero() : mean ? sums[k] / divisor : sums[k];
      if (lanes == kLanes) {
        V::store(y + c + k * kLanes, value);
      } else {
        V::store_part(y + c, value, lanes);
      }
    }
  }
};

}  // namespace fused_mlp
