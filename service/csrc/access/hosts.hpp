// SPDX-License-Identifier: Apache-2.0
// Which Host headers a port answers to. A page can make its own public name resolve to this server (DNS
// rebinding) and read the port in the browser of a victim; it can do so with no name that is allowed here.
// Immutable.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fused_mlp {

class AllowedHosts {
 public:
  // "models.example.org"; ".example.org" for all names below it; "*" for any. In lower case.
  explicit AllowedHosts(std::vector<std::string> names = {"*"}) : names_(std::move(names)) {}
  // `host`: "localhost:8002", "[::1]", "models.example.org". Allows addresses, names without a dot, and
  // `names`.
  bool allows(std::string_view host) const;

 private:
  std::vector<std::string> names_;
};

}  // namespace fused_mlp
