"""Compiles the dynamic programs before the tests, whose workers would each compile the same.

What is left out here is compiled by the tests.

    PYTHONPATH=. .venv/bin/python tests/support/compile_kernels.py chain join
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

from chainstay.dp import jit
from chainstay.verify import SUITES

if __name__ == "__main__":
    jit._spent_s[0] = math.inf  # no kernel is to be interpreted at first
    for problem in sys.argv[1:]:
        suite = SUITES[problem]
        programs = tuple(method for method in suite.methods if method.name.startswith("dp"))
        for _ in replace(suite, methods=programs).checks(range(3), seed=1):
            pass
