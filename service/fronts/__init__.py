# SPDX-License-Identifier: Apache-2.0
"""What speaks gRPC: the native front (C++ on nghttp2) and the Python front (grpc.aio)."""
