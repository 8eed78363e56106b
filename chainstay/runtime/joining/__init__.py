"""Models whose branches meet, trained by schedules of joins.

============  ===================================================================
`extracting`  the front: any module and a sample call in, an `ExtractedJoin` out
`ordering`    operators part by part, if that changes no number
`extracted`   branches of stages, and a tail behind them
`staging`     each part as a chain of its own, measured or not
`measuring`   what the parts cost
`costs`       from what was seen to costs
`caching`     costs in files
`account`     what each operation of a schedule needs
`execution`   what each operation of a schedule means for what must be held
`order`       the order in which autograd runs backwards
`running`     one training step's run of a plan
`executor`    a join with a plan, and a model's forward by it
============  ===================================================================
"""

from chainstay.runtime.joining.extracted import ExtractedJoin
from chainstay.runtime.joining.extracting import extract_join

__all__ = ["ExtractedJoin", "extract_join"]
