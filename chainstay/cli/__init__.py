"""The command line: ``chainstay profile | plan | run | verify | bench | report``.

Read `app`, then `commands/` (one module a command: its options and steps). `options` holds shared
options, `models/` builds and measures models, `strategies` with `profile_plans` and `model_plans`
finds plans, `training_run` and `benchmark` run them, `terminal` prints.
"""

from chainstay.cli.app import app

__all__ = ["app"]
