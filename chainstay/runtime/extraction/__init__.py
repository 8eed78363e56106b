"""Any module as a chain of stages.

==============  ==================================================================
`extracting`    the front: a module and a sample call in, an `ExtractedChain` out
`exporting`     torch.export, its failures told by name
`flattening`    its graph as one list of operators
`regions`       autocast and gradient modes inside a forward
`sources`       where a graph's inputs come from
`towers`        which operators belong to parts that know nothing of each other
`observing`     what each operator does to memory and gradients
`sharing`       what can be made once, before the first stage
`crossing`      what crosses each place between two operators
`places`        where a cut is allowed, and what lies between
`cutting`       where to cut
`splitting`     stages that save much are split further
`naming`        what people call a stage
`compiling`     a range of operators as one function
`stage`         one stage
`values`        what stages pass on
`calling`       what a call must be like, and how the output is put together
`likeness`      what the model must stay like
`listing`       a chain as a table
`chain`         the stages and all around them
`assembling`    from a graph and its cuts to a chain
`referee`       whether the chain is the model
`untouched`     attributes that the forward assigns are put back
`calls`         checks of a sample call
`intercepting`  where a model cannot be exported: its blocks found
`recording`     the calls of modules in lists, with what they take and give
`choosing`      which of them are taken
`blocks`        as stages, while the model goes on calling them
`templates`     how their arguments nest
`driving`       a forward, stopped at each of them
`trying`        a forward that leaves no trace
==============  ==================================================================
"""

from chainstay.runtime.extraction.blocks import InterceptedChain
from chainstay.runtime.extraction.chain import ExtractedChain
from chainstay.runtime.extraction.extracting import extract
from chainstay.runtime.extraction.intercepting import intercept

__all__ = ["ExtractedChain", "InterceptedChain", "extract", "intercept"]
