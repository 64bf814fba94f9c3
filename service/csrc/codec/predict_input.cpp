#include "codec/predict_input.hpp"

namespace fused_mlp {

std::string_view PredictInput::short_id() const {
  constexpr size_t kMost = 80;
  if (request_id.size() <= kMost) return request_id;
  size_t end = kMost;
  while (end > 0 && (static_cast<uint8_t>(request_id[end]) & 0xc0) == 0x80) --end;
  return request_id.substr(0, end);
}

std::string PredictInput::unreadable(std::string_view message) {
  request_id = {};
  return "message: expected " + std::string(message) + ", got bytes that cannot be read as one";
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < length) return false;
    uint32_t point = lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto byte = static_cast<uint8_t>(text[i + k]);
      if ((byte & 0xc0) != 0x80) return false;
      point = point << 6 | (byte & 0x3f);
    }
    const bool overlong = (length == 3 && point < 0x800) || (length == 4 && point < 0x10000);
    if (overlong || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
    i += length;
  }
  return true;
}

}  // namespace fused_mlp
