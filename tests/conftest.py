"""Settings for all tests: hypothesis draws the same examples at every run, without a clock."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# Where these are set, what the command line prints has colours, whoever reads it.
for _name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(_name, None)

settings.register_profile(
    "chainstay",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("chainstay")
# For `make mutants`: that a test fails is enough, its smallest example is not looked for.
settings.register_profile("mutants", settings(), phases=(Phase.explicit, Phase.generate))
