"""Models named on the command line, a batch for each, and their costs.

Read `named_models` (``torchvision:resnet50``, ``file.py:function``), `workload` (a model with a
batch), then `model_costs` (measuring and estimating); `hf_models` builds Hugging Face models.
"""
