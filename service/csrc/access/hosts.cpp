// SPDX-License-Identifier: Apache-2.0
#include "access/hosts.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>

namespace fused_mlp {
namespace {

bool is_ipv4(const std::string& name) {
  in_addr address;
  return ::inet_pton(AF_INET, name.c_str(), &address) == 1;
}

}  // namespace

bool AllowedHosts::allows(std::string_view host) const {
  if (host.starts_with('[')) return host.find(']') != std::string_view::npos;  // IPv6
  std::string name(host.substr(0, host.find(':')));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (name.ends_with('.')) name.pop_back();
  if (name.find('.') == std::string::npos || is_ipv4(name)) return true;
  return std::any_of(names_.begin(), names_.end(), [&name](const std::string& each) {
    return each == "*" || each == name || (each.starts_with('.') && name.ends_with(each));
  });
}

}  // namespace fused_mlp
