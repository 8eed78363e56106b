"""The command line: ``chainstay profile | plan | run | verify | bench | report``.

============  ====================================================================
`app`         the commands, what they share, and how errors end
`endings`     exit statuses
`terminal`    what is printed, on any terminal, in any encoding
`options`     options that several commands have
`models`      ``torchvision:resnet50``, ``hf:gpt2?n_layer=24``, ``file.py:function``
`heads`       what a Hugging Face model is trained on
`workloads`   a model with a batch to train it on
`links`       ``12GB/s,10us,full``
`costs`       measuring a model, or estimating it
`ways`        what a budget can be met with, side by side
`tables`      what stages cost, side by side
`training`    steps that are run: time, memory, and whether they are right
============  ====================================================================

Each command is a module with its options (`profile`, `plan`, `run`, `verify`, `bench`,
`report`), light enough for ``--help``, and one that does the work (`profiling`, `planning` with
`planning_files` and `planning_models`, `running`, `verifying`, `benching`, `reporting`), which
is imported when the command runs.
"""

from chainstay.cli.app import app

__all__ = ["app"]
