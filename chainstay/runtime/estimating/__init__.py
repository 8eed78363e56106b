"""Planning a model that is too large to run here: costs from shapes and data sheets.

=============  ==================================================================
`front`        the call: a model and a sample in, an `Estimated` out
`devices`      how fast devices are, by their data sheets
`stand_ins`    the model and the sample without memory
`attention`    dropout in attention, as GPUs do it
`pricing`      what an operator takes
`watching`     memory and time of code, operator by operator
`resemblance`  stages that are alike
`probing`      every stage run alone
`estimated`    what comes out
`faults`       what cannot be estimated, told by name
=============  ==================================================================
"""

from chainstay.runtime.estimating.devices import DEVICES, DeviceModel
from chainstay.runtime.estimating.estimated import Estimated
from chainstay.runtime.estimating.front import estimate

__all__ = ["DEVICES", "DeviceModel", "Estimated", "estimate"]
