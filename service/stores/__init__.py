# SPDX-License-Identifier: Apache-2.0
"""Where repositories live: folders of this machine, or stores that are mirrored into one."""
