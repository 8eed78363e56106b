"""The command line: ``chainstay profile | plan | run | verify | bench | report``.

===========  ====================================================================
`app`        the commands, what they share, and how errors end
`endings`    exit statuses
`terminal`   what is printed, on any terminal, in any encoding
`options`    options that several commands have
`models`     ``torchvision:resnet50``, ``hf:gpt2?n_layer=24``, ``file.py:function``
`heads`      what a Hugging Face model is trained on
`workloads`  a model with a batch to train it on
`costs`      measuring a model, or estimating it
`ways`       what a budget can be met with, side by side
`tables`     tables
`training`   steps that are run: time, memory, and whether they are right
===========  ====================================================================

and one module for each command. Whatever takes long to import is imported by the command that
needs it.
"""

from chainstay.cli.app import app

__all__ = ["app"]
