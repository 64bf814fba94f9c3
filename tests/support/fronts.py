# SPDX-License-Identifier: Apache-2.0
"""`@both_fronts` runs a test over the Python front too: for what the fronts do each in their own way, and for a sample
of the rest, which is the same code behind both."""

import pytest

both_fronts = pytest.mark.parametrize("front", ["native", "python"], indirect=True, scope="session")
