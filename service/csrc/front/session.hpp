// The seam to nghttp2: how a server session is set up and what its callbacks do. C++ on our side only.
#pragma once

#include <nghttp2/nghttp2.h>

#include "front/limits.hpp"

namespace fused_mlp::front {

class Connection;

nghttp2_session* new_server_session(Connection* connection, const Limits& limits);

// Feeds a call's answer to nghttp2, frame by frame, and its trailers after the last.
ssize_t read_answer(nghttp2_session* session, int32_t stream_id, uint8_t* buffer, size_t size,
                    uint32_t* flags, nghttp2_data_source* source, void* connection);

}  // namespace fused_mlp::front
