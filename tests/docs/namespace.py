# SPDX-License-Identifier: Apache-2.0
"""The process in which the Python blocks of one page run, in order and in one namespace, as in one program. Started as
a script: reads {"code", "file", "line"} as JSON lines from descriptor 3, and answers each with a line on 4."""

from __future__ import annotations

import json
import os
import sys
import traceback
import types


def main() -> None:
    # The page's code is __main__, so that what it defines can be pickled; tests/docs is not on its path, its folder is.
    page = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[0] = os.getcwd()
    with os.fdopen(3) as blocks, os.fdopen(4, "w", buffering=1) as answers:
        for line in blocks:
            block = json.loads(line)
            print("ok" if _run(block, page.__dict__) else "failed", file=answers)


def _run(block: dict[str, object], namespace: dict[str, object]) -> bool:
    """Line numbers of tracebacks are those of the page."""
    try:
        padded = "\n" * (int(str(block["line"])) - 1) + str(block["code"])
        exec(compile(padded, str(block["file"]), "exec", dont_inherit=True), namespace)
    except SystemExit as error:
        return not error.code
    except BaseException as error:
        # Without the frames of this file.
        here = error.__traceback__
        traceback.print_exception(error.with_traceback(here.tb_next if here else None))
        return False
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return True


if __name__ == "__main__":
    main()
