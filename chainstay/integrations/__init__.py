"""Training loops of others: a model is fitted on the first batch that the loop shows it.

================  ==============================================================
`first_call`      a model that is fitted by its first call with gradients
`transformers`    a callback for Hugging Face's ``Trainer``
`lightning`       a callback for Lightning's ``Trainer``
`accelerate`      models that ``Accelerator.prepare`` returned
================  ==============================================================

Each of the last three needs its library, so none is imported before the user does.
"""
