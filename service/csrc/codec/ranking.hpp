// SPDX-License-Identifier: Apache-2.0
// The best of a request's results, in place of all of them: by the scores of one output, the largest first.
// An output of one column ranks the rows of the request, a wider one the columns of each row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fused_mlp {

struct Ranking {
  bool limited = false;  // top_k was given
  int64_t top_k = 0;
  bool bounded = false;  // min_score was given
  double min_score = 0;
  std::string_view output;  // whose scores; empty: the first that is answered
  std::string_view ids;     // the input whose ids are answered too; empty: none

  bool wanted() const { return limited || bounded; }
  // Of `candidates`, before their scores are known.
  size_t most(size_t candidates) const {
    const bool fewer = limited && static_cast<uint64_t>(top_k) < candidates;
    return fewer ? static_cast<size_t>(top_k) : candidates;
  }
  // What is wrong with it in itself; empty: nothing.
  std::string check() const;
  // The text of a parameter that may be text where a client has no other type.
  std::string read_min_score(std::string_view text);
};

// Appends the positions of the best scores, the first of which is `scores[0]`, the next `scores[stride]`.
// Equal scores come in the order of their positions, NaN last, and never where there is a least score.
void append_best(const Ranking& ranking, const float* scores, size_t count, size_t stride,
                 std::vector<int64_t>& positions);

}  // namespace fused_mlp
