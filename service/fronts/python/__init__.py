# SPDX-License-Identifier: Apache-2.0
"""The Python front: grpc.aio in front of the same engine and handlers as the native one."""
