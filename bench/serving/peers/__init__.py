# SPDX-License-Identifier: Apache-2.0
"""Other people's servers, each in a venv of its own under build/ that borrows torch from ours."""
