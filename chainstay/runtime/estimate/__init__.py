"""Planning a model that is too large to run here: costs from shapes and data sheets.

=================  =====================================================
`front`            the call: a model and a sample in, an `Estimated` out
`devices`          how fast devices are, by their data sheets
`stand_ins`        the model and the sample without memory
`traced_call`      a call as a graph
`attention`        dropout in attention, as GPUs do it
`prices`           what an operator takes
`observer`         memory and time of code, operator by operator
`stage_estimates`  every stage run alone
`estimated`        what comes out
`refusals`         what cannot be estimated, told by name
=================  =====================================================
"""

from chainstay.runtime.estimate.devices import DEVICES, DeviceModel
from chainstay.runtime.estimate.estimated import Estimated
from chainstay.runtime.estimate.front import estimate

__all__ = ["DEVICES", "DeviceModel", "Estimated", "estimate"]
