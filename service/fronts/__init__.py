# SPDX-License-Identifier: Apache-2.0
"""The gRPC fronts: native (C++ on nghttp2) and Python (grpc.aio)."""
