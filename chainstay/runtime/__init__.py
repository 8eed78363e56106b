"""Running a chain by a schedule: measure a model, then train it inside the planned memory.

=================  ==================================================================
`states`           what stages pass on
`stages`           a model as a chain of stages
`chain`            a model ready to be planned, and what a plan promises to hold for
`mode`             the training flags and autocast settings that a plan holds for
`fusing`           where the chain must not be cut
`memory`           what the allocators say a piece of code needs
`layout`           how a tensor lies in memory
`lineage`          what states share
`boundary`         the two ends of a stage that is run alone
`probe`            the life of one stage, phase by phase, to be traced
`clock`            how long a stage takes
`environment`      what a forward depends on besides its input, saved and put back
`preserve`         measuring leaves everything as it was
`sharing`          bytes that no stage shows when it is run alone
`costs`            from all of that to a profile
`measurement`      measuring, the same for every kind of model
`measuring`        the front: a model and a sample in, a `MeasuredChain` out
`liveness`         what each operation of a schedule means for what must be held
`binding`          what a stage must still hold when it runs again
`aliasing`         saved tensors that lie in their stage's input
`handles`          what the graph holds in place of saved tensors
`recompute`        one training step's run of a plan
`executor`         a chain with a plan
`execute`          a plan as a `torch.nn.Module`
`extraction`       any module as a chain of stages
`extracted`        measuring such a chain
`losses`           the loss that some models compute themselves
`calls`            a call as a chain's first state, and its last state as an output
`situation`        what a plan of a whole model holds for
`fitted`           a model's forward while it is fitted
`remaking`         tensors that a schedule makes again while it still holds them
`own_hooks`        hooks on a fitted model itself
`parameter_hooks`  hooks on parameters, set aside while a model is measured
`device_memory`    what is free on a device
`transfers`        saved data that goes to host memory and comes back
`estimating`       costs of a model that is too large to be measured here
=================  ==================================================================
"""

from chainstay.runtime.execute import PlannedChain
from chainstay.runtime.measuring import MeasuredChain, measure
from chainstay.runtime.memory import MemoryTrace, trace_memory

__all__ = ["MeasuredChain", "MemoryTrace", "PlannedChain", "measure", "trace_memory"]
