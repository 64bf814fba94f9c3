# SPDX-License-Identifier: Apache-2.0
"""Who the server is and who may call it: certificates, lists of callers, and files that are read again."""
