// SPDX-License-Identifier: Apache-2.0
#include "front/rest/rest_path.hpp"

#include <algorithm>

#include "codec/predict_input.hpp"
#include "front/rest/token.hpp"

namespace fused_mlp::front {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The text up to the next '/', which is taken off `rest` with it.
std::string_view next_part(std::string_view& rest) {
  const size_t slash = rest.find('/');
  const std::string_view part = rest.substr(0, slash);
  rest.remove_prefix(slash == std::string_view::npos ? rest.size() : slash + 1);
  return part;
}

}  // namespace

Verb verb_of(std::string_view name) {
  if (name == "POST") return Verb::post;
  if (name == "GET") return Verb::get;
  if (name == "HEAD") return Verb::head;
  return name == "OPTIONS" ? Verb::options : Verb::other;
}

const char* verb_name(Verb verb) {
  constexpr const char* kNames[] = {"GET", "HEAD", "POST", "OPTIONS", ""};
  return kNames[static_cast<size_t>(verb)];
}

std::optional<std::string> percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out.push_back(static_cast<char>(high << 4 | low));
    i += 2;
  }
  return out;
}

void read_target(std::string_view target, size_t most, std::string& path) {
  path.clear();
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.starts_with('/') || !is_token(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(std::min(target.find_first_of("/?", scheme.size()), target.size()));
    if (!target.starts_with('/')) path.push_back('/');
  }
  path.append(target.substr(0, most));
}

RestPath read_rest_path(std::string_view target) {
  constexpr std::string_view kModels = "/v2/models/";
  RestPath path;
  std::string_view rest = target.substr(0, target.find('?'));
  if (!rest.starts_with(kModels)) return path;
  rest.remove_prefix(kModels.size());
  const std::string_view model = next_part(rest);
  std::string_view verb = next_part(rest), version;
  if (verb == "versions") {
    version = next_part(rest);
    verb = next_part(rest);
  }
  path.infer = verb == "infer" && rest.empty() && !model.empty();
  if (!path.infer) return path;
  auto name = percent_decode(model), number = percent_decode(version);
  path.broken = !name || !number || !is_utf8(*name) || !is_utf8(*number);
  path.model = std::move(name).value_or("");
  path.version = std::move(number).value_or("");
  return path;
}

}  // namespace fused_mlp::front
